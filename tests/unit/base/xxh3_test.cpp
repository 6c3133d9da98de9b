// Oracle: the package xxhash of Python (xxh3_64_hexdigest, xxh3_128_hexdigest).
#include "strata/base/xxh3.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace strata {
namespace {

std::string ramp(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 % 251);
  return bytes;
}

struct Case {
  size_t size;
  const char* hash_64;
  const char* hash_128;
};

// Each of the lengths from which on the algorithm is another one.
constexpr Case kCases[] = {
    {0, "2d06800538d394c2", "99aa06d3014798d86001c324468d497f"},
    {3, "c3489259e968ad9e", "656e81c56e41fe02c3489259e968ad9e"},
    {8, "b88dee77f6bf6980", "e4b9dd0b66ff3c50ebabbd0695002ff6"},
    {16, "9da23836adf2be1e", "ddf6c1254d70f76794eaa17b20756f46"},
    {100, "1023ae92e631eac5", "fc8da0d97205f51d6c45cd2f745cc3a7"},
    {200, "d12016b53c9565ba", "5451071ed36ad47079ad90815b45bbd9"},
    {240, "d6dfbf67b0675b54", "17ffe035d71c1ec8e6bf81617aad6c4a"},
    {241, "c614c8c3575348c1", "29bc1e9cffb6d79bc614c8c3575348c1"},
    {1000, "d1eb8367bf3294e7", "5ed35fc6b4f0ef20d1eb8367bf3294e7"},
    {5000, "ce29a19460ee1bfc", "5ecbf80121973a82ce29a19460ee1bfc"},
};

TEST(Xxh3, GivesThePublishedDigests) {
  for (const auto& [size, hash_64, hash_128] : kCases) {
    Xxh3 hash;
    hash.update(ramp(size));
    EXPECT_EQ(hash.text_64(), hash_64) << size;
    EXPECT_EQ(hash.text_128(), hash_128) << size;
    EXPECT_EQ(fmt::format("{:016x}", hash.digest_64()), hash_64) << size;
  }
}

TEST(Xxh3, PartsAreAsTheWhole) {
  for (const auto& [size, hash_64, hash_128] : kCases) {
    for (const size_t part : {1, 7, 64, 255, 1024}) {
      Xxh3 hash;
      const std::string bytes = ramp(size);
      for (size_t at = 0; at < size; at += part) {
        hash.update(std::string_view(bytes).substr(at, part));
        (void)hash.text_128();  // more may come
      }
      EXPECT_EQ(hash.text_64() + hash.text_128(), std::string(hash_64) + hash_128) << size;
    }
  }
}

}  // namespace
}  // namespace strata
