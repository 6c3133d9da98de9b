// The values given for each setting, merged by rank. Owns: who wins, and that equals contradict.
// Never: meanings (translate.h, checks/checks.h).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "strata/config/value.h"

namespace strata::config {

class Merge {
 public:
  // `home`: what a leading ~ of a path stands for.
  explicit Merge(std::string home) : home_(std::move(home)) {}

  // A higher rank replaces a lower one. Throws ConfigError naming both places when two of the same
  // rank differ, and when the value does not fit its setting.
  void add(Given given);
  // The same over whatever was given before.
  void put(const Given& given) { given_.insert_or_assign(std::string(given.setting->name), given); }
  void add_all(const std::vector<Given>& given);

  // Null when nothing was given.
  const Given* find(const std::string& name) const;
  // The same of what a person gave: null for a value that another setting implies.
  const Given* find_given(const std::string& name) const;
  // Where the value comes from, or the setting's name.
  std::string source(const std::string& name) const;
  // The canonical text, or `otherwise`.
  std::string text(const std::string& name, const std::string& otherwise = "") const;

  const std::map<std::string, Given>& all() const { return given_; }

 private:
  std::string home_;
  std::map<std::string, Given> given_;  // by the table's name
};

}  // namespace strata::config
