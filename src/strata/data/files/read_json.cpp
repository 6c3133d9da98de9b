// Rows of JSON lines and of JSON arrays, each with the line where it begins.
#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/exact_json.h"
#include "strata/data/files/column_advice.h"
#include "strata/data/files/known_exports.h"
#include "strata/data/files/row_collector.h"

namespace strata::data {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

// Of two values of one key a reader would have to leave one out. The reference's does so in an
// array, and refuses in lines.
JsonOptions row_options(int64_t line) {
  return {.first_line = static_cast<size_t>(line), .duplicates = DuplicateKeys::kReject};
}

class JsonReader {
 public:
  explicit JsonReader(RowCollector& rows) : rows_(rows) {}

  void read_lines(std::string_view text) {
    int64_t line = 1;
    for (size_t begin = 0; begin < text.size() && rows_.wants_more(); ++line) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view content = text.substr(begin, end - begin);
      rows_.move_to(end, text.size());
      const bool is_blank = content.find_first_not_of(kSpaces) == std::string_view::npos;
      if (!is_blank && !rows_.passes_over()) add_line(content, line);
      begin = end + 1;
    }
  }

  // Takes an array apart element by element, so that each row knows its line and a large file is
  // never held twice as parsed JSON.
  void read_array(std::string_view text) {
    size_t at = text.find('[') + 1;
    int64_t line = 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n');
    int64_t last_line = 0;  // of the row before
    for (int64_t number = 1; rows_.wants_more(); ++number) {
      skip_spaces(text, at, line);
      if (number == 1 && at < text.size() && text[at] == ']') {
        ++at;
        break;
      }
      const size_t end = element_end(text, at, line);
      if (at == end && text[end] == ']') {
        throw FormatError(
            "{}:{}: found a comma after the last row, expected the array's end; remove the comma",
            rows_.file(), line);
      }
      rows_.move_to(end, text.size());
      if (!rows_.passes_over()) {
        add_element(text, {at, end}, line, line == last_line ? number : 0);
      }
      last_line = line;
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

  // Where the element that begins at `at` ends: the comma or bracket after it.
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

  void add_line(std::string_view text, int64_t line) {
    Json fields;
    try {
      fields = parse_json_exactly(text, rows_.file(), row_options(line));
    } catch (const FormatError& error) {
      const bool is_python = text.substr(text.find_first_not_of(kSpaces)).starts_with("{'");
      return rows_.refuse(
          fmt::format("{}; {}", error.what(),
                      is_python ? "single quotes are Python's: write each row with json.dumps"
                                : "a row of a JSON lines file is one object on one line"));
    }
    rows_.add(std::move(fields), line);
  }

  // `bytes` of the array's text, from and to.
  void add_element(std::string_view text, std::pair<size_t, size_t> bytes, int64_t line,
                   int64_t number) {
    const auto [begin, end] = bytes;
    const JsonOptions options = row_options(line);
    Json fields;
    try {
      fields = parse_json_exactly(text.substr(begin, end - begin), rows_.file(), options);
    } catch (const FormatError& plain) {
      return rows_.refuse(error_in_file(text, bytes, options, plain.what()) +
                          (number == 0 ? "" : fmt::format("; it is in row {}", number)));
    }
    rows_.add(std::move(fields), line, number);
  }

  // The message of an element that cannot be parsed, with its columns counted from where its line
  // begins in the file.
  std::string error_in_file(std::string_view text, std::pair<size_t, size_t> bytes,
                            const JsonOptions& options, const std::string& otherwise) const {
    const auto [begin, end] = bytes;
    const size_t line_begin = text.rfind('\n', begin) + 1;  // 0 where there is none
    const std::string_view before = text.substr(line_begin, begin - line_begin);
    const auto is_first_byte = [](char c) {
      return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    };
    const auto columns = static_cast<size_t>(std::ranges::count_if(before, is_first_byte));
    try {
      parse_json_exactly(std::string(columns, ' ').append(text.substr(begin, end - begin)),
                         rows_.file(), options);
    } catch (const FormatError& error) {
      return error.what();
    }
    return otherwise;
  }

  RowCollector& rows_;
};

// An object over several lines is no row of a JSON lines file, and nothing but its first line would
// be told of it.
void reject_object_over_lines(std::string_view text, const std::string& file) {
  const size_t line_end = std::min(text.find('\n', text.find('{')), text.size());
  if (text.find_first_not_of(kSpaces, line_end) == std::string_view::npos) return;
  Json object;
  try {
    parse_json(text.substr(0, line_end), file);
    return;
  } catch (const FormatError&) {
    try {
      object = parse_json(text, file);
    } catch (const FormatError&) {
      return;  // told by line
    }
  }
  refuse_lists_of_rows(object, file, file);
  throw FormatError(
      "{}: found one object over several lines, expected one row on each line, or an array of "
      "rows; write it on one line: {}",
      file, jq_command(file, ".", rewritten_name(file)));
}

}  // namespace

void read_json_rows(std::string_view text, RowCollector& rows) {
  const size_t start = text.find_first_not_of(kSpaces);
  JsonReader reader(rows);
  if (start != std::string_view::npos && text[start] == '{') {
    reject_object_over_lines(text, rows.file());
  }
  if (start != std::string_view::npos && text[start] == '[') {
    reader.read_array(text);
  } else {
    reader.read_lines(text);
  }
}

}  // namespace strata::data
