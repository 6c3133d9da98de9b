// Which recipe knows which loss of answers, and the refusal of one that another recipe knows or
// none. Never: what else the losses need (preference_checks.h, reference_free_checks.h,
// rated_checks.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace strata::config {

// The losses that settings.preference.loss_type may name with the recipe; none: it has one alone.
const std::vector<std::string>& losses_of(std::string_view recipe);

// The first recipe with such a loss, also where that is its only one; empty: nobody has it.
std::string_view recipe_with_loss(std::string_view loss);

// ConfigError, unless it is one of the recipe's. `source`: where it was given.
void require_loss_of(std::string_view recipe, const std::string& loss, const std::string& source);

}  // namespace strata::config
