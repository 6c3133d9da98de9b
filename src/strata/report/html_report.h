// The page that a run leaves behind: one self-contained HTML file with the curves of loss, of the
// recipe's figures and of the machine, the settings and, if given, answers before and after. Never:
// reads files or draws lines itself (svg_chart.h does).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "strata/base/json.h"

namespace strata::report {

struct Sample {
  std::string prompt;
  std::string before;  // may be empty
  std::string after;
};

struct ReportData {
  std::string title;       // the model's name, for example
  std::string subtitle;    // what was done to it: data set, method, ranks
  std::vector<Json> rows;  // as in metrics.jsonl
  std::vector<std::pair<std::string, std::string>>
      settings;  // name, value; in the order to be shown
  std::vector<Sample> samples;
};

// The whole page. Loads nothing from anywhere and follows the reader's light or dark setting.
std::string loss_curve_page(const ReportData& data);

}  // namespace strata::report
