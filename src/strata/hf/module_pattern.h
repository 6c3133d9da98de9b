// Expressions that name modules of a model in the configs of PEFT and transformers.
// Owns: Python's syntax of regular expressions. Never: which modules there are.
#pragma once

#include <optional>
#include <string>

namespace strata::hf {

// A regular expression in Python's syntax, matched against whole module paths ("model.layers.0").
// Threads: any number may match. An expression that does not parse: ConfigError that names
// `setting`.
class ModulePattern {
 public:
  explicit ModulePattern(const std::string& expression,
                         const std::string& setting = "target_modules");
  ~ModulePattern();
  ModulePattern(const ModulePattern&) = delete;
  ModulePattern& operator=(const ModulePattern&) = delete;

  // re.fullmatch().
  bool matches(const std::string& path) const;
  // What the group (?P<name>...) of a full match holds; nothing without a match or such a group.
  std::optional<std::string> group(const std::string& path, const std::string& name) const;

 private:
  void* regex_;
};

}  // namespace strata::hf
