// How long something took, by the clock that nobody sets. Never: the time of day.
#pragma once

#include <chrono>

namespace strata {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace strata
