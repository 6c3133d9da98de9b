// Line charts as SVG text that takes its colours from the page's style. Never: whole pages,
// scripts.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace strata::report {

struct Point {
  double x;
  double y;
};

struct Series {
  std::string name;
  std::string css_class;      // "train", "eval", ...: the page's style gives stroke and fill
  std::vector<Point> points;  // x ascending; points that are not finite break the line
  bool has_marks = false;     // a dot on each point, for the few evaluations
};

struct Chart {
  std::string title;
  std::string unit;  // shown after values, may be empty
  std::vector<Series> series;
  int width = 460;
  int height = 210;
  bool starts_at_zero = false;
};

// At most `limit` points: the means of runs of neighbours. Few points stay as they are.
std::vector<Point> thin_out(const std::vector<Point>& points, size_t limit);

// Means over a centred window of about a 20th of the series; points that are not finite are left
// out.
std::vector<Point> smooth(const std::vector<Point>& points);

// About `wanted` round values (1, 2 or 5 times a power of ten) that lie within [low, high].
std::vector<double> round_ticks(double low, double high, int wanted);

// "0.0002", "1.2k", "3.41": short, for axes.
std::string axis_label(double value);

// The <svg> element. Carries its scale in data- attributes, so that a script can find the values
// under the pointer. Empty text when no series has a finite point.
std::string draw_chart(const Chart& chart);

// Replaces & < > " ' for use in HTML text and attributes, and control characters by visible
// escapes: HTML has no place for them, and some turn the text after them around.
std::string escape_html(const std::string& text);

}  // namespace strata::report
