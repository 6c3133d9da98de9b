// Which modules of a model an adapter's settings mean, by PEFT's rules. Owns: matching of names.
// Never: layers; it sees module paths only. Source: PEFT tuners_utils.py.
#pragma once

#include <string>
#include <vector>

namespace strata::adapters {

// A regular expression in Python's syntax, matched against whole module paths.
// Threads: any number may match. An expression that does not parse: ConfigError.
class PathPattern {
 public:
  explicit PathPattern(const std::string& expression);
  ~PathPattern();
  PathPattern(const PathPattern&) = delete;
  PathPattern& operator=(const PathPattern&) = delete;
  bool matches(const std::string& path) const;

 private:
  void* regex_;
};

// Whether `path` equals an entry or ends with "." and an entry.
bool matches_list(const std::string& path, const std::vector<std::string>& entries);

// Whether `path` is a module named by an entry or inside one.
bool is_inside(const std::string& path, const std::vector<std::string>& entries);

// All module paths that the weights' names imply: their own modules and every ancestor, in order.
std::vector<std::string> module_paths(const std::vector<std::string>& weight_names);

// The shortest suffixes that name `targets` and none of `others`; sorted.
std::vector<std::string> minimal_suffixes(std::vector<std::string> targets,
                                          const std::vector<std::string>& others);

}  // namespace strata::adapters
