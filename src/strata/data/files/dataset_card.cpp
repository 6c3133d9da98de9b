#include "strata/data/files/dataset_card.h"

#include <algorithm>
#include <set>
#include <string_view>

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

// The names of a class, of a feature as `datasets` writes it: what it is stands first, lists of
// classes count as classes. Undefined: it is none. YAML can nest a feature in itself.
YAML::Node names_of(const YAML::Node& feature, int depth = 0) {
  constexpr int kDeepest = 8;
  if (!feature.IsMap() || depth > kDeepest) return YAML::Node(YAML::NodeType::Undefined);
  for (const auto& member : feature) {
    const std::string kind = member.first.as<std::string>("");
    if (kind == "name") continue;
    if (kind == "class_label" && member.second.IsMap()) return member.second["names"];
    const bool holds_other =
        kind == "dtype" || kind == "list" || kind == "large_list" || kind == "sequence";
    return names_of(holds_other ? member.second : YAML::Node(), depth + 1);
  }
  return YAML::Node(YAML::NodeType::Undefined);
}

class CardReader {
 public:
  explicit CardReader(std::string subject) : subject_(std::move(subject)) {}

  std::vector<DatasetConfiguration> read(const YAML::Node& card) const {
    std::vector<DatasetConfiguration> all;
    if (!card.IsMap() || !card["configs"]) return all;
    const YAML::Node list = card["configs"];
    if (!list.IsSequence()) refuse(list, "configs", "a list");
    for (const YAML::Node& entry : list) all.push_back(read_entry(entry));
    return all;
  }

  // Of the configuration of that name; of the only one where `takes_only`.
  ClassNames read_classes(const YAML::Node& card, const std::string& name, bool takes_only) const {
    if (!card.IsMap() || !card["dataset_info"]) return {};
    const YAML::Node info = card["dataset_info"];
    if (info.IsMap()) {
      return takes_only || name_of(info) == name ? read_features(info["features"]) : ClassNames();
    }
    if (!info.IsSequence()) return {};
    for (const YAML::Node& entry : info) {
      const bool is_it = takes_only ? info.size() == 1 : entry.IsMap() && name_of(entry) == name;
      if (is_it && entry.IsMap()) return read_features(entry["features"]);
    }
    return {};
  }

  [[noreturn]] void refuse_yaml(const YAML::Exception& error) const {
    throw FormatError("{}:{}: found {}, expected YAML before the text", subject_,
                      error.mark.line + 2, error.msg);
  }

 private:
  [[noreturn]] void refuse(const YAML::Node& at, const std::string& what,
                           const std::string& expected) const {
    throw FormatError("{}: found no usable \"{}\" of a configuration, expected {}", where(at), what,
                      expected);
  }

  static std::string name_of(const YAML::Node& info) {
    return info["config_name"] ? info["config_name"].as<std::string>("") : "default";
  }

  ClassNames read_features(const YAML::Node& features) const {
    ClassNames classes;
    if (!features || !features.IsSequence()) return classes;
    for (const YAML::Node& feature : features) {
      if (!feature.IsMap() || !feature["name"] || !feature["name"].IsScalar()) continue;
      const YAML::Node names = names_of(feature);
      classes[feature["name"].as<std::string>()] =
          names.IsDefined() ? read_names(names) : std::vector<std::string>();
    }
    return classes;
  }

  // A list, or a map of which number is called what.
  std::vector<std::string> read_names(const YAML::Node& names) const {
    std::vector<std::string> all(names.size());
    size_t at = 0;
    for (const auto& item : names) {
      const YAML::Node& name = names.IsMap() ? item.second : static_cast<const YAML::Node&>(item);
      const auto place = names.IsMap() ? item.first.as<size_t>(all.size()) : at++;
      if (place >= all.size() || !name.IsScalar()) refuse(names, "names", "one for each number");
      all[place] = name.as<std::string>();
    }
    std::vector<std::string> sorted = all;
    std::ranges::sort(sorted);
    if (std::ranges::adjacent_find(sorted) != sorted.end()) refuse(names, "names", "each once");
    return all;
  }

  std::string text_of(const YAML::Node& entry, const char* key) const {
    if (!entry[key]) return "";
    if (!entry[key].IsScalar()) refuse(entry, key, "text");
    return entry[key].as<std::string>();
  }

  // Line 1 of the file is the rule above the YAML.
  std::string where(const YAML::Node& node) const {
    return fmt::format("{}:{}", subject_, node.Mark().line + 2);
  }

  std::vector<DatasetConfiguration::OtherKey> other_keys(
      const YAML::Node& entry, const std::vector<std::string>& known) const {
    std::vector<DatasetConfiguration::OtherKey> others;
    for (const auto& member : entry) {
      const YAML::Node& key = member.first;
      const std::string name = key.IsScalar() ? key.as<std::string>() : "(no text)";
      if (std::ranges::find(known, name) == known.end()) others.push_back({name, where(key)});
    }
    return others;
  }

  DatasetConfiguration read_entry(const YAML::Node& entry) const {
    if (!entry.IsMap() || !entry["config_name"]) refuse(entry, "config_name", "its name");
    DatasetConfiguration one{
        .name = text_of(entry, "config_name"),
        .is_default = entry["default"] && entry["default"].as<bool>(false),
        .data_dir = text_of(entry, "data_dir"),
        .data_files = {},
        .other_keys = other_keys(
            entry, {"config_name", "default", "data_dir", "data_files", "version", "description"})};
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
        if (item.size() != 2) refuse(item, "data_files", "entries of \"split\" and \"path\" alone");
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

// Whether a loader of `datasets` for files that are read here makes other rows, or values, of them
// by this key. Other keys are of no effect there, either.
bool changes_rows(const std::string& key) {
  static const std::set<std::string_view> kKeys = {
      "features", "encoding", "encoding_errors", "drop_labels", "drop_metadata",
      // of JSON
      "field", "parse_agent_traces",
      // of text
      "sample_by", "keep_linebreaks",
      // of parquet
      "columns", "filters", "fragment_scan_options", "on_bad_files",
      // of tables
      "sep", "delimiter", "header", "names", "column_names", "index_col", "usecols", "prefix",
      "mangle_dupe_cols", "converters", "true_values", "false_values", "skipinitialspace",
      "skiprows", "skipfooter", "nrows", "na_values", "keep_default_na", "na_filter",
      "skip_blank_lines", "thousands", "decimal", "lineterminator", "quotechar", "quoting",
      "doublequote", "escapechar", "comment", "dialect", "error_bad_lines", "warn_bad_lines",
      "on_bad_lines", "date_format", "pd_read_csv_kwargs"};
  return kKeys.contains(key);
}

void require_known(const DatasetConfiguration& one) {
  for (const auto& [key, where] : one.other_keys) {
    if (!changes_rows(key)) continue;
    throw FormatError(
        "{}: found \"{}\" in the configuration \"{}\", expected none that changes how files are "
        "read; convert its files so that they do not need it, or name them with --dataset_name",
        where, key, one.name);
  }
}

// What `read` makes of the card of a folder; nothing where there is none.
template <typename Read>
auto read_card(const fs::path& folder, const Read& read)
    -> decltype(read(std::declval<CardReader>(), YAML::Node())) {
  const fs::path path = folder / "README.md";
  if (!fs::is_regular_file(path)) return {};
  const std::string yaml = front_matter(read_file(path));
  if (yaml.empty()) return {};
  const CardReader reader(path.string());
  try {
    return read(reader, YAML::Load(yaml));
  } catch (const YAML::Exception& error) {
    reader.refuse_yaml(error);
  }
}

}  // namespace

std::vector<DatasetConfiguration> read_configurations(const fs::path& folder) {
  return read_card(
      folder, [](const CardReader& reader, const YAML::Node& card) { return reader.read(card); });
}

ClassNames read_card_classes(const fs::path& folder, const std::string& configuration) {
  return read_card(folder, [&](const CardReader& reader, const YAML::Node& card) {
    const std::vector<DatasetConfiguration> all = reader.read(card);
    if (!all.empty()) {
      const auto& chosen = choose_configuration(all, configuration, folder.string());
      return reader.read_classes(card, chosen.name, /*takes_only=*/false);
    }
    return reader.read_classes(card, configuration, /*takes_only=*/configuration.empty());
  });
}

const DatasetConfiguration& choose_configuration(const std::vector<DatasetConfiguration>& all,
                                                 const std::string& name,
                                                 const std::string& subject) {
  std::vector<std::string> names;
  for (const DatasetConfiguration& one : all) {
    names.push_back(one.name);
    if (name.empty() ? all.size() == 1 || one.name == "default" || one.is_default
                     : one.name == name) {
      require_known(one);
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
