// The precompiled header of every target that uses libtorch, and the only place that includes
// ATen whole. Owns: which libtorch headers the project sees. Never: declarations, nor
// torch/csrc/autograd: its templates would be instantiated again in every file (4 s each), so the
// few files that need it include it.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
