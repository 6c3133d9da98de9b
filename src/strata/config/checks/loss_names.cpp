#include "strata/config/checks/loss_names.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/text_distance.h"

namespace strata::config {
namespace {

struct Losses {
  std::string_view recipe;
  std::vector<std::string> names;
};

const std::vector<Losses>& table() {
  static const std::vector<Losses> losses{
      {"dpo",
       {"sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot",
        "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"}},
      {"cpo", {"sigmoid", "hinge", "ipo", "simpo", "alphapo"}},
      {"kto", {"kto", "apo_zero_unpaired"}}};
  return losses;
}

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

const std::vector<std::string>& losses_of(std::string_view recipe) {
  static const std::vector<std::string> none;
  const auto found = std::ranges::find(table(), recipe, &Losses::recipe);
  return found == table().end() ? none : found->names;
}

std::string_view recipe_with_loss(std::string_view loss) {
  if (loss == "orpo" || loss == "odds_ratio") return "orpo";
  for (const Losses& row : table()) {
    if (has(row.names, loss) || row.recipe == loss) return row.recipe;
  }
  return {};
}

void require_loss_of(std::string_view recipe, const std::string& loss, const std::string& source) {
  const std::vector<std::string>& known = losses_of(recipe);
  if (has(known, loss)) return;
  if (const std::string_view other = recipe_with_loss(loss); !other.empty() && other != recipe) {
    throw ConfigError(
        "{}: found {}, a loss of the recipe {}, expected one of {}; correct it, or "
        "run strata {}",
        source, loss, other, fmt::join(known, ", "), other);
  }
  const auto near = closest(loss, known);
  throw ConfigError("{}: found \"{}\", expected one of {}; {}", source, loss,
                    fmt::join(known, ", "),
                    near ? "did you mean " + *near + "?" : "correct or remove it");
}

}  // namespace strata::config
