#include "strata/data/files/dataset_card.h"

#include <algorithm>

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::data {
namespace {

namespace fs = std::filesystem;

// The text between the first line "---" and the next one; empty if the file begins otherwise.
std::string front_matter(const std::string& text) {
  const auto is_rule = [&](size_t at) {
    return text.compare(at, 3, "---") == 0 &&
           (at + 3 == text.size() || text[at + 3] == '\n' || text[at + 3] == '\r');
  };
  if (!is_rule(0)) return "";
  const size_t begin = text.find('\n') + 1;
  for (size_t at = begin; at != 0 && at < text.size(); at = text.find('\n', at) + 1) {
    if (is_rule(at)) return text.substr(begin, at - begin);
  }
  return "";
}

class CardReader {
 public:
  explicit CardReader(std::string subject) : subject_(std::move(subject)) {}

  std::vector<DatasetConfiguration> read(const std::string& text) const {
    std::vector<DatasetConfiguration> all;
    const YAML::Node card = YAML::Load(text);
    if (!card.IsMap() || !card["configs"]) return all;
    const YAML::Node list = card["configs"];
    if (!list.IsSequence()) refuse(list, "configs", "a list");
    for (const YAML::Node& entry : list) all.push_back(read_entry(entry));
    return all;
  }

  [[noreturn]] void refuse_yaml(const YAML::Exception& error) const {
    throw FormatError("{}:{}: found {}, expected YAML before the text", subject_,
                      error.mark.line + 2, error.msg);
  }

 private:
  // Line 1 of the file is the rule above the YAML.
  [[noreturn]] void refuse(const YAML::Node& at, const std::string& what,
                           const std::string& expected) const {
    throw FormatError("{}:{}: found no usable \"{}\" of a configuration, expected {}", subject_,
                      at.Mark().line + 2, what, expected);
  }

  std::string text_of(const YAML::Node& entry, const char* key) const {
    if (!entry[key]) return "";
    if (!entry[key].IsScalar()) refuse(entry, key, "text");
    return entry[key].as<std::string>();
  }

  // Keys that would change the rows, were they followed (sep, sample_by, field, ...).
  void require_known(const YAML::Node& entry, const std::vector<std::string>& known) const {
    for (const auto& member : entry) {
      const YAML::Node& key = member.first;
      const std::string name = key.IsScalar() ? key.as<std::string>() : "(no text)";
      if (std::ranges::find(known, name) != known.end()) continue;
      throw FormatError(
          "{}:{}: found \"{}\" in a configuration, expected only {}; convert its files so that "
          "they "
          "need it not, or name them with --dataset_name",
          subject_, key.Mark().line + 2, name, fmt::join(known, ", "));
    }
  }

  DatasetConfiguration read_entry(const YAML::Node& entry) const {
    if (!entry.IsMap() || !entry["config_name"]) refuse(entry, "config_name", "its name");
    require_known(entry,
                  {"config_name", "default", "data_dir", "data_files", "version", "description"});
    DatasetConfiguration one{.name = text_of(entry, "config_name"),
                             .is_default = entry["default"] && entry["default"].as<bool>(false),
                             .data_dir = text_of(entry, "data_dir"),
                             .data_files = {}};
    if (entry["data_files"]) read_files(entry["data_files"], one);
    return one;
  }

  void read_files(const YAML::Node& files, DatasetConfiguration& one) const {
    if (files.IsScalar()) {
      one.data_files = {{"train", {files.as<std::string>()}}};
      return;
    }
    if (!files.IsSequence()) refuse(files, "data_files", "a pattern or a list");
    std::vector<std::string> plain;
    for (const YAML::Node& item : files) {
      if (item.IsScalar()) {
        plain.push_back(item.as<std::string>());
      } else if (item.IsMap() && item["split"] && item["path"]) {
        require_known(item, {"split", "path"});
        const std::string split = text_of(item, "split");
        if (std::ranges::any_of(one.data_files, [&](const auto& f) { return f.first == split; })) {
          refuse(item, "split", "each split once");
        }
        one.data_files.emplace_back(split, patterns_of(item["path"]));
      } else {
        refuse(item, "data_files", "patterns, or entries of \"split\" and \"path\"");
      }
    }
    if (plain.empty() == one.data_files.empty()) {
      refuse(files, "data_files", "patterns alone or entries of \"split\" and \"path\" alone");
    }
    if (!plain.empty()) one.data_files.emplace_back("train", std::move(plain));
  }

  std::vector<std::string> patterns_of(const YAML::Node& path) const {
    if (path.IsScalar()) return {path.as<std::string>()};
    if (!path.IsSequence()) refuse(path, "path", "a pattern or a list of them");
    std::vector<std::string> patterns;
    for (const YAML::Node& one : path) {
      if (!one.IsScalar()) refuse(path, "path", "a pattern or a list of them");
      patterns.push_back(one.as<std::string>());
    }
    return patterns;
  }

  std::string subject_;
};

}  // namespace

std::vector<DatasetConfiguration> read_configurations(const fs::path& folder) {
  const fs::path path = folder / "README.md";
  if (!fs::is_regular_file(path)) return {};
  const std::string yaml = front_matter(read_file(path));
  if (yaml.empty()) return {};
  const CardReader reader(path.string());
  try {
    return reader.read(yaml);
  } catch (const YAML::Exception& error) {
    reader.refuse_yaml(error);
  }
}

const DatasetConfiguration& choose_configuration(const std::vector<DatasetConfiguration>& all,
                                                 const std::string& name,
                                                 const std::string& subject) {
  std::vector<std::string> names;
  for (const DatasetConfiguration& one : all) {
    names.push_back(one.name);
    if (name.empty() ? all.size() == 1 || one.name == "default" || one.is_default
                     : one.name == name) {
      return one;
    }
  }
  if (name.empty()) {
    throw ConfigError(
        "{}: found several configurations ({}), expected the name of one; pass "
        "--dataset_config",
        subject, fmt::join(names, ", "));
  }
  throw ConfigError("dataset_config: found \"{}\", expected a configuration of {}: {}", name,
                    subject, fmt::join(names, ", "));
}

}  // namespace strata::data
