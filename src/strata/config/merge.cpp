// Merging by rank.
#include "strata/config/merge.h"

#include "strata/base/error.h"

namespace strata::config {

void Merge::add(Given given) {
  expand_home(home_, given);
  const std::string text = canonical_text(given);
  auto [place, is_new] = given_.emplace(given.setting->name, given);
  if (is_new) return;
  Given& known = place->second;
  if (given.origin.rank > known.origin.rank) {
    known = std::move(given);
  } else if (given.origin.rank == known.origin.rank && text != canonical_text(known)) {
    throw ConfigError("{}: found {} ({}) and {} ({}), expected one value; remove one",
                      given.setting->name, canonical_text(known), known.origin.source, text,
                      given.origin.source);
  }
}

void Merge::add_all(const std::vector<Given>& given) {
  for (const Given& one : given) add(one);
}

const Given* Merge::find(const std::string& name) const {
  const auto found = given_.find(name);
  return found == given_.end() ? nullptr : &found->second;
}

const Given* Merge::find_given(const std::string& name) const {
  const Given* given = find(name);
  return given && given->origin.rank > Rank::kImplied ? given : nullptr;
}

std::string Merge::source(const std::string& name) const {
  const Given* given = find(name);
  return given ? named_source(*given) : name;
}

std::string Merge::text(const std::string& name, const std::string& otherwise) const {
  const Given* given = find(name);
  return given ? canonical_text(*given) : otherwise;
}

}  // namespace strata::config
