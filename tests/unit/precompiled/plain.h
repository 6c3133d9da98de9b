// The precompiled header of the unit tests of folders without libtorch. Never: declarations.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/precompiled.h"
