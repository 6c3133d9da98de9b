#include "strata/train/recipes/recipe.h"

#include <string_view>

#include "strata/base/error.h"
#include "strata/config/recipes.h"
#include "strata/train/recipes/classify.h"
#include "strata/train/recipes/dpo.h"
#include "strata/train/recipes/kto.h"
#include "strata/train/recipes/next_token.h"
#include "strata/train/recipes/reference_free.h"
#include "strata/train/recipes/reward.h"

namespace strata::train {
namespace {

// By the command that runs it.
struct Row {
  std::string_view command;
  std::unique_ptr<Recipe> (*make)(const BeforeTraining& before);
};

constexpr Row kRecipes[] = {
    {"sft", make_next_token},      {"seq2seq", make_next_token}, {"dpo", make_dpo},
    {"orpo", make_reference_free}, {"cpo", make_reference_free}, {"kto", make_kto},
    {"reward", make_reward},       {"classify", make_classify}};

}  // namespace

std::unique_ptr<Recipe> make_recipe(const BeforeTraining& before) {
  const std::string_view command = config::recipe_of(before.config).command;
  for (const Row& row : kRecipes) {
    if (row.command == command) return row.make(before);
  }
  throw InternalError("recipe: found {}, expected one that trains", command);
}

}  // namespace strata::train
