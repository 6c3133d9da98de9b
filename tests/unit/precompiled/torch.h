// The precompiled header of the unit tests of folders that use libtorch. Never: declarations.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/libtorch/precompiled.h"
