// yaml-cpp's nodes to Values.
#include "strata/config/yaml_reader.h"

#include <map>
#include <regex>
#include <set>

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

}  // namespace

YAML::Node read_yaml_mapping(const std::filesystem::path& path) {
  return parse_yaml_mapping(read_settings_file(path), path.string());
}

YAML::Node parse_yaml_mapping(const std::string& text, const std::string& name) {
  std::vector<YAML::Node> documents;
  try {
    documents = YAML::LoadAll(text);
  } catch (const YAML::Exception& error) {
    throw ConfigError("{}:{}:{}: found text that is not YAML ({}), expected a mapping of settings",
                      name, error.mark.line + 1, error.mark.column + 1, error.msg);
  }
  // As PyYAML: what stands in a second document would be ignored.
  if (documents.size() > 1) {
    throw ConfigError(
        "{}: found {} documents (after lines \"---\" or \"...\"), expected one; remove the lines "
        "between them",
        name, documents.size());
  }
  const YAML::Node root = documents.empty() ? YAML::Node() : documents.front();
  if (!root || root.IsNull()) return YAML::Node(YAML::NodeType::Map);
  if (!root.IsMap()) {
    throw ConfigError("{}:{}: found no mapping, expected lines of \"key: value\"", name,
                      root.Mark().line + 1);
  }
  return root;
}

void for_each_key(const YAML::Node& mapping, const std::string& file,
                  const std::function<void(const std::string& key, const YAML::Node& value,
                                           const std::string& place)>& visit) {
  std::map<std::string, std::string> seen;
  for (const auto& entry : mapping) {
    const std::string place = file + ":" + std::to_string(entry.first.Mark().line + 1);
    if (!entry.first.IsScalar()) {
      throw ConfigError("{}: found a key that is no text, expected the name of a setting", place);
    }
    const std::string key = entry.first.Scalar();
    auto [first, is_new] = seen.emplace(key, place);
    if (!is_new) {
      throw ConfigError("{}: found \"{}\" twice (also at {}), expected once; remove one", place,
                        key, first->second);
    }
    visit(key, entry.second, place);
  }
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

Value yaml_value(const YAML::Node& node, const std::string& place) {
  Value value;
  if (node.IsNull() || (!node.IsScalar() && node.size() == 0)) {
    value.is_null = true;
    if (node.IsSequence()) value.items = {"[]"};  // an empty list, for those that tell it from null
  } else if (node.IsScalar()) {
    value.items = {node.Scalar()};
  } else if (node.IsMap()) {
    const std::string file = place.substr(0, place.rfind(':'));
    value.items = {dump_python(json_of(node, file, 0), /*indent=*/-1, /*sort_keys=*/false)};
  } else {
    for (const YAML::Node& item : node) {
      if (!item.IsScalar()) {
        throw ConfigError("{}: found a nested list or mapping, expected a list of values", place);
      }
      value.items.push_back(item.Scalar());
    }
  }
  return value;
}

}  // namespace strata::config
