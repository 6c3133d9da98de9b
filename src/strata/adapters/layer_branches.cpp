#include "strata/adapters/layer_branches.h"

#include <algorithm>
#include <string>
#include <utility>

#include "strata/adapters/lora_init.h"
#include "strata/adapters/target_layers.h"
#include "strata/adapters/vera.h"
#include "strata/base/error.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/module_pattern.h"

namespace strata::adapters {
namespace {

int64_t most_rank(const nn::Linear& layer) {
  return std::min(layer.in_features(), layer.out_features());
}

// Beside larger layers a narrow one (a router, say) may have a rank beyond its own.
void check_rank(const nn::Linear& layer, int64_t rank, int64_t most_of_all) {
  const int64_t most = most_rank(layer);
  if (rank <= most || rank <= most_of_all) return;
  throw ConfigError(
      "lora_r: found {} for \"{}\" [{}, {}], expected at most {}; choose a smaller rank, or one "
      "for this layer with rank_pattern",
      rank, layer.path(), layer.out_features(), layer.in_features(), most);
}

// For some of these settings PEFT makes something else here.
void check_conv1d(const nn::Linear& layer, const LoraOptions& options) {
  if (!layer.weight().is_transposed() || !changes_base(options)) return;
  throw ConfigError(
      "init_lora_weights: found {} for \"{}\", whose file holds it as [in, out] (GPT-2's Conv1D), "
      "expected true, false, gaussian or orthogonal there; choose one of them",
      options.init, layer.path());
}

// The largest rank of any of the layers, where first values are drawn for any rank.
int64_t most_rank(const std::vector<nn::Linear*>& layers, const LoraOptions& options) {
  int64_t most = 0;
  if (options.init != "true" && options.init != "false" && options.init != "gaussian") return most;
  for (const nn::Linear* layer : layers) most = std::max(most, most_rank(*layer));
  return most;
}

std::vector<nn::Parameter*> attach_branch(nn::Linear& layer, const LoraOptions& options,
                                          uint64_t layer_id, int64_t most_of_all) {
  check_conv1d(layer, options);
  const std::string base = hf::kAdapterKeyPrefix + layer.path();
  const int64_t rank = rank_of(options, layer.path());
  check_rank(layer, rank, most_of_all);
  auto branch = std::unique_ptr<nn::LowRankBranch>(new nn::LowRankBranch{
      .a = {base + ".lora_A.weight", {rank, layer.in_features()}, at::kFloat},
      .b = {base + ".lora_B.weight", {layer.out_features(), rank}, at::kFloat},
      .scaling = scaling_of(options, layer.path(), rank),
      .dropout = options.dropout,
      .layer_id = layer_id});
  const auto vector = [&](const char* end) {
    return std::make_unique<nn::Parameter>(base + end, std::vector<int64_t>{layer.out_features()},
                                           at::kFloat);
  };
  if (options.lora_bias) branch->bias = vector(".lora_B.bias");
  if (options.use_dora) branch->magnitude = vector(".lora_magnitude_vector");
  layer.attach_low_rank(std::move(branch));
  std::vector<nn::Parameter*> parameters;
  layer.low_rank()->append_parameters(parameters);
  return parameters;
}

std::vector<nn::Parameter*> attach_vectors(nn::Linear& layer, const LoraOptions& options,
                                           uint64_t layer_id,
                                           std::shared_ptr<nn::VeraProjection> projection) {
  const std::string base = hf::kAdapterKeyPrefix + layer.path();
  layer.attach_vera(std::unique_ptr<nn::Vera>(
      new nn::Vera{.projection = std::move(projection),
                   .b = {base + ".vera_lambda_b", {layer.out_features()}, at::kFloat},
                   .d = {base + ".vera_lambda_d", {options.r}, at::kFloat},
                   .dropout = options.dropout,
                   .layer_id = layer_id}));
  return {&layer.vera()->b, &layer.vera()->d};
}

bool is_feedforward(const std::string& path, const LoraOptions& options,
                    const models::Model& model) {
  if (options.feedforward_pattern)
    return hf::ModulePattern(*options.feedforward_pattern).matches(path);
  const auto names = options.feedforward_modules.value_or(model.default_ia3_feedforward());
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return path.ends_with(name); });
}

std::vector<nn::Parameter*> attach_factors(nn::Linear& layer, const LoraOptions& options,
                                           const models::Model& model) {
  const bool of_input = is_feedforward(layer.path(), options, model);
  const std::vector<int64_t> shape = of_input ? std::vector<int64_t>{1, layer.in_features()}
                                              : std::vector<int64_t>{layer.out_features(), 1};
  const std::string name = hf::kAdapterKeyPrefix + layer.path() + ".ia3_l";
  layer.attach_rescale(std::unique_ptr<nn::Rescale>(
      new nn::Rescale{.factors = {name, shape, at::kFloat}, .of_input = of_input}));
  return {&layer.rescale()->factors};
}

}  // namespace

std::shared_ptr<nn::VeraProjection> make_projection(const std::vector<nn::Linear*>& layers,
                                                    const LoraOptions& options) {
  int64_t in = 0, out = 0;
  for (const nn::Linear* layer : layers) {
    in = std::max(in, layer->in_features());
    out = std::max(out, layer->out_features());
  }
  return std::make_shared<nn::VeraProjection>(
      draw_projection(options.projection_prng_key, options.r, in, out));
}

std::vector<AdapterTensor> attach_to_layers(const std::vector<nn::Linear*>& layers,
                                            const LoraOptions& options, const models::Model& model,
                                            const std::shared_ptr<nn::VeraProjection>& projection) {
  const int64_t most_of_all = most_rank(layers, options);
  const auto attach = [&](nn::Linear& layer, uint64_t layer_id) {
    if (options.method == Method::kIa3) return attach_factors(layer, options, model);
    if (options.method == Method::kVera) {
      return attach_vectors(layer, options, layer_id, projection);
    }
    return attach_branch(layer, options, layer_id, most_of_all);
  };
  std::vector<AdapterTensor> tensors;
  for (size_t i = 0; i < layers.size(); ++i) {
    for (nn::Parameter* parameter : attach(*layers[i], i)) {
      tensors.push_back({parameter->name(), parameter});
    }
  }
  return tensors;
}

}  // namespace strata::adapters
