// Oracle: the tokens of a piece are made from its number, so that any other answer shows.
#include "strata/text/piece_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace strata::text {
namespace {

std::vector<ModelToken> tokens_of(int number) {
  std::vector<ModelToken> tokens;
  for (int i = 0; i <= number % 7; ++i) {
    tokens.push_back({number + i, static_cast<uint32_t>(i), static_cast<uint32_t>(i + 1)});
  }
  return tokens;
}

bool are_equal(const std::vector<ModelToken>& a, const std::vector<ModelToken>& b) {
  return std::ranges::equal(a, b, [](const ModelToken& x, const ModelToken& y) {
    return x.id == y.id && x.begin == y.begin && x.end == y.end;
  });
}

TEST(PieceCache, RemembersAndDisplaces) {
  PieceCache cache;
  std::vector<ModelToken> found;
  EXPECT_FALSE(cache.find("word", found));
  cache.store("word", tokens_of(5).data(), 6);
  EXPECT_TRUE(cache.find("word", found));
  EXPECT_TRUE(are_equal(found, tokens_of(5)));
  found.clear();
  EXPECT_FALSE(cache.find("words", found));
  EXPECT_FALSE(cache.find(std::string(31, 'a'), found));
}

TEST(PieceCache, NeverMixesWhatThreadsStore) {
  PieceCache cache;
  std::atomic<int> hits = 0, wrong = 0;
  const auto work = [&](int first) {
    std::vector<ModelToken> found;
    for (int round = 0; round < 4; ++round) {
      // More than there are slots, so that pieces displace each other all the time.
      for (int number = first; number < 100'000; number += 2) {
        const std::string piece = "piece" + std::to_string(number / 2);
        const std::vector<ModelToken> expected = tokens_of(number / 2);
        found.clear();
        if (cache.find(piece, found)) {
          ++hits;
          if (!are_equal(found, expected)) ++wrong;
        }
        cache.store(piece, expected.data(), expected.size());
      }
    }
  };
  std::vector<std::jthread> threads;
  for (int first : {0, 1, 0, 1}) threads.emplace_back(work, first);
  threads.clear();
  EXPECT_GT(hits, 0);
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace strata::text
