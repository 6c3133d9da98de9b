// Oracle: escapes written by hand; for JSON, the parsed document.
#include "strata/base/visible_text.h"

#include <gtest/gtest.h>

#include "strata/base/json.h"

namespace strata {
namespace {

using namespace std::string_literals;

TEST(Visible, EscapesWhatATerminalObeys) {
  EXPECT_EQ(visible("a\x1b[2Jb"), "a\\u001b[2Jb");
  EXPECT_EQ(visible("safe\rfake\b\b"), "safe\\rfake\\b\\b");
  EXPECT_EQ(visible("a\0b\a\x7f"s), "a\\u0000b\\u0007\\u007f");
  EXPECT_EQ(visible("\xc2\x9b"
                    "31m"),
            "\\u009b31m");
  EXPECT_EQ(visible("x\xe2\x80\xae"
                    "y\xe2\x80\xaa\xe2\x81\xa6\xe2\x81\xa9"),
            "x\\u202ey\\u202a\\u2066\\u2069");
  EXPECT_EQ(visible("a\xe2\x80\xa8\xe2\x80\xa9"), "a\\u2028\\u2029");
}

TEST(Visible, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(visible("a\x9b\xff\xe6\x9d"), "a\\x9b\\xff\\xe6\\x9d");
  EXPECT_EQ(visible("\xc0\x9b\xed\xa0\x80"), "\\xc0\\x9b\\xed\\xa0\\x80");
}

TEST(Visible, LeavesTextAsItIs) {
  // Letters of all lengths, joiners of emoji and of Persian, marks of direction, a soft hyphen.
  for (const std::string& text :
       {""s, "line\n\ttab \\r \\u001b"s, "na\xc3\xafve \xe6\x9d\xb1\xe4\xba\xac \xf0\x9f\x8e\x89"s,
        "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80 \xd9\x85\xdb\x8c\xe2\x80\x8c\xd8\xae"s,
        "\xd7\xa9\xe2\x80\x8f! \xc2\xad\xc2\xa0"s}) {
    EXPECT_EQ(visible(text), text);
    EXPECT_EQ(visible(visible(text)), visible(text));
  }
}

TEST(Visible, KeepsTheMeaningOfJson) {
  const std::string text = "{\"a\": \"\x7f\xc2\x85\xe2\x80\xae\xe2\x80\xa8\"}";
  const std::string shown = visible(text);
  EXPECT_EQ(shown, "{\"a\": \"\\u007f\\u0085\\u202e\\u2028\"}");
  EXPECT_EQ(parse_json(shown, "shown"), parse_json(text, "text"));
}

}  // namespace
}  // namespace strata
