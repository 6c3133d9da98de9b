// Small things that all ranks must know alike: whether somebody failed, a string of rank 0.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "strata/base/error.h"
#include "strata/comm/group.h"

namespace strata::comm {

// What ranks on which all went well throw where another failed. The group works as before.
class OtherRankFailed : public CommError {
 public:
  OtherRankFailed(const std::string& what, int rank);
  int rank() const { return rank_; }  // the highest of those that failed

 private:
  int rank_;
};

// Runs `work` on this rank, then asks all ranks whether it succeeded everywhere. Collective. The
// rank that failed throws its own error, the others OtherRankFailed naming `what` - so that no rank
// goes on alone into the next collective and waits there forever.
void all_or_nothing(Group& group, const std::string& what, const std::function<void()>& work);

// Runs `work` on this rank and returns, on every rank alike, what the highest rank that failed says
// ("rank 2: ..."), or nothing when all succeeded. Collective. For failures that somebody can
// handle; throws only when the group itself is broken. `work` may be collective if it ends alike on
// all.
std::optional<std::string> shared_failure(Group& group, const std::function<void()>& work);

// Every rank's numbers added up, and rank 0's, on every rank. Collective, as many on all ranks.
void sum_over_ranks(Group& group, std::span<double> values);
void broadcast_numbers(Group& group, std::span<double> values);

// Rank 0's string on every rank. Collective.
std::string broadcast_string(Group& group, const std::string& value);

}  // namespace strata::comm
