// Oracle: an error that names what differs. Ranks are threads of this process.
#include "strata/comm/rendezvous.h"

#include <gtest/gtest.h>

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "on_ranks.h"
#include "strata/base/error.h"

namespace strata::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

// A rank of its own world, started after a while.
struct Start {
  int rank, world_size;
  milliseconds delay{0};
};

struct Ends {
  std::vector<std::string> said, errors;  // of each rank, joined
};

// Ranks that are started by hand: each with what was typed for it.
Ends start_by_hand(const std::vector<Start>& starts, seconds join_timeout = seconds(20),
                   milliseconds patience = milliseconds(100)) {
  const ListeningPort port = listening_port();
  Ends ends{.said = std::vector<std::string>(starts.size()),
            .errors = std::vector<std::string>(starts.size())};
  std::vector<std::unique_ptr<Rendezvous>> met(starts.size());  // rank 0 serves the others
  std::vector<std::thread> threads;
  for (size_t i = 0; i < starts.size(); ++i) {
    threads.emplace_back([&, i] {
      const Start& start = starts[i];
      std::this_thread::sleep_for(start.delay);
      try {
        met[i] = std::make_unique<Rendezvous>(
            RendezvousOptions{.rank = start.rank,
                              .world_size = start.world_size,
                              .port = port.number,
                              .listen_descriptor = start.rank == 0 ? port.descriptor : -1,
                              .join_timeout = join_timeout,
                              .say = [&, i](const std::string& line) { ends.said[i] += line; },
                              .patience = patience});
      } catch (const Error& error) {
        ends.errors[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

TEST(RollCall, RankZeroSaysWhoIsMissing) {
  // Long enough that a rank that is started at once is there before rank 0 speaks.
  const Ends ends = start_by_hand({{0, 4}, {2, 4}, {1, 4, seconds(4)}, {3, 4, seconds(4)}},
                                  seconds(20), /*patience=*/seconds(2));
  EXPECT_THAT(ends.said[0], AllOf(HasSubstr(": waiting for ranks 1, 3 of 4 for "),
                                  HasSubstr(" s (at most 20 s): not connected yet")));
  EXPECT_EQ(ends.said[1], "");  // one voice is enough
  for (const std::string& error : ends.errors) EXPECT_EQ(error, "");
}

TEST(RollCall, OthersSayThatTheyFindNoRankZero) {
  std::string said;
  RendezvousOptions options{.rank = 1,
                            .world_size = 2,
                            .port = 1,  // where nobody listens
                            .join_timeout = seconds(2),
                            .say = [&](const std::string& line) { said += line; },
                            .patience = milliseconds(100)};
  EXPECT_THROW(Rendezvous{options}, CommError);
  EXPECT_THAT(said,
              HasSubstr(":1: waiting for rank 0 for 0 s (at most 2 s): nobody answers there"));
}

TEST(RollCall, WhoNeverComesIsNamed) {
  const Ends ends = start_by_hand({{0, 3}, {1, 3}}, seconds(1));
  EXPECT_THAT(ends.errors[0], HasSubstr("found no meeting of 3 ranks (rank 2 did not connect)"));
}

TEST(RollCall, AnotherWorldSizeIsAnErrorOnBothSides) {
  const Ends ends = start_by_hand({{0, 2}, {1, 3}});
  EXPECT_THAT(ends.errors[0], HasSubstr("world size: found 2 on rank 0 but 3 on rank 1 (process "));
  EXPECT_THAT(ends.errors[1], HasSubstr("world size: found 3 on rank 1 but 2 on rank 0 (process "));
}

TEST(RollCall, ARankThatIsThereTwiceIsAnError) {
  const Ends ends = start_by_hand({{0, 3}, {1, 3}, {1, 3}, {2, 3, seconds(2)}});
  // Whichever of the two comes second.
  EXPECT_NE(ends.errors[1].empty(), ends.errors[2].empty());
  EXPECT_THAT(ends.errors[1] + ends.errors[2],
              AllOf(HasSubstr("rank 1: found that process "),
                    HasSubstr(" is rank 1 of this run, expected one process")));
  EXPECT_EQ(ends.errors[0] + ends.errors[3], "");
}

TEST(Rendezvous, DifferentSettingsAreFoundBeforeTheFirstCollective) {
  try {
    on_ranks(2, [](Rendezvous& rendezvous) {
      rendezvous.require_same("settings", rendezvous.options().rank == 0 ? "a" : "b");
    });
    FAIL() << "went on with different settings";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("settings"), std::string::npos);
  }
}

// Systems allow a process a thousand files unasked, and many more where it asks.
TEST(Rendezvous, AsksForTheFilesThatItsGroupsTake) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto num_open = static_cast<rlim_t>(std::distance(
      std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
  rlimit few = before;
  few.rlim_cur = num_open + 10;  // less than the connections of four ranks to their store
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::string error;
  try {
    on_ranks(4, [](Rendezvous& rendezvous) { rendezvous.make_group("world")->barrier(); });
  } catch (const std::exception& e) {
    error = e.what();
  }
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace strata::comm
