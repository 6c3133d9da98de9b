#include "strata/report/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include <fmt/format.h>

#include "strata/base/visible_text.h"

namespace strata::report {
namespace {

constexpr int kLeft = 52, kRight = 14, kTop = 12, kBottom = 26;

struct Scale {
  double low_x, high_x, low_y, high_y;
  int width, height;

  double x(double value) const {
    return kLeft + (value - low_x) / (high_x - low_x) * (width - kLeft - kRight);
  }
  double y(double value) const {
    return height - kBottom - (value - low_y) / (high_y - low_y) * (height - kTop - kBottom);
  }
};

bool is_finite(const Point& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

// Widens an empty range so that one value lies in its middle.
void widen(double& low, double& high) {
  if (low == high) {
    const double margin = low == 0 ? 1 : std::abs(low) * 0.5;
    low -= margin;
    high += margin;
  }
}

Scale scale_of(const Chart& chart) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Scale scale{kInfinity, -kInfinity, kInfinity, -kInfinity, chart.width, chart.height};
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) {
      if (is_finite(point)) {
        scale.low_x = std::min(scale.low_x, point.x);
        scale.high_x = std::max(scale.high_x, point.x);
        scale.low_y = std::min(scale.low_y, point.y);
        scale.high_y = std::max(scale.high_y, point.y);
      }
    }
  }
  if (scale.low_x > scale.high_x) {
    return scale;
  }
  if (chart.starts_at_zero && scale.low_y >= 0) {
    scale.low_y = 0;
  }
  widen(scale.low_x, scale.high_x);
  widen(scale.low_y, scale.high_y);
  const double margin = (scale.high_y - scale.low_y) * 0.06;
  scale.high_y += margin;
  if (scale.low_y != 0) {
    scale.low_y -= margin;
  }
  return scale;
}

std::string draw_axes(const Scale& scale) {
  std::string svg;
  const int right = scale.width - kRight, bottom = scale.height - kBottom;
  for (const double tick : round_ticks(scale.low_y, scale.high_y, scale.height / 45)) {
    const double y = scale.y(tick);
    svg += fmt::format(R"(<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>)", kLeft,
                       right, y, y);
    svg += fmt::format(R"(<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>)",
                       kLeft - 8, y + 4, axis_label(tick));
  }
  for (const double tick : round_ticks(scale.low_x, scale.high_x, scale.width / 90)) {
    if (tick == std::floor(tick)) {  // steps are whole
      svg += fmt::format(R"(<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>)",
                         scale.x(tick), bottom + 18, axis_label(tick));
    }
  }
  return svg + fmt::format(R"(<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>)", kLeft, right,
                           bottom, bottom);
}

std::string draw_series(const Series& series, const Scale& scale) {
  std::string path, marks;
  bool pen_is_down = false;
  for (const Point& point : series.points) {
    if (!is_finite(point)) {
      pen_is_down = false;
      continue;
    }
    path +=
        fmt::format("{}{:.1f} {:.1f}", pen_is_down ? "L" : "M", scale.x(point.x), scale.y(point.y));
    pen_is_down = true;
    if (series.has_marks || series.points.size() == 1) {
      marks += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3.5"/>)", scale.x(point.x),
                           scale.y(point.y));
    }
  }
  return fmt::format(R"(<g class="line {}"><path d="{}"/>{}</g>)", series.css_class, path, marks);
}

}  // namespace

std::vector<Point> thin_out(const std::vector<Point>& points, size_t limit) {
  const size_t run = (points.size() + limit - 1) / limit;
  if (run <= 1) {
    return points;
  }
  std::vector<Point> thinned;
  for (size_t begin = 0; begin < points.size(); begin += run) {
    const size_t end = std::min(points.size(), begin + run);
    Point sum{0, 0};
    for (size_t i = begin; i < end; ++i) {
      sum.x += points[i].x;
      sum.y += points[i].y;
    }
    const double count = static_cast<double>(end - begin);
    thinned.push_back({sum.x / count, sum.y / count});
  }
  return thinned;
}

std::vector<Point> smooth(const std::vector<Point>& points) {
  std::vector<Point> finite;
  std::ranges::copy_if(points, std::back_inserter(finite), is_finite);
  const size_t count = finite.size();
  std::vector<Point> smoothed;
  for (size_t i = 0; i < count; ++i) {
    // Narrower towards the ends, so that the window stays centred and the line does not lag.
    const size_t reach = std::min({i, count - 1 - i, std::max<size_t>(3, count / 40)});
    double sum = 0;
    for (size_t k = i - reach; k <= i + reach; ++k) {
      sum += finite[k].y;
    }
    smoothed.push_back({finite[i].x, sum / static_cast<double>(2 * reach + 1)});
  }
  return smoothed;
}

std::vector<double> round_ticks(double low, double high, int wanted) {
  const double rough = (high - low) / std::max(1, wanted);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = power * 10;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (power * factor >= rough) {
      step = power * factor;
      break;
    }
  }
  std::vector<double> ticks;
  for (double i = std::ceil(low / step); i * step <= high; ++i) {
    ticks.push_back(i * step);
  }
  return ticks;
}

std::string axis_label(double value) {
  if (std::abs(value) >= 1e4) {
    return value >= 1e6 ? fmt::format("{:.4g}M", value / 1e6) : fmt::format("{:.4g}k", value / 1e3);
  }
  return std::abs(value) < 1e-12 ? "0" : fmt::format("{:.4g}", value);
}

std::string draw_chart(const Chart& chart) {
  const Scale scale = scale_of(chart);
  if (scale.low_x > scale.high_x) {
    return {};
  }
  std::string svg = fmt::format(
      R"(<svg viewBox="0 0 {0} {1}" role="img" aria-label="{2}" data-x0="{3}" data-x1="{4}" )"
      R"(data-y0="{5}" data-y1="{6}" data-left="{7}" data-right="{8}" data-top="{9}" data-bottom="{10}">)",
      chart.width, chart.height, escape_html(chart.title), scale.low_x, scale.high_x, scale.low_y,
      scale.high_y, kLeft, chart.width - kRight, kTop, chart.height - kBottom);
  svg += draw_axes(scale);
  for (const Series& series : chart.series) {
    svg += draw_series(series, scale);
  }
  return svg + "</svg>";
}

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char c : visible(text)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

}  // namespace strata::report
