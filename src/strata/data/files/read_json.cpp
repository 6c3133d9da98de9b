// Rows of JSON lines and of JSON arrays, each with the line where it begins.
#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/data/files/row_collector.h"

namespace strata::data {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

class JsonReader {
 public:
  explicit JsonReader(RowCollector& rows) : rows_(rows) {}

  void read_lines(std::string_view text) {
    int64_t line = 1;
    for (size_t begin = 0; begin < text.size() && rows_.wants_more(); ++line) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view content = text.substr(begin, end - begin);
      rows_.move_to(end, text.size());
      if (content.find_first_not_of(kSpaces) != std::string_view::npos) add(content, line);
      begin = end + 1;
    }
  }

  // Takes an array apart element by element, so that each row knows its line and a large file is
  // never held twice as parsed JSON.
  void read_array(std::string_view text) {
    size_t at = text.find('[') + 1;
    int64_t line = 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n');
    for (bool first = true; rows_.wants_more(); first = false) {
      skip_spaces(text, at, line);
      if (first && at < text.size() && text[at] == ']') {
        ++at;
        break;
      }
      const size_t end = element_end(text, at, line);
      rows_.move_to(end, text.size());
      add(text.substr(at, end - at), line);
      line += std::count(text.begin() + static_cast<ptrdiff_t>(at),
                         text.begin() + static_cast<ptrdiff_t>(end), '\n');
      at = end + 1;
      if (text[end] == ']') break;
    }
    if (rows_.wants_more() && text.find_first_not_of(kSpaces, at) != std::string_view::npos) {
      throw FormatError("{}:{}: found text after the array, expected the end of the file",
                        rows_.file(), line);
    }
  }

 private:
  static void skip_spaces(std::string_view text, size_t& at, int64_t& line) {
    for (; at < text.size() && kSpaces.find(text[at]) != std::string_view::npos; ++at) {
      line += text[at] == '\n';
    }
  }

  // Where the element that begins at `at` ends: the comma or bracket behind it.
  size_t element_end(std::string_view text, size_t at, int64_t line) const {
    int depth = 0;
    bool in_string = false;
    for (size_t i = at; i < text.size(); ++i) {
      const char c = text[i];
      if (in_string) {
        if (c == '\\') ++i;
        in_string = c != '"';
      } else if (c == '"') {
        in_string = true;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if (depth == 0 && (c == ',' || c == ']')) {
        return i;
      } else if (c == '}' || c == ']') {
        --depth;
      }
    }
    throw FormatError(
        "{}:{}: found the end of the file inside this element, expected a closed "
        "array; the file may be cut off",
        rows_.file(), line);
  }

  void add(std::string_view text, int64_t line) {
    Json fields;
    try {
      fields = parse_json(text, rows_.file(), {.first_line = static_cast<size_t>(line)});
    } catch (const FormatError& error) {
      return rows_.refuse(
          fmt::format("{}; a row of a JSON lines file is one object on one line", error.what()));
    }
    rows_.add(std::move(fields), line);
  }

  RowCollector& rows_;
};

}  // namespace

void read_json_rows(std::string_view text, RowCollector& rows) {
  const size_t start = text.find_first_not_of(kSpaces);
  JsonReader reader(rows);
  if (start != std::string_view::npos && text[start] == '[') {
    reader.read_array(text);
  } else {
    reader.read_lines(text);
  }
}

}  // namespace strata::data
