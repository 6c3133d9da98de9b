// Oracle: the sizes that huggingface_hub's parse_size_to_int accepts, and the definition of the
// units.
#include "strata/base/byte_size.h"

#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"

namespace strata {
namespace {

TEST(ByteSize, DecimalAndBinaryUnits) {
  EXPECT_EQ(parse_byte_size("50GB"), 50'000'000'000u);
  EXPECT_EQ(parse_byte_size("5gb"), 5'000'000'000u);
  EXPECT_EQ(parse_byte_size(" 1.5 MB "), 1'500'000u);
  EXPECT_EQ(parse_byte_size("5GiB"), 5ull << 30);
  EXPECT_EQ(parse_byte_size("100KB"), 100'000u);
  EXPECT_EQ(parse_byte_size("2TiB"), 2ull << 40);
  EXPECT_EQ(parse_byte_size("12345"), 12345u);
}

TEST(ByteSize, RefusesTheRest) {
  for (const char* text :
       {"", "GB", "-1GB", "0", "5 XB", "5GBs", "1e400GB", "nan", "inf GB", "0.1"}) {
    EXPECT_NE(testing::message_of<ConfigError>([&] { parse_byte_size(text); }), "") << text;
  }
}

TEST(ByteSize, MemoryHasAUnit) {
  EXPECT_EQ(parse_memory_size("80GB"), 80'000'000'000u);
  EXPECT_EQ(parse_memory_size("80 kb"), 80'000u);
  EXPECT_EQ(parse_memory_size("25000000000"), 25'000'000'000u);
  for (const char* text : {"80", " 24 ", "0.5", "much"}) {
    EXPECT_NE(testing::message_of<ConfigError>([&] { parse_memory_size(text); }), "") << text;
  }
}

}  // namespace
}  // namespace strata
