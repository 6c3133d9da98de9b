// Oracle: lines as the reference's Trainer prints them, and a terminal emulated by hand.
#include "strata/report/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "strata/report/log_line.h"

namespace strata::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What a terminal shows after "\r", "\x1b[K" and newlines were obeyed.
std::vector<std::string> screen_of(const std::string& bytes) {
  std::vector<std::string> lines = {""};
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes.compare(i, 4, "\r\x1b[K") == 0) {
      lines.back().clear();
      i += 3;
    } else if (bytes[i] == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += bytes[i];
    }
  }
  return lines;
}

StepReport report_at(int64_t step) {
  return {.step = step,
          .loss = 2.5 / static_cast<double>(step),
          .tokens_per_second = 3140,
          .elapsed_seconds = 2.0 * static_cast<double>(step),
          .peak_rss_mb = 412};
}

TEST(LogLine, IsWhatTrainerPrints) {
  const Json values = {{"loss", 4.13268},        {"grad_norm", 1.3571},
                       {"learning_rate", 0.001}, {"num_tokens", int64_t{512}},
                       {"epoch", 0.4},           {"total_flos", 1e12}};
  EXPECT_EQ(log_line(values),
            "{'loss': '4.133', 'grad_norm': '1.357', 'learning_rate': '0.001', 'num_tokens': 512, "
            "'epoch': '0.4'}");
  EXPECT_EQ(four_digits(1.2345678e-5), "1.235e-05");
  EXPECT_EQ(four_digits(0.0), "0");
  EXPECT_EQ(four_digits(2.0), "2");
}

TEST(Progress, SaysWhereTheRunStandsWithoutTerminal) {
  std::string out;
  Progress progress([&out](std::string_view text) { out += text; }, {.total_steps = 500});
  progress.step(report_at(1));
  progress.log({{"loss", 2.5}});
  for (int64_t step = 2; step <= 12; ++step) progress.step(report_at(step));
  progress.log({{"loss", 0.25}});
  progress.log({{"eval_loss", 1.25}});  // of the same step
  progress.message("saved\n");
  progress.step(report_at(500));
  progress.log({{"train_runtime", 9.5}});
  progress.finish();
  EXPECT_EQ(out,
            "1/500  3.1k tokens/s  412 MB\n{'loss': '2.5'}\n"
            "12/500  3.1k tokens/s  16:16 left  412 MB\n{'loss': '0.25'}\n{'eval_loss': '1.25'}\n"
            "saved\n500/500  3.1k tokens/s  412 MB\n{'train_runtime': '9.5'}\n");
}

TEST(Progress, IsNotSilentForLongWithoutTerminal) {
  std::string out;
  Progress progress([&out](std::string_view text) { out += text; }, {.total_steps = 1000});
  for (int64_t step = 1; step <= 70; ++step) progress.step(report_at(step));
  EXPECT_EQ(
      out,
      "31/1000  3.1k tokens/s  32:18 left  412 MB\n61/1000  3.1k tokens/s  31:18 left  412 MB\n");
}

TEST(Progress, WritesOnlyWhatIsLoggedWhenAskedTo) {
  for (const bool is_terminal : {false, true}) {
    std::string out;
    Progress progress([&out](std::string_view text) { out += text; },
                      {.total_steps = 2, .is_terminal = is_terminal, .shows_steps = false});
    progress.step(report_at(1));
    progress.log({{"loss", 2.5}});
    progress.step(report_at(100));
    progress.finish();
    EXPECT_EQ(out, "{'loss': '2.5'}\n");
  }
}

TEST(Progress, KeepsTheBarBelowMessages) {
  std::string out;
  Progress progress([&out](std::string_view text) { out += text; },
                    {.total_steps = 4, .is_terminal = true});
  progress.step(report_at(1));
  progress.message("first");
  progress.log({{"loss", 2.5}, {"grad_norm", 1.5}});
  progress.log({{"eval_loss", 1.25}});
  progress.step(report_at(3));
  progress.finish();
  const auto screen = screen_of(out);
  ASSERT_EQ(screen.size(), 5u);
  EXPECT_EQ(screen[0], "first");
  EXPECT_EQ(screen[1], "{'loss': '2.5', 'grad_norm': '1.5'}");
  EXPECT_EQ(screen[2], "{'eval_loss': '1.25'}");
  EXPECT_THAT(screen[3], HasSubstr("3/4  loss 0.8333  0:02 left  3.1k tokens/s  412 MB"));
  EXPECT_EQ(screen[4], "");
}

TEST(Progress, NeverReachesTheLastColumn) {
  for (int columns = 1; columns < 140; ++columns) {
    std::string out;
    Progress progress(
        [&out](std::string_view text) { out += text; },
        {.total_steps = 100000, .is_terminal = true, .unicode = false, .columns = [columns] {
           return columns;
         }});
    progress.step(report_at(1));
    progress.step(report_at(99999));
    const std::string line = screen_of(out).back();
    EXPECT_LT(line.size(), static_cast<size_t>(columns)) << line;
  }
}

TEST(Progress, DropsWhatDoesNotFit) {
  std::string out;
  Progress progress([&out](std::string_view text) { out += text; },
                    {.total_steps = 4, .is_terminal = true, .columns = [] { return 34; }});
  progress.step(report_at(1));
  const std::string line = screen_of(out).back();
  EXPECT_THAT(line, HasSubstr("1/4  loss 2.5"));
  EXPECT_THAT(line, Not(HasSubstr("MB")));
}

TEST(Progress, FinishesWhenDestroyed) {
  std::string out;
  {
    Progress progress([&out](std::string_view text) { out += text; },
                      {.total_steps = 4, .is_terminal = true});
    progress.step(report_at(1));
  }
  EXPECT_EQ(out.back(), '\n');
}

TEST(Units, AreShort) {
  EXPECT_EQ(clock_text(3723), "1:02:03");
  EXPECT_EQ(clock_text(245), "4:05");
  EXPECT_EQ(short_count(731), "731");
  EXPECT_EQ(short_count(5432), "5.4k");
  EXPECT_EQ(short_count(54321), "54k");
  EXPECT_EQ(short_count(999.6), "1.0k");
  EXPECT_EQ(short_memory(412.4), "412 MB");
  EXPECT_EQ(short_memory(1945.6), "1.9 GB");
}

}  // namespace
}  // namespace strata::report
