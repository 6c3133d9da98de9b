#include "strata/data/source.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/data/split_files.h"

namespace strata::data {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

std::string describe(const Json& value) {
  if (value.is_array()) return "an array";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "a boolean";
  if (value.is_null()) return "null";
  return "a number";
}

// Appends the rows of one file.
class RowReader {
 public:
  RowReader(const std::filesystem::path& path, std::vector<Row>& rows)
      : file_(std::make_shared<const std::string>(path.string())), rows_(rows) {}

  void read_lines(std::string_view text) {
    int64_t line = 1;
    for (size_t begin = 0; begin < text.size(); ++line) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view content = text.substr(begin, end - begin);
      if (content.find_first_not_of(kSpaces) != std::string_view::npos) add(content, line);
      begin = end + 1;
    }
  }

  // Takes an array apart element by element, so that each row knows its line and a large file is
  // never held twice as parsed JSON.
  void read_array(std::string_view text) {
    size_t at = text.find('[') + 1;
    int64_t line = 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n');
    for (bool first = true;; first = false) {
      skip_spaces(text, at, line);
      if (first && at < text.size() && text[at] == ']') {
        ++at;
        break;
      }
      const size_t end = element_end(text, at, line);
      add(text.substr(at, end - at), line);
      line += std::count(text.begin() + static_cast<ptrdiff_t>(at),
                         text.begin() + static_cast<ptrdiff_t>(end), '\n');
      at = end + 1;
      if (text[end] == ']') break;
    }
    if (text.find_first_not_of(kSpaces, at) != std::string_view::npos) {
      throw FormatError("{}:{}: found text after the array, expected the end of the file", *file_,
                        line);
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
        *file_, line);
  }

  void add(std::string_view text, int64_t line) {
    Json fields;
    try {
      fields = parse_json(text, *file_, {.first_line = static_cast<size_t>(line)});
    } catch (const FormatError& error) {
      throw FormatError("{}; a row of a JSON lines file is one object on one line", error.what());
    }
    if (!fields.is_object()) {
      throw FormatError(
          "{}:{}: found {}, expected a JSON object; give each row as "
          "{{\"column\": value, ...}}",
          *file_, line, describe(fields));
    }
    rows_.push_back({.fields = std::move(fields), .file = file_, .line = line});
  }

  std::shared_ptr<const std::string> file_;
  std::vector<Row>& rows_;
};

void read_rows(const std::filesystem::path& path, std::vector<Row>& rows) {
  const MappedFile file(path);
  std::string_view text(reinterpret_cast<const char*>(file.data().data()), file.data().size());
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  const size_t start = text.find_first_not_of(kSpaces);
  RowReader reader(path, rows);
  if (path.extension() == ".json" && start != std::string_view::npos && text[start] == '[') {
    reader.read_array(text);
  } else {
    reader.read_lines(text);
  }
}

}  // namespace

std::string Row::where() const {
  return fmt::format("{}:{}", file ? *file : std::string("row"), line);
}

const Json* Row::find(const std::string& column) const {
  const auto it = fields.find(column);
  return it == fields.end() || it->is_null() ? nullptr : &*it;
}

Split load_split(const std::filesystem::path& file_or_folder, const std::string& split) {
  Split result{.rows = {}, .files = find_split_files(file_or_folder, split)};
  for (const std::filesystem::path& file : result.files) read_rows(file, result.rows);
  if (result.rows.empty()) {
    throw FormatError("{}: found no rows, expected at least one JSON object",
                      result.files.front().string());
  }
  return result;
}

}  // namespace strata::data
