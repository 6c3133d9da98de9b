// What `strata preview` shows, and its HTML page. Never reads settings or data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace strata::cli {

struct PreviewToken {
  std::string text;  // what it adds to the decoded text
  int32_t id = 0;
  bool is_trained = false;
  bool is_special = false;
};

struct PreviewDocument {
  std::string name;  // "document 2 of 3", or which answer of a pair it is
  std::vector<PreviewToken> tokens;
};

struct PreviewRow {
  int64_t index = 0;  // in the prepared set
  std::vector<PreviewDocument> documents;
};

struct Preview {
  std::string title;
  std::vector<std::pair<std::string, std::string>> facts;  // name, value
  std::vector<std::string> warnings;
  int64_t bar_tokens = 1;     // width of a bar of the length histogram
  std::vector<int64_t> bars;  // rows by length
  std::vector<PreviewRow> rows;
};

// A line of the length histogram.
struct LengthBar {
  std::string lengths;  // "0-99"
  int64_t rows = 0;
};

// From the first bar with a row on; consecutive empty ones are one line.
std::vector<LengthBar> length_bars(const Preview& preview);

// A page of one file that loads nothing from elsewhere.
std::string preview_page(const Preview& preview);

}  // namespace strata::cli
