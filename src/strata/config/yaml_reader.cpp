// yaml-cpp's nodes to Values.
#include "strata/config/yaml_reader.h"

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <vector>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"

namespace strata::config {
namespace {

const std::set<std::string>& yaml11_booleans(bool value) {
  static const std::set<std::string> kTrue = {"yes",  "Yes", "YES", "true", "True",
                                              "TRUE", "on",  "On",  "ON"};
  static const std::set<std::string> kFalse = {"no",    "No",  "NO",  "false", "False",
                                               "FALSE", "off", "Off", "OFF"};
  return value ? kTrue : kFalse;
}

Json scalar_json(const YAML::Node& node) {
  if (node.IsNull()) return nullptr;
  const std::string& text = node.Scalar();
  // A quoted scalar carries the tag "!": it is text whatever it looks like.
  if (node.Tag() == "!") return text;
  if (yaml11_booleans(true).contains(text)) return true;
  if (yaml11_booleans(false).contains(text)) return false;
  int64_t integer = 0;
  if (YAML::convert<int64_t>::decode(node, integer)) return integer;
  double number = 0;
  if (YAML::convert<double>::decode(node, number)) return number;
  return text;
}

Json json_of(const YAML::Node& node, const std::string& file, int depth) {
  if (depth > 32) {
    throw ConfigError("{}:{}: found a mapping deeper than 32, expected less", file,
                      node.Mark().line + 1);
  }
  if (node.IsMap()) {
    Json object = Json::object();
    for_each_key(node, file,
                 [&](const std::string& key, const YAML::Node& value, const std::string&) {
                   object[key] = json_of(value, file, depth + 1);
                 });
    return object;
  }
  if (node.IsSequence()) {
    Json list = Json::array();
    for (const YAML::Node& item : node) list.push_back(json_of(item, file, depth + 1));
    return list;
  }
  return scalar_json(node);
}

// A settings file that cannot be read is a wrong setting (exit code 2).
std::string read_settings_file(const std::filesystem::path& path) {
  try {
    return read_file(path);
  } catch (const IoError& error) {
    throw ConfigError(error.what());
  }
}

// A UTF-16 file has a byte order mark, and zeros, and is read.
void reject_binary(const std::string& text, const std::string& name) {
  const bool is_utf16 = text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff");
  if (is_utf16 || text.find('\0') == std::string::npos) return;
  throw ConfigError(
      "{}: found a file that is not text (it has bytes of zero), expected lines of \"key: value\"; "
      "name another file",
      name);
}

// yaml-cpp takes a quote for closed where the text ends after a line's end: a comment keeps it
// from that. Whoever saves in UTF-16 goes without.
std::string with_last_comment(const std::string& text) {
  const size_t last = text.find_last_not_of(" \t");
  const bool takes_one = last != std::string::npos && text[last] == '\n';
  if (!takes_one || text.find('\0') != std::string::npos) return text;
  return text + (text.ends_with('\n') ? "#" : "\n#");
}

// The first line from which on every longer beginning of the text ends inside quotes.
size_t line_of_open_quote(const std::string& text) {
  std::vector<size_t> ends;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') ends.push_back(i + 1);
  }
  size_t line = ends.size() + (text.ends_with('\n') ? 0 : 1);
  for (; line > 1; --line) {
    try {
      YAML::LoadAll(with_last_comment(text.substr(0, ends[line - 2])));
      break;
    } catch (const YAML::Exception& error) {
      if (error.msg != YAML::ErrorMsg::EOF_IN_SCALAR) break;
    }
  }
  return line;
}

// The lines of 1, 2, ... until `last` that begin with a tab.
std::vector<size_t> lines_of_tabs(const std::string& text, size_t last) {
  std::vector<size_t> lines;
  size_t begin = 0;
  for (size_t line = 1; line <= last && begin < text.size(); ++line) {
    const size_t first = text.find_first_not_of(' ', begin);
    if (first != std::string::npos && text[first] == '\t') lines.push_back(line);
    begin = text.find('\n', begin);
    if (begin == std::string::npos) break;
    ++begin;
  }
  return lines;
}

// The text with a space for each tab at the beginning of a line until `last`.
std::string without_tabs(std::string text, size_t last) {
  size_t line = 1;
  bool is_beginning = true;
  for (char& c : text) {
    if (line > last) break;
    if (is_beginning && c == '\t') c = ' ';
    is_beginning = c == '\n' || (is_beginning && c == ' ');
    if (c == '\n') ++line;
  }
  return text;
}

// Whether the text is refused by that very error.
bool fails_so(const std::string& text, const YAML::Exception& error) {
  try {
    YAML::LoadAll(with_last_comment(text));
    return false;
  } catch (const YAML::Exception& other) {
    return other.mark.line == error.mark.line && other.mark.column == error.mark.column &&
           other.msg == error.msg;
  }
}

// The line of the first tab that the error goes away without, or 0: flow style, quotes and block
// scalars may have tabs, and yaml-cpp names one that it refuses by what comes of it.
size_t line_of_refused_tab(const std::string& text, const YAML::Exception& error) {
  const auto last = static_cast<size_t>(error.mark.line) + 1;
  if (fails_so(without_tabs(text, last), error)) return 0;
  const std::vector<size_t> lines = lines_of_tabs(text, last);
  const auto first = std::ranges::partition_point(
      lines, [&](size_t line) { return fails_so(without_tabs(text, line), error); });
  return first == lines.end() ? 0 : *first;
}

[[noreturn]] void throw_no_yaml(const YAML::Exception& error, const std::string& text,
                                const std::string& name) {
  if (error.msg == YAML::ErrorMsg::EOF_IN_SCALAR) {
    throw ConfigError(
        "{}:{}: found a quote that is not closed, expected the same quote after the text; close it",
        name, line_of_open_quote(text));
  }
  if (const size_t tab = line_of_refused_tab(text, error); tab > 0) {
    throw ConfigError(
        "{}:{}: found a tab at the beginning of the line, expected spaces, as YAML indents with "
        "nothing else; write spaces instead",
        name, tab);
  }
  throw ConfigError("{}:{}:{}: found text that is not YAML ({}), expected a mapping of settings",
                    name, error.mark.line + 1, error.mark.column + 1, error.msg);
}

}  // namespace

// Lines that begin or end a document.
static bool has_document_marks(const std::string& text) {
  for (const char* mark : {"---", "..."}) {
    if (text.starts_with(mark) || text.find(std::string("\n") + mark) != std::string::npos) {
      return true;
    }
  }
  return false;
}

YAML::Node read_yaml_mapping(const std::filesystem::path& path) {
  return parse_yaml_mapping(read_settings_file(path), path.string());
}

YAML::Node parse_yaml_mapping(const std::string& text, const std::string& name) {
  reject_binary(text, name);
  std::vector<YAML::Node> documents;
  try {
    documents = YAML::LoadAll(with_last_comment(text));
  } catch (const YAML::Exception& error) {
    throw_no_yaml(error, text, name);
  }
  if (documents.size() > 1 && !has_document_marks(text)) {
    throw ConfigError(
        "{}: found {} mappings, one after the other, expected a single one of settings; a file of "
        "rows is named in dataset_name",
        name, documents.size());
  }
  // As PyYAML: what stands in a second document would be ignored.
  if (documents.size() > 1) {
    throw ConfigError(
        "{}: found {} documents (after lines \"---\" or \"...\"), expected one; remove the lines "
        "between them",
        name, documents.size());
  }
  const YAML::Node root = documents.empty() ? YAML::Node() : documents.front();
  if (!root || root.IsNull()) {
    throw ConfigError(
        "{}: found no settings (an empty file, or only comments), expected lines of \"key: "
        "value\"; write some, or name another file",
        name);
  }
  if (!root.IsMap()) {
    throw ConfigError("{}:{}: found no mapping, expected lines of \"key: value\"", name,
                      root.Mark().line + 1);
  }
  return root;
}

namespace {

using KeyVisit =
    std::function<void(const std::string& key, const YAML::Node& value, const std::string& place)>;

std::string place_of(const YAML::Node& node, const std::string& file) {
  return file + ":" + std::to_string(node.Mark().line + 1);
}

// The mappings behind "<<": one or several.
std::vector<YAML::Node> merged_mappings(const YAML::Node& value, const std::string& place) {
  std::vector<YAML::Node> mappings;
  if (value.IsSequence()) {
    for (const YAML::Node& mapping : value) mappings.push_back(mapping);
  } else {
    mappings.push_back(value);
  }
  for (const YAML::Node& mapping : mappings) {
    if (mapping.IsMap()) continue;
    throw ConfigError(
        "{}: found \"<<\" before something that is no mapping, expected the name of one (*name) or "
        "a list of such names; define it as &name",
        place);
  }
  return mappings;
}

// `known`: keys that count already, with their places.
void visit_keys(const YAML::Node& mapping, const std::string& file, const KeyVisit& visit,
                std::map<std::string, std::string>& known, int depth) {
  if (depth > 32) {
    throw ConfigError(
        "{}: found \"<<\" more than 32 deep, expected less; merge fewer into each other",
        place_of(mapping, file));
  }
  std::map<std::string, std::string> seen;
  std::vector<YAML::Node> merged;
  for (const auto& entry : mapping) {
    const std::string place = place_of(entry.first, file);
    if (!entry.first.IsScalar()) {
      throw ConfigError("{}: found a key that is no text, expected the name of a setting", place);
    }
    const std::string key = entry.first.Scalar();
    auto [first, is_new] = seen.emplace(key, place);
    if (!is_new) {
      throw ConfigError("{}: found \"{}\" twice (also at {}), expected once; remove one", place,
                        key, first->second);
    }
    if (key == "<<" && entry.first.Tag() != "!") {
      merged = merged_mappings(entry.second, place);
    } else if (known.emplace(key, place).second) {
      visit(key, entry.second, place);
    }
  }
  // Which of several mappings counts is another one in PyYAML 6.0.4 than in those before.
  const std::map<std::string, std::string> own = known;
  std::map<std::string, YAML::Node> values;
  const auto visit_once = [&](const std::string& key, const YAML::Node& value,
                              const std::string& place) {
    const auto [first, is_new] = known.emplace(key, place);
    if (!is_new) {
      if (values.at(key).is(value)) return;  // one mapping, by two ways
      throw ConfigError(
          "{}: found \"{}\" in two mappings of one \"<<\" (also at {}), expected it in one of "
          "them; write it next to the \"<<\"",
          place, key, first->second);
    }
    values.emplace(key, value);
    visit(key, value, place);
  };
  for (const YAML::Node& other : merged) {
    std::map<std::string, std::string> known_there = own;
    visit_keys(other, file, visit_once, known_there, depth + 1);
  }
}

// `searched`: mappings that lack the key; one may merge itself.
YAML::Node find_key_in(const YAML::Node& mapping, const std::string& key,
                       std::vector<YAML::Node>& searched) {
  const YAML::Node missing(YAML::NodeType::Undefined);
  const auto is_mapping = [&](const YAML::Node& other) { return other.is(mapping); };
  if (!mapping.IsMap() || std::ranges::any_of(searched, is_mapping)) return missing;
  if (const YAML::Node own = mapping[key]) return own;
  searched.push_back(mapping);
  const YAML::Node merged = mapping["<<"];
  if (!merged) return missing;
  if (!merged.IsSequence()) return find_key_in(merged, key, searched);
  for (const YAML::Node& other : merged) {
    if (const YAML::Node found = find_key_in(other, key, searched)) return found;
  }
  return missing;
}

}  // namespace

YAML::Node find_key(const YAML::Node& mapping, const std::string& key) {
  std::vector<YAML::Node> searched;
  return find_key_in(mapping, key, searched);
}

void for_each_key(const YAML::Node& mapping, const std::string& file, const KeyVisit& visit) {
  std::map<std::string, std::string> known;
  visit_keys(mapping, file, visit, known, 0);
}

Json read_yaml_json(const std::filesystem::path& path) {
  return json_of(read_yaml_mapping(path), path.string(), 0);
}

bool is_yaml11_special(const std::string& text) {
  static const std::regex kNumber(
      "[-+]?(0b[01_]+|0[0-7_]*|[1-9][0-9_]*|0x[0-9a-fA-F_]+|[1-9][0-9_]*(:[0-5]?[0-9])+|"
      "([0-9][0-9_]*)?\\.[0-9_]*([eE][-+][0-9]+)?|[0-9][0-9_]*(:[0-5]?[0-9])+\\.[0-9_]*|"
      "\\.(inf|Inf|INF))|\\.(nan|NaN|NAN)");
  static const std::regex kDate("[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*");
  static const std::set<std::string> kOther = {"~", "null", "Null", "NULL", "<<", "="};
  return yaml11_booleans(true).contains(text) || yaml11_booleans(false).contains(text) ||
         kOther.contains(text) || std::regex_match(text, kNumber) || std::regex_match(text, kDate);
}

// One value for PyYAML, which reads YAML 1.1, and another one for everybody else.
static void refuse_octal(const YAML::Node& node, const std::string& place) {
  static const std::regex kOctal("[-+]?0[0-7_]+");
  if (node.Tag() == "!" || !std::regex_match(node.Scalar(), kOctal)) return;
  throw ConfigError(
      "{}: found {}, which the reference's YAML reads as an octal number, expected one without a "
      "leading 0; drop the 0, or quote what is no number",
      place, node.Scalar());
}

Value yaml_value(const YAML::Node& node, const std::string& place) {
  Value value;
  if (node.IsNull() || (!node.IsScalar() && node.size() == 0)) {
    value.is_null = true;
    if (node.IsSequence()) value.items = {"[]"};  // an empty list, for those that tell it from null
  } else if (node.IsScalar()) {
    refuse_octal(node, place);
    value.items = {node.Scalar()};
  } else if (node.IsMap()) {
    const std::string file = place.substr(0, place.rfind(':'));
    value.items = {dump_python(json_of(node, file, 0), /*indent=*/-1, /*sort_keys=*/false)};
  } else {
    for (const YAML::Node& item : node) {
      if (!item.IsScalar()) {
        throw ConfigError("{}: found a nested list or mapping, expected a list of values", place);
      }
      refuse_octal(item, place);
      value.items.push_back(item.Scalar());
    }
  }
  return value;
}

}  // namespace strata::config
