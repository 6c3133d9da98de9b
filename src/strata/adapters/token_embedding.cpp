#include "strata/adapters/token_embedding.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>

#include "strata/adapters/module_match.h"
#include "strata/adapters/target_layers.h"
#include "strata/base/error.h"
#include "strata/hf/adapter_files.h"
#include "strata/models/vocabulary.h"
#include "strata/nn/linear.h"

namespace strata::adapters {
namespace {

void check_branch(const nn::Embedding& embedding, const LoraOptions& options, int64_t rank) {
  const std::vector<int64_t>& shape = embedding.weight().shape();
  if (rank > std::min(shape[0], shape[1])) {
    throw ConfigError(
        "lora_r: found {} for \"{}\" [{}, {}], expected at most {}; choose a smaller rank, or one "
        "for this layer with rank_pattern",
        rank, embedding.path(), shape[0], shape[1], std::min(shape[0], shape[1]));
  }
  if (options.lora_bias) {
    throw ConfigError(
        "lora_bias: found the embedding \"{}\" among the targets, expected linear layers with it; "
        "leave it out, or train it whole with modules_to_save",
        embedding.path());
  }
  if (options.init != "true" && options.init != "false" && options.init != "gaussian") {
    throw ConfigError(
        "init_lora_weights: found {} and the embedding \"{}\" among the targets, expected true, "
        "gaussian or false there; change one",
        options.init, embedding.path());
  }
  if (options.ensure_weight_tying) {
    throw ConfigError(
        "ensure_weight_tying: found LoRA on \"{}\", expected modules_to_save or "
        "trainable_token_indices there; choose one of them or leave the tie",
        embedding.path());
  }
}

// The layers that take the embedding's rows of single tokens for theirs.
std::vector<nn::Linear*> layers_tied_to(models::Model& model, const nn::Embedding& embedding) {
  std::vector<nn::Linear*> tied;
  for (models::Block* block : model.blocks()) {
    for (nn::Linear* layer : block->linears()) {
      const bool is_output =
          block->kind() == models::BlockKind::kHead && layer == block->linears().back();
      const bool is_tied = &layer->weight() == &embedding.weight();
      if (is_tied || (is_output && model.is_called_tied())) tied.push_back(layer);
    }
  }
  return tied;
}

nn::Linear* output_layer(models::Model& model) {
  for (models::Block* block : model.blocks()) {
    if (block->kind() != models::BlockKind::kHead) continue;
    const std::vector<nn::Linear*> layers = block->linears();
    if (!layers.empty()) return layers.back();
  }
  return nullptr;
}

// Of rows of the embedding: every module that is named must be it, or tied to it.
void require_tied(models::Model& model, const nn::Embedding& embedding,
                  const LoraOptions& options) {
  const std::string& module = options.token_module;
  if (!module.empty() && !matches_list(embedding.path(), {module})) {
    throw ConfigError(
        "trainable_token_indices: found the module \"{}\", expected the model's token embedding "
        "({}) or its output layer; correct it",
        module, embedding.path());
  }
  const std::vector<nn::Linear*> tied = layers_tied_to(model, embedding);
  for (const std::string& other : options.other_token_modules) {
    const bool is_tied = std::ranges::any_of(
        tied, [&](const nn::Linear* layer) { return matches_list(layer->path(), {other}); });
    if (is_tied) continue;
    throw ConfigError(
        "trainable_token_indices: found the module \"{}\" with \"{}\", expected the embedding and "
        "an output layer that is tied to it; leave it out, or train it whole (modules_to_save)",
        other, module);
  }
}

void check_ids(const std::vector<int64_t>& ids, int64_t num_rows) {
  std::set<int64_t> seen;
  for (const int64_t id : ids) {
    if (id >= 0 && id < num_rows && seen.insert(id).second) continue;
    throw ConfigError(
        "trainable_token_indices: found {}{}, expected ids of tokens from 0 to {}, each once; "
        "correct it",
        id, seen.contains(id) ? " twice" : "", num_rows - 1);
  }
}

}  // namespace

nn::Embedding* find_embedding(models::Model& model) {
  for (models::Block* block : model.blocks()) {
    if (block->embedding() != nullptr) return block->embedding();
  }
  return nullptr;
}

void attach_branch(nn::Embedding& embedding, const LoraOptions& options) {
  const int64_t rank = rank_of(options, embedding.path());
  check_branch(embedding, options, rank);
  const std::string base = hf::kAdapterKeyPrefix + embedding.path();
  const std::vector<int64_t>& shape = embedding.weight().shape();
  auto branch = std::unique_ptr<nn::EmbeddingBranch>(
      new nn::EmbeddingBranch{.a = {base + ".lora_embedding_A", {rank, shape[0]}, at::kFloat},
                              .b = {base + ".lora_embedding_B", {shape[1], rank}, at::kFloat},
                              .scaling = scaling_of(options, embedding.path(), rank)});
  if (options.use_dora) {
    branch->magnitude = std::make_unique<nn::Parameter>(base + ".lora_magnitude_vector",
                                                        std::vector<int64_t>{shape[1]}, at::kFloat);
  }
  embedding.attach_low_rank(std::move(branch));
}

TrainedTokens attach_token_rows(models::Model& model, const LoraOptions& options) {
  nn::Embedding* embedding = find_embedding(model);
  if (embedding == nullptr) {
    throw ConfigError(
        "trainable_token_indices: found with a model whose family has no adapters of its "
        "embedding, expected adapters of linear layers; leave it out");
  }
  nn::Linear* output = output_layer(model);
  const std::string& module = options.token_module;
  const bool is_alone =
      output != nullptr && !module.empty() && matches_list(output->path(), {module});
  if (!is_alone) require_tied(model, *embedding, options);
  const std::string& path = is_alone ? output->path() : embedding->path();
  nn::Parameter& weight = is_alone ? output->weight() : embedding->weight();
  const bool has_branch = !is_alone && embedding->low_rank() != nullptr;
  if (has_branch || weight.requires_grad()) {
    throw ConfigError(
        "trainable_token_indices: found \"{}\" among {} too, expected one of them; remove one",
        path, has_branch ? "target_modules" : "modules_to_save");
  }
  check_ids(options.trainable_tokens, weight.shape()[0]);
  const auto rows = std::make_shared<nn::TokenRows>(
      hf::kAdapterKeyPrefix + path + ".token_adapter.trainable_tokens_delta",
      options.trainable_tokens, weight.shape()[1]);
  if (!is_alone) embedding->attach_token_rows(rows);
  for (nn::Linear* layer : is_alone ? std::vector{output} : layers_tied_to(model, *embedding)) {
    if (layer->low_rank() != nullptr || layer->rescale() != nullptr) {
      throw ConfigError(
          "trainable_token_indices: found the{} \"{}\" among target_modules, expected one of "
          "them; remove one",
          is_alone ? "" : " tied", layer->path());
    }
    layer->attach_token_rows(rows);
  }
  return {rows.get(), &weight, path, is_alone};
}

bool is_tied(models::Model& model) {
  const auto weights = models::vocabulary_weights(model);
  return weights.size() >= 2 && weights[0].parameter == weights[1].parameter;
}

bool stays_tied(const LoraOptions& options, models::Model& model, const std::string& weight) {
  if (!options.ensure_weight_tying || !is_tied(model)) return false;
  const auto weights = models::vocabulary_weights(model);
  return std::any_of(weights.begin(), weights.end(),
                     [&](const models::VocabularyWeight& one) { return one.name == weight; });
}

std::vector<std::string> notes_on_ties(const LoraOptions& options, bool targets_vocabulary,
                                       const std::vector<std::string>& saved, bool was_tied) {
  const bool saves_one = std::any_of(saved.begin(), saved.end(), [](const std::string& name) {
    return name.ends_with("embed_tokens.weight") || name.ends_with("wte.weight") ||
           name == "lm_head.weight";
  });
  if (options.ensure_weight_tying && !was_tied) {
    return {"ensure_weight_tying: the model's embedding and output layer are not tied"};
  }
  if (options.ensure_weight_tying && !saves_one && options.trainable_tokens.empty()) {
    return {"ensure_weight_tying: neither embedding nor output layer is part of the adapter"};
  }
  if (was_tied && !options.ensure_weight_tying && (saves_one || targets_vocabulary)) {
    return {
        "adapter: embedding and output layer are one weight in the base and the adapter changes "
        "one of them, which unties them; ensure_weight_tying keeps them tied in modules_to_save"};
  }
  return {};
}

EmbeddingStart draw_start(const nn::Embedding& embedding, const std::string& init,
                          const at::Generator& generator) {
  const nn::EmbeddingBranch& branch = *embedding.low_rank();
  EmbeddingStart start{at::randn(branch.a.shape(), generator),
                       at::randn(branch.b.shape(), generator)};
  if (init == "false") return start;
  start.a.zero_();
  start.b.normal_(0, 1, generator);
  return start;
}

}  // namespace strata::adapters
