// Oracle: what sh reads.
#include "strata/base/shell_word.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

namespace strata {
namespace {

TEST(ShellWord, IsReadAsItWas) {
  for (const std::string word : {"a.jsonl", "", "my rows.jsonl", "it's", "a'b\"c\\d", "$HOME", "~",
                                 "a;b|c>d&e", "*", "a\nb", "-n", "#x", "東京", "a=b"}) {
    const std::string command = "printf '<%s>' " + shell_word(word);
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
    ASSERT_NE(pipe, nullptr);
    std::string read;
    for (int c = std::fgetc(pipe.get()); c != EOF; c = std::fgetc(pipe.get())) {
      read += static_cast<char>(c);
    }
    EXPECT_EQ(read, "<" + word + ">");
  }
  EXPECT_EQ(shell_word("data/train-1.jsonl"), "data/train-1.jsonl");
}

}  // namespace
}  // namespace strata
