// What a group of rules between settings works with. Owns: asking what was given and from where,
// and the warning for a setting without effect. Never: a rule (checks.h, *_checks.h).
#pragma once

#include <string>
#include <vector>

#include "strata/config/merge.h"
#include "strata/config/run_config.h"

namespace strata::config {

// A group of rules derives from it; it lives as long as one check of the settings.
class Rules {
 public:
  Rules(const RunConfig& config, const Merge& merge, std::vector<std::string>& warnings)
      : config_(config), merge_(merge), warnings_(warnings) {}

 protected:
  ~Rules() = default;

  // nullptr where nobody gave the setting.
  const Given* given(const std::string& name) const { return merge_.find_given(name); }
  // The setting and where it comes from, for messages.
  std::string source(const std::string& name) const { return merge_.source(name); }
  // Nothing where nobody gave the setting, or a file its default: the settings.json of a run holds
  // all of them, and what is meant would be lost among them.
  void warn_without_effect(const std::string& name, const std::string& reason) {
    const Given* found = given(name);
    if (!found || (is_of_file(found->origin.rank) && gives_default(*found))) return;
    warnings_.push_back(named_source(*found) + ": has no effect; " + reason);
  }

  static bool is_of_file(Rank rank) { return rank == Rank::kFile || rank == Rank::kDefaultFile; }

  const RunConfig& config_;
  const Merge& merge_;
  std::vector<std::string>& warnings_;
};

}  // namespace strata::config
