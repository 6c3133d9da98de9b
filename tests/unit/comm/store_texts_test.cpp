// Oracle: what was set, and the number of requests that a store counts.
#include "strata/comm/store_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "on_ranks.h"
#include "strata/base/error.h"

namespace strata::comm {
namespace {

class CountingStore : public c10d::HashStore {
 public:
  std::vector<uint8_t> get(const std::string& key) override {
    ++num_requests;
    return HashStore::get(key);
  }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    const int before = num_requests;
    auto found = HashStore::multiGet(keys);
    num_requests = before + 1;
    return found;
  }
  int num_requests = 0;
};

TEST(StoreTexts, OfAllRanksTakeOneRequest) {
  CountingStore store;
  std::vector<std::string> keys, expected;
  for (int rank = 0; rank < 300; ++rank) {
    keys.push_back("who/" + std::to_string(rank));
    expected.push_back(rank == 7 ? "" : "rank " + std::to_string(rank));
    set_text(store, keys.back(), expected.back());
  }
  EXPECT_EQ(texts_of(store, keys), expected);
  EXPECT_EQ(store.num_requests, 1);
}

TEST(StoreTexts, WhoSaysNothingIsNamedInALine) {
  try {
    on_ranks(
        3, /*shared_memory=*/true,
        [](Rendezvous& rendezvous) {
          if (rendezvous.options().rank == 1) {
            std::this_thread::sleep_for(std::chrono::seconds(5));
          } else {
            rendezvous.require_same("settings", "a");
          }
        },
        std::chrono::seconds(3));
    FAIL() << "went on without a rank";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(),
                testing::StartsWith("settings: found rank 1 gone before the run began ("));
    EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("same/settings")));
  }
}

}  // namespace
}  // namespace strata::comm
