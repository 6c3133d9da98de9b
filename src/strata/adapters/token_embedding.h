// Adapters of the token embedding: LoRA on its rows, and rows of single tokens that train whole
// (PEFT's trainable_token_indices). Owns: their names, checks and first values. Never: the
// mathematics (nn/embedding.h, nn/token_rows.h). Source: PEFT tuners/lora/layer.py (Embedding),
// tuners/trainable_tokens/.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Generator.h>

#include "strata/adapters/lora.h"
#include "strata/nn/embedding.h"

namespace strata::adapters {

// The model's token embedding; null for a model without one that adapters know.
nn::Embedding* find_embedding(models::Model& model);

// Gives the embedding a branch. ConfigError for settings that it cannot have: lora_bias, first
// values of the base, a rank larger than the table.
void attach_branch(nn::Embedding& embedding, const LoraOptions& options);

// Gives the embedding rows of its own for options.trainable_tokens, which an output layer that is
// tied to it takes too; or the output layer alone, where token_module names it: the embedding keeps
// its rows, tied or not, as in PEFT. ConfigError for ids outside the vocabulary, twice the same, or
// a module that is adapted otherwise.
TrainedTokens attach_token_rows(models::Model& model, const LoraOptions& options);

// Whether embedding and output layer are one weight.
bool is_tied(models::Model& model);
// With ensure_weight_tying: whether `weight` names a tied one, which then trains as one under both
// its names.
bool stays_tied(const LoraOptions& options, models::Model& model, const std::string& weight);
// What PEFT warns of, a sentence each. `saved`: the weights of modules_to_save; `was_tied`: before
// they were given copies.
std::vector<std::string> notes_on_ties(const LoraOptions& options, bool targets_vocabulary,
                                       const std::vector<std::string>& saved, bool was_tied);

// A and B in the order of PEFT's draws: A zero and B normal, or, with init "false", both normal.
struct EmbeddingStart {
  at::Tensor a, b;
};
EmbeddingStart draw_start(const nn::Embedding& embedding, const std::string& init,
                          const at::Generator& generator);

}  // namespace strata::adapters
