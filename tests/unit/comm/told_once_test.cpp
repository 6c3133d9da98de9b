// Oracle: who must say what, and after how many time-outs, by hand. Ranks are threads of this
// process.
#include "strata/comm/told_once.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "on_ranks.h"
#include "strata/base/error.h"
#include "strata/comm/agreement.h"

namespace strata::comm {
namespace {

using Clock = std::chrono::steady_clock;

// What a rank ends with: "same: ..." is left to rank 0.
std::string outcome_of(Group& group, const std::function<void()>& work) {
  try {
    all_or_nothing_told_once(group, "looking", work);
  } catch (const SameFailure& error) {
    return std::string("same: ") + error.what();
  } catch (const OtherRankFailed& error) {
    return "rank " + std::to_string(error.rank());
  } catch (const std::exception& error) {
    return error.what();
  }
  return "done";
}

TEST(ToldOnce, RanksThatFailAlikeLeaveItToRank0) {
  on_ranks(3, [](Rendezvous& rendezvous) {
    const auto group = rendezvous.make_group("test");
    const int rank = group->rank();
    const auto fail = [](const std::string& what) { throw IoError("{}", what); };
    EXPECT_EQ(outcome_of(*group, [] {}), "done");
    EXPECT_EQ(outcome_of(*group, [&] { fail("row 7"); }), rank == 0 ? "row 7" : "same: row 7");
    // Each has a reason of its own, or rank 0 another one than the rest.
    const std::string own = "row " + std::to_string(rank);
    EXPECT_EQ(outcome_of(*group, [&] { fail(own); }), own);
    const std::string other = rank == 0 ? "disk" : "row 7";
    EXPECT_EQ(outcome_of(*group, [&] { fail(other); }), other);
    EXPECT_EQ(outcome_of(*group,
                         [&] {
                           if (rank == 1) fail("row 7");
                         }),
              rank == 1 ? "row 7" : "rank 1");
    EXPECT_EQ(outcome_of(*group, [] { throw std::runtime_error("bug"); }), "bug");
    EXPECT_EQ(outcome_of(*group, [] {}), "done") << "the group works as before";
  });
}

// Rank 1 does not come: a rank that fails says so after one time-out, not after one for each thing
// that it would tell.
TEST(ToldOnce, ARankThatHangsCostsOneTimeout) {
  for (const bool shared_memory : {true, false}) {
    on_ranks(
        3, shared_memory,
        [](Rendezvous& rendezvous) {
          const auto group = rendezvous.make_group("test");
          if (group->rank() == 1) {
            std::this_thread::sleep_for(std::chrono::seconds(7));
            return;
          }
          const auto start = Clock::now();
          const std::string outcome = outcome_of(*group, [&] {
            if (group->rank() == 0) throw IoError("{}", std::string("disk: full"));
          });
          EXPECT_LT(Clock::now() - start, std::chrono::seconds(5)) << group->rank();
          if (group->rank() == 0) {
            EXPECT_EQ(outcome, "disk: full");
          } else {
            EXPECT_NE(outcome, "done");
          }
        },
        std::chrono::seconds(3));
  }
}

}  // namespace
}  // namespace strata::comm
