// The recipes, one row each: what a recipe is called, which scripts it stands for, what it reads,
// which settings are its own. Owns: that table. Never: how a recipe trains
// (train/recipes/recipe.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "strata/config/run_config.h"

namespace strata::config {

struct RecipeRow {
  std::string_view name;         // of the setting `recipe`
  std::string_view command;      // that runs it: of the first row of that name the rest is told
  std::string_view summary;      // of the command, among the others
  std::string_view description;  // of the command, in its --help
  bool has_encoder = false;      // for models with encoder and decoder
  bool reads_pairs = false;      // rows are pairs of answers, one preferred to the other
  bool learns_prompts = false;   // of preferred answers, as supervised fine-tuning on texts does
  bool reads_ratings = false;    // rows are single answers, desirable or not
  bool gives_rewards = false;    // a head of one number in place of the output layer
  bool reads_labels = false;     // rows are texts with labels, which a head tells in its place
  std::string_view task_type = "CAUSAL_LM";  // PEFT's, of its adapters
  std::string_view label = {};               // beside the method, where a run is described
  // Of a script's name: whole words, or any parts. The first row that has one of them stands for
  // the script; sft for all others.
  std::vector<std::string_view> script_words = {};
  std::vector<std::string_view> script_parts = {};
  // Settings that not every recipe has.
  std::vector<std::string_view> settings = {};
  // What its evaluations give beside what all give.
  std::vector<std::string_view> figures = {};

  // The head looks at whole documents and predicts no tokens.
  bool judges_documents() const { return gives_rewards || reads_labels; }
};

const std::vector<RecipeRow>& recipes();

// That of the setting. InternalError for an unknown name: the settings' table knows them.
const RecipeRow& recipe_of(const RunConfig& config);
const RecipeRow& recipe_named(std::string_view name);

// "sft, seq2seq, dpo, orpo, cpo, kto, reward, classify".
std::string recipe_commands();
bool is_recipe_command(std::string_view word);

}  // namespace strata::config
