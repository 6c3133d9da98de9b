// Oracle: properties of the page: self-contained, nothing injected, every chart with its data.
#include "strata/report/html_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "strata/report/svg_chart.h"

namespace strata::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) {
    ++count;
  }
  return count;
}

ReportData run_of(int steps) {
  ReportData data;
  data.title = "tiny <model>";
  data.subtitle = "LoRA & friends";
  for (int step = 1; step <= steps; ++step) {
    data.rows.push_back({{"step", step},
                         {"loss", 1 + 3 * std::exp(-step / 20.0)},
                         {"learning_rate", 1e-4},
                         {"tokens_per_second", 1000.0}});
  }
  return data;
}

TEST(HtmlReport, LoadsNothing) {
  ReportData data = run_of(50);
  data.settings = {{"seed", "42"}};
  const std::string page = loss_curve_page(data);
  for (const char* outside : {"src=", "<link", "@import", "url(", "fetch("}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
  EXPECT_THAT(page, HasSubstr("<td>seed</td><td>42</td>"));
}

TEST(HtmlReport, EscapesWhatUsersWrote) {
  ReportData data = run_of(3);
  data.samples = {{"</script><b>", "a", "b"}};
  const std::string page = loss_curve_page(data);
  EXPECT_THAT(page, HasSubstr("<h1>tiny &lt;model&gt;</h1>"));
  EXPECT_THAT(page, HasSubstr("LoRA &amp; friends"));
  EXPECT_EQ(count_of(page, "</script>"), 1u);
}

TEST(HtmlReport, DrawsOnlyWhatWasMeasured) {
  EXPECT_EQ(count_of(loss_curve_page(run_of(3)), "<svg "), 3u);  // loss, learning rate, speed
  EXPECT_EQ(count_of(loss_curve_page(ReportData{}), "<svg "), 0u);
  ReportData without_device = run_of(3);
  for (Json& row : without_device.rows) {
    row["device_memory_mb"] = 0.0;
  }
  EXPECT_EQ(count_of(loss_curve_page(without_device), "<svg "), 3u);
}

TEST(HtmlReport, DrawsEachFigureOfTheRecipe) {
  ReportData data = run_of(40);
  for (Json& row : data.rows) {
    row["logps/chosen"] = -20.5;
    row["rewards/margins"] = 0.25;
    row["rewards/accuracies"] = 0.0;  // a measurement as any other
    row["num_tokens"] = 99.0;
    row["epoch"] = 0.5;
    row["step_seconds"] = {{"total", 0.5}};
  }
  data.rows.push_back({{"step", 40},
                       {"eval_loss", 0.5},
                       {"eval_runtime", 1.5},
                       {"eval_samples_per_second", 8.0},
                       {"eval_num_tokens", 99.0},
                       {"eval_rewards/margins", 0.75},
                       {"eval_accuracy", 0.5}});
  data.rows.push_back({{"step", 40}, {"train_runtime", 2.5}, {"total_flos", 0.0}});
  const std::string page = loss_curve_page(data);
  EXPECT_EQ(count_of(page, "<svg "), 3u + 4u);
  const std::vector<std::string> order = {
      "<h2>Loss</h2>",     "<h2>rewards/margins</h2>", "<h2>rewards/accuracies</h2>",
      "<h2>accuracy</h2>", "<h2>logps/chosen</h2>",    "<h2>Learning rate</h2>"};
  size_t at = 0;
  for (const std::string& title : order) {
    const size_t found = page.find(title);
    ASSERT_NE(found, page.npos) << title;
    EXPECT_GT(found, at) << title;
    at = found;
  }
  // Smoothed and raw, and what evaluations gave.
  EXPECT_THAT(page,
              HasSubstr("{\"name\": \"evaluation\", \"unit\": \"\", \"points\": [[40.0, 0.75]]}"));
  EXPECT_EQ(count_of(page, "</i>smoothed"), 4u);
}

TEST(HtmlReport, SurvivesLossesThatAreNotFinite) {
  ReportData data = run_of(5);
  data.rows[2]["loss"] = std::nan("");
  const std::string page = loss_curve_page(data);
  EXPECT_THAT(page, Not(HasSubstr("nan ")));
  EXPECT_THAT(page, Not(HasSubstr("NaN")));
}

TEST(SvgChart, PicksRoundTicks) {
  EXPECT_THAT(round_ticks(0.3, 4.2, 4), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(round_ticks(0, 100, 5), ElementsAre(0, 20, 40, 60, 80, 100));
}

TEST(SvgChart, ThinsOutByMeans) {
  const std::vector<Point> points = {{1, 1}, {2, 3}, {3, 5}, {4, 7}, {5, 9}};
  EXPECT_EQ(thin_out(points, 10).size(), 5u);
  const auto thinned = thin_out(points, 3);
  ASSERT_EQ(thinned.size(), 3u);
  EXPECT_DOUBLE_EQ(thinned[0].y, 2);
  EXPECT_DOUBLE_EQ(thinned[2].x, 5);
}

TEST(SvgChart, SmoothingKeepsALine) {
  std::vector<Point> line;
  for (int i = 0; i < 100; ++i) {
    line.push_back({static_cast<double>(i), 2.0 - i});
  }
  line.insert(line.begin() + 50, Point{49.5, std::nan("")});
  const auto smoothed = smooth(line);
  ASSERT_EQ(smoothed.size(), 100u);
  for (const Point& point : smoothed) {
    EXPECT_NEAR(point.y, 2.0 - point.x, 1e-9);
  }
}

}  // namespace
}  // namespace strata::report
