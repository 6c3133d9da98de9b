#include "strata/report/html_report.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "strata/report/figures.h"
#include "strata/report/log_line.h"
#include "strata/report/page_style.h"
#include "strata/report/progress.h"
#include "strata/report/svg_chart.h"

namespace strata::report {
namespace {

constexpr size_t kPointsPerLine = 800;
// From this many points on a smoothed line lies over the raw one.
constexpr size_t kSmoothFrom = 30;

std::vector<Point> points_of(const std::vector<Json>& rows, const std::string& key) {
  std::vector<Point> points;
  for (const Json& row : rows) {
    const auto step = number_at(row, "step");
    const auto value = number_at(row, key);
    if (step && value) {
      points.push_back({*step, *value});
    }
  }
  return thin_out(points, kPointsPerLine);
}

// What training and evaluations logged under a name.
Chart both_lines(const std::vector<Json>& rows, const std::string& key, Chart chart) {
  const std::vector<Point> train = points_of(rows, key);
  const bool is_smoothed = train.size() >= kSmoothFrom;
  chart.series.push_back({"training", is_smoothed ? "raw" : "train", train});
  if (is_smoothed) {
    chart.series.push_back({"smoothed", "train", smooth(train)});
  }
  chart.series.push_back(
      {"evaluation", "eval", points_of(rows, kEvaluationPrefix + key), /*has_marks=*/true});
  return chart;
}

Chart loss_chart(const std::vector<Json>& rows) {
  return both_lines(rows, "loss",
                    {.title = "Loss", .unit = "", .series = {}, .width = 980, .height = 330});
}

// Empty where nothing was measured: a run without accelerator logs zeros for its memory.
Chart small_chart(const ReportData& data, const char* title, const char* key, const char* css_class,
                  const char* unit) {
  Chart chart{.title = title, .unit = unit, .series = {}, .starts_at_zero = true};
  const std::vector<Point> points = points_of(data.rows, key);
  if (std::ranges::any_of(points, [](const Point& point) { return point.y != 0; })) {
    chart.series.push_back({title, css_class, points});
  }
  return chart;
}

// Collects the charts' data for the script, in document order.
class ChartWriter {
 public:
  // A card with its chart; empty when there is nothing to draw.
  std::string card(Chart chart) {
    std::erase_if(chart.series, [](const Series& series) { return series.points.empty(); });
    const std::string svg = draw_chart(chart);
    if (svg.empty()) {
      return {};
    }
    Json lines = Json::array();
    for (const Series& series : chart.series) {
      Json points = Json::array();
      for (const Point& point : series.points) {
        if (std::isfinite(point.y)) {
          points.push_back({point.x, point.y});
        }
      }
      std::string name = series.name;
      std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
      if (!points.empty()) {
        lines.push_back({{"name", name}, {"unit", chart.unit}, {"points", points}});
      }
    }
    data_.push_back(lines);
    return fmt::format("<section class=\"card\">{}<h2>{}</h2>{}</section>\n", legend(chart),
                       escape_html(chart.title), svg);
  }

  std::string script() const {
    std::string json = dump_python(data_, /*indent=*/-1, /*sort_keys=*/false);
    // "</script>" inside a name must not end the element.
    for (size_t at = 0; (at = json.find("</", at)) != std::string::npos; at += 3) {
      json.replace(at, 2, "<\\/");
    }
    return fmt::format("<script>\nconst charts = {};{}</script>\n", json, kPageScript);
  }

 private:
  static std::string legend(const Chart& chart) {
    if (chart.series.size() < 2) {
      return {};
    }
    std::string html = "<span class=\"legend\">";
    for (const Series& series : chart.series) {
      html += fmt::format("<i class=\"{}\"{}></i>{}", series.css_class,
                          series.css_class == "raw" ? " style=\"opacity:.35\"" : "",
                          escape_html(series.name));
    }
    return html + "</span>";
  }

  Json data_ = Json::array();
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

std::string tile(const std::string& value, const std::string& label) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>", escape_html(value),
                     label);
}

std::string tiles(const std::vector<Json>& rows) {
  std::optional<double> loss, eval_loss, steps, seconds;
  std::vector<double> speeds;
  double memory = 0;
  for (const Json& row : rows) {
    const auto update = [&row](std::optional<double>& target, const char* key) {
      if (const auto value = number_at(row, key)) {
        target = value;
      }
    };
    if (!loss) update(loss, "train_loss");  // a run too short for a log
    update(loss, "loss");
    update(eval_loss, "eval_loss");
    update(steps, "step");
    update(seconds, "elapsed_seconds");
    if (const auto speed = number_at(row, "tokens_per_second")) {
      speeds.push_back(*speed);
    }
    memory = std::max(memory, number_at(row, "peak_rss_mb").value_or(0));
  }
  std::string html = "<div class=\"tiles\">";
  html += loss ? tile(four_digits(*loss), "training loss") : "";
  html += eval_loss ? tile(four_digits(*eval_loss), "evaluation loss") : "";
  html += steps ? tile(fmt::format("{:.0f}", *steps), "steps") : "";
  html += speeds.empty() ? "" : tile(short_count(median(speeds)), "tokens per second");
  html += seconds ? tile(clock_text(*seconds), "of the run's time") : "";
  html += memory > 0 ? tile(short_memory(memory), "peak memory per rank") : "";
  return html + "</div>\n";
}

std::string samples(const std::vector<Sample>& samples) {
  if (samples.empty()) {
    return {};
  }
  std::string html = "<section class=\"card\"><h2>Answers</h2>";
  for (const Sample& sample : samples) {
    html +=
        fmt::format("<div class=\"sample\"><p><em>question</em>{}</p>", escape_html(sample.prompt));
    if (!sample.before.empty()) {
      html += fmt::format("<p class=\"before\"><em>before</em>{}</p>", escape_html(sample.before));
    }
    html += fmt::format("<p class=\"after\"><em>after</em>{}</p></div>", escape_html(sample.after));
  }
  return html + "</section>\n";
}

std::string settings(const ReportData& data) {
  if (data.settings.empty()) {
    return {};
  }
  std::string html = "<section class=\"card\"><details open><summary>Settings</summary><table>";
  for (const auto& [name, value] : data.settings) {
    html += fmt::format("<tr><td>{}</td><td>{}</td></tr>", escape_html(name), escape_html(value));
  }
  return html + "</table></details></section>\n";
}

// Side by side, two in a row of a wide page.
std::string pair(const std::string& cards) {
  return cards.empty() ? "" : "<div class=\"pair\">" + cards + "</div>\n";
}

std::string figure_cards(const std::vector<Json>& rows, ChartWriter& charts) {
  std::string cards;
  for (const std::string& name : recipe_figures(rows)) {
    cards += charts.card(both_lines(rows, name, {.title = name, .unit = "", .series = {}}));
  }
  return pair(cards);
}

std::string machine_cards(const ReportData& data, ChartWriter& charts) {
  std::string cards;
  const auto add = [&](const char* title, const char* key, const char* css_class,
                       const char* unit) {
    cards += charts.card(small_chart(data, title, key, css_class, unit));
  };
  add("Learning rate", "learning_rate", "violet", "");
  add("Gradient norm", "grad_norm", "amber", "");
  add("Tokens per second", "tokens_per_second", "green", "");
  add("Peak memory of a rank, MB", "peak_rss_mb", "train", " MB");
  add("Peak device memory, MB", "device_memory_mb", "eval", " MB");
  return pair(cards);
}

}  // namespace

std::string loss_curve_page(const ReportData& data) {
  ChartWriter charts;
  std::string body = fmt::format("<h1>{}</h1>\n<p class=\"subtitle\">{}</p>\n",
                                 escape_html(data.title), escape_html(data.subtitle));
  body += tiles(data.rows);
  body += charts.card(loss_chart(data.rows));
  body += figure_cards(data.rows, charts);
  body += samples(data.samples);
  body += machine_cards(data, charts);
  body += settings(data);
  return fmt::format(
      "<!doctype html>\n"
      "<html lang=\"en\">\n"
      "<head>\n"
      "<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0}</title>\n"
      "<style>{1}</style>\n"
      "</head>\n"
      "<body>\n"
      "<main>\n"
      "{2}<footer>Written by Strata. The numbers are in metrics.jsonl next to this page.</footer>\n"
      "</main>\n"
      "{3}</body>\n"
      "</html>\n",
      escape_html(data.title), kPageStyle, body, charts.script());
}

}  // namespace strata::report
