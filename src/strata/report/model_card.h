// README.md of a result: the front matter that the Hub reads, what was trained on what, last
// figures and settings. Never: reads or writes files.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strata/base/json.h"

namespace strata::report {

struct ModelCard {
  std::string title;
  std::string summary;                // a sentence
  std::string base_model = {};        // on the Hub; may be empty
  std::vector<std::string> datasets;  // on the Hub
  std::string library;                // that loads the result
  std::vector<std::string> tags;
  std::vector<Json> rows;  // as in metrics.jsonl, up to the step of the result
  std::vector<std::pair<std::string, std::string>> settings;  // name, value; as to be shown
  std::string command;                                        // that does the same again
};

std::string model_card_text(const ModelCard& card);

// Whether a README.md is one that model_card_text() made, which a later one may take the place of:
// who keeps it as their own removes the line that says so.
bool is_model_card(std::string_view readme);

}  // namespace strata::report
