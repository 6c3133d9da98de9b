// Which modules of a model an adapter's settings mean, by PEFT's rules. Owns: matching of names.
// Never: layers; it sees module paths only. Source: PEFT tuners_utils.py.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

namespace strata::adapters {

// Whether `path` equals an entry or ends with "." and an entry.
bool matches_list(const std::string& path, const std::vector<std::string>& entries);

// The same with a list of many names, for many paths.
class NameList {
 public:
  explicit NameList(const std::vector<std::string>& entries)
      : entries_(entries.begin(), entries.end()) {}
  bool matches(const std::string& path) const;

 private:
  std::unordered_set<std::string> entries_;
};

// Whether `path` is a module named by an entry or inside one.
bool is_inside(const std::string& path, const std::vector<std::string>& entries);

// Whether `path` is none of these and yet ends as an entry does, without a dot before it:
// DistilBERT's "pre_classifier" beside modules_to_save "classifier". PEFT saves such a module
// whole, and would give it a branch as well.
bool merely_ends_alike(const std::string& path, const std::vector<std::string>& entries);

// All module paths that the weights' names imply: their own modules and every ancestor, in order.
std::vector<std::string> module_paths(const std::vector<std::string>& weight_names);

// The shortest suffixes that name `targets` and none of `others`; sorted.
std::vector<std::string> minimal_suffixes(std::vector<std::string> targets,
                                          const std::vector<std::string>& others);

}  // namespace strata::adapters
