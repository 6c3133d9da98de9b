// Values as sources write them, and their way into RunConfig's fields. Owns: what counts as a
// boolean, integer or number; ranges and choices. Never: which source wins (resolve.h), the way
// back to text (field_text.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/config/settings/table.h"

namespace strata::config {

// Ordered: a later one wins over an earlier one.
enum class Rank { kDefault, kImplied, kDefaultFile, kFile, kEnvironment, kLaunchFlag, kFlag };

// Where a value comes from: "run.yaml:12", "--max_steps", "environment variable FSDP_VERSION".
struct Origin {
  Rank rank = Rank::kDefault;
  std::string source = "default";
};

struct Value {
  std::vector<std::string> items;  // one, unless a list was written
  bool is_null = false;            // YAML's null, or an empty list or map
};

struct Given {
  const Setting* setting = nullptr;
  Value value;
  Origin origin;
};

// Where the value comes from, for messages: a line of a file with the setting's name.
std::string named_source(const Given& given);

// That of a value which another setting brings along.
Origin implied_by(const Given& given);

Given make_given(const std::string& name, const std::string& text, Origin origin);

// The home folder for a leading ~ of a path. A shell does it for words of their own, but not for
// --output_dir=~/out nor in a file: a folder named "~" would come of that. Without effect where
// `home` is empty.
void expand_home(const std::string& home, std::string& path);
// The same of the value of a setting that is a path.
void expand_home(const std::string& home, Given& given);

// yes, true, t, y, on, 1 and no, false, f, n, off, 0 in any case.
std::optional<bool> parse_boolean(std::string_view text);

// Checks the value against type, range and choices and returns its one way of writing.
// Throws ConfigError "SOURCE: found ..., expected ..." when it does not fit, or is not supported.
std::string canonical_text(const Given& given);

// Requires: the setting is bound. Throws as canonical_text().
void assign(const Given& given, RunConfig& config);

// Whether the value is what the setting has where nobody gives it; never of one that is not bound.
// Throws as canonical_text().
bool gives_default(const Given& given);

}  // namespace strata::config
