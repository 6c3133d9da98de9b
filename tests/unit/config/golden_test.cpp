// Oracle: golden_cases.yaml beside this file: what each input must give, values or the exact error.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include "strata/base/error.h"
#include "strata/config/field_text.h"
#include "strata/config/resolve.h"

namespace strata::config {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / fmt::format("strata_golden_{}", ::getpid())) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  // "$DIR" stands for the folder in inputs and results.
  std::string expand(std::string text) const { return replaced(text, "$DIR", path_.string()); }
  std::string shorten(std::string text) const { return replaced(text, path_.string(), "$DIR"); }

 private:
  static std::string replaced(std::string text, const std::string& from, const std::string& to) {
    for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) {
      text.replace(at, from.size(), to);
    }
    return text;
  }
  fs::path path_;
};

// A list, or one text with words between spaces.
std::vector<std::string> words(const YAML::Node& node, const Folder& folder) {
  std::vector<std::string> result;
  if (!node) return result;
  if (node.IsSequence()) {
    for (const YAML::Node& word : node) result.push_back(folder.expand(word.as<std::string>()));
    return result;
  }
  std::istringstream text(node.as<std::string>());
  for (std::string word; text >> word;) result.push_back(folder.expand(word));
  return result;
}

std::string text_of(const YAML::Node& node) {
  return node.IsNull() ? "none" : node.as<std::string>();
}

void check(const YAML::Node& row) {
  const Folder folder;
  for (const auto& file : row["files"]) {
    folder.write(file.first.as<std::string>(), file.second.as<std::string>());
  }
  Sources sources{.flags = words(row["flags"], folder),
                  .launch_flags = words(row["launch"], folder),
                  .world_size = row["ranks"] ? row["ranks"].as<int>() : 0};
  for (const auto& variable : row["environment"]) {
    sources.environment[variable.first.as<std::string>()] = variable.second.as<std::string>();
  }
  std::string error;
  Settings settings;
  try {
    settings = resolve(sources);
  } catch (const ConfigError& thrown) {
    error = folder.shorten(thrown.what());
  }
  EXPECT_EQ(error, row["error"] ? row["error"].as<std::string>() : "");
  if (!error.empty()) return;
  for (const auto& value : row["values"]) {
    const std::string name = value.first.as<std::string>();
    EXPECT_EQ(field_text(get_setting(name), settings.config), text_of(value.second)) << name;
  }
  for (const auto& origin : row["origins"]) {
    const std::string name = origin.first.as<std::string>();
    EXPECT_EQ(folder.shorten(settings.source_of(name)), origin.second.as<std::string>()) << name;
  }
  if (row["autos"]) {
    for (std::string& line : settings.autos) line = folder.shorten(line);
    EXPECT_EQ(settings.autos, row["autos"].as<std::vector<std::string>>());
  }
  if (!row["warnings"]) return;
  std::vector<std::string> expected = row["warnings"].as<std::vector<std::string>>();
  for (std::string& warning : settings.warnings) warning = folder.shorten(warning);
  EXPECT_EQ(settings.warnings, expected);
}

TEST(Golden, EveryCase) {
  const YAML::Node cases = YAML::LoadFile(STRATA_SOURCE_DIR "/tests/unit/config/golden_cases.yaml");
  EXPECT_GE(cases.size(), 150u);
  std::set<std::string> names;
  for (const YAML::Node& row : cases) {
    const std::string name = row["name"].as<std::string>();
    SCOPED_TRACE(name);
    EXPECT_TRUE(names.insert(name).second) << "twice";
    ASSERT_TRUE(row["error"] || row["values"] || row["warnings"]) << "checks nothing";
    check(row);
  }
}

}  // namespace
}  // namespace strata::config
