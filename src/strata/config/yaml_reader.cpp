// yaml-cpp's nodes to Values.
#include "strata/config/yaml_reader.h"

#include <map>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"

namespace strata::config {
namespace {

Json scalar_json(const YAML::Node& node) {
  if (node.IsNull()) return nullptr;
  const std::string& text = node.Scalar();
  // A quoted scalar carries the tag "!": it is text whatever it looks like.
  if (node.Tag() == "!") return text;
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  int64_t integer = 0;
  if (YAML::convert<int64_t>::decode(node, integer)) return integer;
  double number = 0;
  if (YAML::convert<double>::decode(node, number)) return number;
  return text;
}

Json json_of(const YAML::Node& node, int depth) {
  if (depth > 32) throw ConfigError("settings: found a mapping deeper than 32, expected less");
  if (node.IsMap()) {
    Json object = Json::object();
    for (const auto& entry : node) object[entry.first.Scalar()] = json_of(entry.second, depth + 1);
    return object;
  }
  if (node.IsSequence()) {
    Json list = Json::array();
    for (const YAML::Node& item : node) list.push_back(json_of(item, depth + 1));
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
  const std::string text = read_settings_file(path);
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    throw ConfigError("{}:{}:{}: found text that is not YAML ({}), expected a mapping of settings",
                      path.string(), error.mark.line + 1, error.mark.column + 1, error.msg);
  }
  if (!root || root.IsNull()) return YAML::Node(YAML::NodeType::Map);
  if (!root.IsMap()) {
    throw ConfigError("{}:{}: found no mapping, expected lines of \"key: value\"", path.string(),
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

Value yaml_value(const YAML::Node& node, const std::string& place) {
  Value value;
  if (node.IsNull() || (!node.IsScalar() && node.size() == 0)) {
    value.is_null = true;
  } else if (node.IsScalar()) {
    value.items = {node.Scalar()};
  } else if (node.IsMap()) {
    value.items = {dump_python(json_of(node, 0), /*indent=*/-1, /*sort_keys=*/false)};
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
