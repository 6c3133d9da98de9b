// The phases of a rank that its launcher must know: it kills none of them in the middle. Owns:
// their names on the status page. Never: phases that are only read by people.
#pragma once

#include <string_view>

namespace strata {

inline constexpr std::string_view kTrainingPhase = "training", kEvaluatingPhase = "evaluating",
                                  kAskingAgainPhase = "evaluating the reference again",
                                  kResultPhase = "writing the result";
inline constexpr std::string_view kSavingPhase = "saving";  // what it begins with

}  // namespace strata
