// Rows of CSV files and of plain text.
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/data/files/row_collector.h"
#include "strata/text/utf8.h"

namespace strata::data {
namespace {

// What the reference's CSV reader (pandas) takes for no value, in quotes or not.
bool is_missing(const std::string& text) {
  static const std::set<std::string_view> words = {
      "",     "#N/A",   "#N/A N/A", "#NA",  "-1.#IND", "-1.#QNAN", "-NaN",
      "-nan", "1.#IND", "1.#QNAN",  "<NA>", "N/A",     "NA",       "NULL",
      "NaN",  "None",   "n/a",      "nan",  "null"};
  return words.contains(text);
}

// Cuts a text into records and counts its lines.
class CsvScanner {
 public:
  CsvScanner(std::string_view text, char separator, const std::string& subject)
      : text_(text), separator_(separator), subject_(subject) {}

  bool at_end() const { return at_ >= text_.size(); }
  size_t position() const { return at_; }
  // The line where the next record begins.
  int64_t line() const { return line_; }

  // Over lines without content, which pandas does not count as records: nothing, or blanks that
  // separate no fields.
  void skip_blank_lines() {
    while (!at_end()) {
      size_t end = at_;
      while (end < text_.size() && is_blank(text_[end])) ++end;
      if (end < text_.size() && text_[end] != '\n' && text_[end] != '\r') return;
      at_ = end;
      if (at_ < text_.size()) end_line();
    }
  }

  std::vector<std::string> next() {
    std::vector<std::string> fields;
    while (true) {
      fields.push_back(next_field());
      if (at_ >= text_.size()) return fields;
      if (text_[at_] != separator_) {
        end_line();
        return fields;
      }
      ++at_;
    }
  }

 private:
  bool is_blank(char c) const { return (c == ' ' || c == '\t') && c != separator_; }

  // Over its \n, \r\n or \r.
  void end_line() {
    at_ += text_.substr(at_).starts_with("\r\n") ? 2 : 1;
    ++line_;
  }

  bool ends_field(char c) const { return c == separator_ || c == '\n' || c == '\r'; }

  std::string next_field() {
    std::string field;
    if (at_ < text_.size() && text_[at_] == '"') take_quoted(field);
    const size_t begin = at_;
    while (at_ < text_.size() && !ends_field(text_[at_])) ++at_;
    return field.append(text_.substr(begin, at_ - begin));
  }

  void take_quoted(std::string& into) {
    const int64_t first_line = line_;
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        if (at_ + 1 >= text_.size() || text_[at_ + 1] != '"') {
          ++at_;
          return;
        }
        ++at_;
      }
      line_ += c == '\n';
      into += c;
    }
    throw FormatError(
        "{}:{}: found the end of the file inside a quoted field, expected a closing quote; the "
        "file may be cut off",
        subject_, first_line);
  }

  std::string_view text_;
  char separator_;
  const std::string& subject_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

std::vector<std::string> read_header(CsvScanner& scanner, const std::string& subject) {
  if (scanner.at_end()) {
    throw FormatError("{}: found an empty file, expected a first line with the columns' names",
                      subject);
  }
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (std::string& field : scanner.next()) {
    if (!field.empty() && !seen.insert(field).second) {
      throw FormatError("{}:1: found the column \"{}\" twice, expected every name once", subject,
                        field);
    }
    names.push_back(std::move(field));
  }
  // The index that pandas writes before its columns, under the name that pandas reads it by.
  for (size_t i = 0; i < names.size(); ++i) {
    if (!names[i].empty()) continue;
    const std::string unnamed = fmt::format("Unnamed: {}", i);
    names[i] = unnamed;
    for (int taken = 1; !seen.insert(names[i]).second; ++taken) {
      names[i] = fmt::format("{}.{}", unnamed, taken);
    }
  }
  return names;
}

// Spreadsheets of many countries write a list's semicolons into files that end with .csv.
void require_separator(const std::vector<std::string>& names, char separator,
                       const std::string& subject) {
  if (names.size() != 1 || separator != ',') return;
  const size_t at = names[0].find_first_of(";\t");
  if (at == std::string::npos) return;
  const bool is_tab = names[0][at] == '\t';
  throw FormatError(
      "{}:1: found \"{}\" as the only column, expected names separated by commas; save it {}",
      subject, names[0],
      is_tab ? "under a name that ends with .tsv" : "with commas instead of semicolons");
}

}  // namespace

void read_csv_rows(std::string_view text, char separator, RowCollector& rows) {
  CsvScanner scanner(text, separator, rows.file());
  scanner.skip_blank_lines();
  const std::vector<std::string> names = read_header(scanner, rows.file());
  require_separator(names, separator, rows.file());
  for (scanner.skip_blank_lines(); !scanner.at_end() && rows.wants_more();
       scanner.skip_blank_lines()) {
    const int64_t line = scanner.line();
    const std::vector<std::string> fields = scanner.next();
    rows.move_to(scanner.position(), text.size());
    if (fields.size() != names.size()) {
      rows.refuse(fmt::format("{}:{}: found {} fields, expected {} as in the first line",
                              rows.file(), line, fields.size(), names.size()));
      continue;
    }
    if (rows.passes_over()) continue;
    Json row = Json::object();
    bool is_good = true;
    for (size_t i = 0; i < fields.size() && is_good; ++i) {
      is_good = text::is_valid_utf8(fields[i]);
      row[names[i]] = is_missing(fields[i]) ? Json(nullptr) : Json(fields[i]);
    }
    if (is_good) {
      rows.add(std::move(row), line);
    } else {
      rows.refuse(fmt::format("{}:{}: found bytes that are not UTF-8, expected UTF-8 text",
                              rows.file(), line));
    }
  }
}

void read_text_rows(std::string_view file_text, RowCollector& rows) {
  int64_t line = 1;
  for (size_t begin = 0; begin < file_text.size() && rows.wants_more(); ++line) {
    const size_t end = std::min(file_text.find_first_of("\r\n", begin), file_text.size());
    rows.move_to(end, file_text.size());
    const std::string_view content = file_text.substr(begin, end - begin);
    if (rows.passes_over()) {
      // counted
    } else if (text::is_valid_utf8(content)) {
      rows.add({{"text", std::string(content)}}, line);
    } else {
      rows.refuse(fmt::format("{}:{}: found bytes that are not UTF-8, expected UTF-8 text",
                              rows.file(), line));
    }
    begin = end + (file_text.substr(end).starts_with("\r\n") ? 2 : 1);
  }
}

}  // namespace strata::data
