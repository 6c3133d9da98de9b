// `autograd` of strata/libtorch/precompiled, and the test framework. Never: declarations.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/libtorch/precompiled/autograd.h"
