#include "strata/checkpoint/convert/adapter_parts.h"

#include <algorithm>
#include <charconv>
#include <span>

#include <ATen/ops/equal.h>
#include <fmt/ranges.h>

#include "strata/adapters/module_match.h"
#include "strata/adapters/target_parameters.h"
#include "strata/base/error.h"
#include "strata/checkpoint/convert/convert.h"
#include "strata/checkpoint/convert/saved_values.h"
#include "strata/hf/adapter_files.h"
#include "strata/models/gpt2/config.h"
#include "strata/models/registry.h"

namespace strata::checkpoint {
namespace {

// What the first files of GPT-2 leave out.
const std::string kBody = "transformer.";

// The ends of PEFT's names of parts.
constexpr std::pair<std::string_view, std::optional<size_t> Parts::*> kEndings[] = {
    {".lora_A.weight", &Parts::a},
    {".lora_B.weight", &Parts::b},
    {".lora_magnitude_vector", &Parts::magnitude},
    {".lora_magnitude_vector.weight", &Parts::magnitude},
    {".lora_B.bias", &Parts::bias_of_b},
    {".ia3_l", &Parts::factors},
    {".lora_embedding_A", &Parts::columns},
    {".lora_embedding_B", &Parts::b},
    {".token_adapter.trainable_tokens_delta", &Parts::rows},
    {".vera_lambda_b", &Parts::lambda_b},
    {".vera_lambda_d", &Parts::lambda_d}};

}  // namespace

Json config_of(const SavedState& base) {
  const std::filesystem::path config = base_model_of(base) / "config.json";
  return std::filesystem::is_regular_file(config) ? read_json_file(config) : Json::object();
}

// T5's key of that name is another: its rows of single tokens are refused before.
static bool is_called_tied(const Json& config) {
  const std::string type = config.value("model_type", "");
  // Those that transformers ties where the file does not say.
  constexpr std::string_view kTied[] = {
      "bloom",    "cohere",      "cohere2",    "ernie4_5",    "ernie4_5_moe",
      "falcon",   "gemma",       "gemma2",     "gemma3_text", "gemma4_text",
      "gpt2",     "gpt_bigcode", "gpt_neo",    "granite_swa", "lfm2",
      "lfm2_moe", "minicpm3",    "mpt",        "openai-gpt",  "opt",
      "smollm3",  "starcoder2",  "vaultgemma", "xglm",        "youtu"};
  const bool is_by_default = std::ranges::find(kTied, type) != std::end(kTied);
  const char* key = config.contains("tie_embedding") ? "tie_embedding" : "tie_word_embeddings";
  const auto entry = config.find(key);  // LFM2 has a name of its own for it
  return entry == config.end() ? is_by_default : entry->is_boolean() && entry->get<bool>();
}

AdapterParts::AdapterParts(const SavedState& base, const Json& config, SavedState& adapter,
                           const adapters::LoraOptions& settings)
    : base_(base), config_(config), adapter_(adapter), settings_(settings) {
  for (size_t i = 0; i < base.tensors().size(); ++i) in_base_[base.tensors()[i].weight] = i;
  for (const char* name : {kShared, kGpt2Embedding, kGptEmbedding, kBareEmbedding, kNeoXEmbedding,
                           kOptEmbedding, kWordEmbedding, kNemotronEmbedding}) {
    if (in_base_.contains(name)) embedding_ = name;
  }
  is_bare_ = embedding_ == kBareEmbedding;
  name_parameter_branches();
  for (size_t i = 0; i < adapter.tensors().size(); ++i) {
    if (adapter.tensors()[i].is_parameter()) add_part(i);
  }
  // PEFT asks config.json for ties, and takes rows of single tokens for an own output layer, too.
  const Parts* embedding = find(embedding_);
  if (is_called_tied(config) && in_base_.contains(kHead) && embedding != nullptr &&
      embedding->rows) {
    parts_[kHead].rows = embedding->rows;
  }
  check_fit();
  require_targets();
}

const Parts* AdapterParts::find(const std::string& weight) const {
  const auto found = parts_.find(weight);
  return found == parts_.end() ? nullptr : &found->second;
}

bool AdapterParts::expert_rows_are_outputs() const {
  return models::expert_rows_are_outputs(config_);
}

std::string AdapterParts::module_of(const std::string& weight) const {
  const Parts* parts = find(weight);
  if (parts != nullptr && parts->layer) return parts->layer->parameter;
  if (parts != nullptr && (parts->is_of_experts || parts->is_of_matrix)) return weight;
  const std::string module = weight.substr(0, weight.rfind('.'));
  return is_bare_ && weight != kHead ? kBody + module : module;
}

bool AdapterParts::is_transposed(const std::string& weight) const {
  return models::is_conv1d_weight(config_, weight);
}

std::optional<size_t> AdapterParts::place_in_base(const std::string& name) const {
  const auto found = in_base_.find(name);
  return found == in_base_.end() ? std::nullopt : std::optional(found->second);
}

size_t AdapterParts::source_in_base(const std::string& name) const {
  const auto place = place_in_base(name);
  return place ? *place : untied_from_.value();
}

std::optional<LayerOfExperts> AdapterParts::layer_of_experts(const std::string& weight) const {
  constexpr std::string_view kExperts = ".experts.", kEnd = ".weight";
  const size_t at = weight.rfind(kExperts);
  if (at == std::string::npos || !weight.ends_with(kEnd)) return std::nullopt;
  const std::string begin = weight.substr(0, at + kExperts.size());
  if (begin.size() + kEnd.size() > weight.size()) return std::nullopt;
  int64_t expert = 0;
  const char* const last = weight.data() + weight.size() - kEnd.size();
  const auto [end, error] = std::from_chars(weight.data() + begin.size(), last, expert);
  constexpr int64_t kMostExperts = 1'000'000;
  if (error != std::errc() || end == last || *end != '.' || expert < 0 || expert >= kMostExperts) {
    return std::nullopt;
  }
  const std::string_view name(end + 1, static_cast<size_t>(last - end - 1));
  const auto all = models::expert_layer_names(config_);
  const auto found = std::ranges::find(all, name, &models::ExpertLayerName::layer);
  if (found == all.end()) return std::nullopt;
  const std::string_view parameter = found->parameter;
  const auto num_layers = std::ranges::count(all, parameter, &models::ExpertLayerName::parameter);
  return LayerOfExperts{.parameter = begin + std::string(parameter),
                        .num_layers = num_layers,
                        .place = found->place,
                        .expert = expert};
}

bool AdapterParts::is_targeted_matrix(const std::string& weight) const {
  const std::vector<int64_t>& shape = base_.tensors()[in_base_.at(weight)].shape;
  if (shape.size() == 3) return false;
  const bool is_matrix = shape.size() == 2 && weight.ends_with(".weight");
  if (is_matrix && !is_transposed(weight) && weight != embedding_) return true;
  throw ConfigError(
      "{}: found \"{}\" [{}] among target_parameters, expected parameters of experts or matrices "
      "[out, in] of layers; merge it with PEFT",
      adapter_.path().string(), weight, fmt::join(shape, ", "));
}

void AdapterParts::name_parameter_branches() {
  std::vector<std::string> weights;
  for (const auto& [name, place] : in_base_) {
    const auto layer = layer_of_experts(name);
    if (layer && adapters::matches_list(layer->parameter, settings_.target_parameters)) {
      expert_layers_[layer->parameter].emplace(name, *layer);
    }
  }
  for (auto& [parameter, layers] : expert_layers_) {
    weights.push_back(parameter);
    int64_t count = 0;
    for (const auto& [name, layer] : layers) count = std::max(count, layer.expert + 1);
    for (auto& [name, layer] : layers) layer.num_experts = count;
  }
  for (const auto& [name, place] : in_base_) {
    const bool is_packed = name.ends_with(kBlocks);
    const std::string weight = is_packed ? name.substr(0, name.size() - kBlocks.size()) : name;
    if (!adapters::matches_list(weight, settings_.target_parameters)) continue;
    if (is_packed) refuse_packed("branches of experts (target_parameters)", weight);
    if (is_targeted_matrix(weight)) {
      targeted_matrices_.insert(weight);
      continue;
    }
    weights.push_back(weight);
  }
  const std::vector<std::string> paths = adapters::branch_paths(weights);
  for (size_t i = 0; i < weights.size(); ++i) {
    expert_branches_[paths[i].substr(std::string_view(hf::kAdapterKeyPrefix).size())] = weights[i];
  }
}

void AdapterParts::add_expert_part(const std::string& parameter, std::optional<size_t> Parts::*part,
                                   size_t index) {
  const auto add = [&](const std::string& weight, const std::optional<LayerOfExperts>& layer) {
    Parts& parts = parts_[weight];
    parts.*part = index;
    parts.is_of_experts = true;
    parts.layer = layer;
  };
  const auto layers = expert_layers_.find(parameter);
  if (layers == expert_layers_.end()) return add(parameter, std::nullopt);
  for (const auto& [weight, layer] : layers->second) add(weight, layer);
}

void AdapterParts::add_part(size_t index) {
  std::string name = adapter_.tensors()[index].weight;
  if (name.starts_with(hf::kAdapterKeyPrefix)) {
    name = name.substr(std::string_view(hf::kAdapterKeyPrefix).size());
  }
  if (is_bare_ && name.starts_with(kBody)) name = name.substr(kBody.size());
  for (const auto& [key, place] : {std::pair{"base_model.vera_A", &projection_.a},
                                   std::pair{"base_model.vera_B", &projection_.b}}) {
    if (name != key) continue;
    *place = index;
    return;
  }
  for (const auto& [ending, part] : kEndings) {
    if (!name.ends_with(ending)) continue;
    const auto experts = expert_branches_.find(name.substr(0, name.size() - ending.size()));
    if (experts != expert_branches_.end() && (part == &Parts::a || part == &Parts::b)) {
      return add_expert_part(experts->second, part, index);
    }
    const std::string weight = name.substr(0, name.size() - ending.size()) + ".weight";
    Parts& parts = parts_[weight];
    parts.*part = index;
    parts.is_of_matrix = targeted_matrices_.contains(weight);
    return;
  }
  if (name.find(".lora_") != std::string::npos) {
    throw ConfigError("{}: found \"{}\", expected branches of linear layers; merge it with PEFT",
                      adapter_.path().string(), name);
  }
  // PEFT saves the base's own weight of a targeted output layer, and biases that trained.
  for (const std::string_view of_base : {".token_adapter.base_layer.", ".base_layer."}) {
    const size_t at = name.find(of_base);
    if (at == std::string::npos) continue;
    name.replace(at, of_base.size(), ".");
    if (name.ends_with(".bias")) break;
    if (name == embedding_ || name == kHead) parts_[name].base = index;
    return;
  }
  // Copies that PEFT adds of a module that is saved whole.
  const bool is_copy = name.find(".original_module.") != std::string::npos ||
                       name.find(".modules_to_save.") != std::string::npos;
  if (!is_copy) parts_[name].whole = index;
}

void AdapterParts::refuse(const std::vector<std::string>& misfits) const {
  constexpr size_t kMostShown = 5;
  const size_t shown = std::min(misfits.size(), kMostShown);
  const std::span<const std::string> first(misfits.data(), shown);
  const std::string rest =
      shown < misfits.size() ? fmt::format(", and {} more", misfits.size() - shown) : "";
  throw ConfigError(
      "{}: found {}{}, expected an adapter of {}; name the base that it was trained on",
      adapter_.path().string(), fmt::join(first, ", "), rest, base_.path().string());
}

void AdapterParts::refuse_packed(std::string_view found, const std::string& weight) const {
  throw ConfigError(
      "{}: found {} for \"{}\", which the base holds in MXFP4, expected plain weights to merge "
      "into; pass --dequantize to write decoded weights",
      adapter_.path().string(), found, weight);
}

SavedTensor AdapterParts::resized(SavedTensor tensor) const {
  const auto parts = parts_.find(tensor.weight);
  if (!num_rows_ || parts == parts_.end()) return tensor;
  if (parts->second.whole) tensor.shape = shape_of(*parts->second.whole);
  if (parts->second.base) tensor.shape = shape_of(*parts->second.base);
  return tensor;
}

bool AdapterParts::is_resized(const std::string& weight, const std::vector<int64_t>& found,
                              const std::vector<int64_t>& base) {
  if (weight != kHead && weight != embedding_) return false;
  if (found.size() != 2 || base.size() != 2 || found[1] != base[1]) return false;
  if (num_rows_ && *num_rows_ != found[0]) return false;
  num_rows_ = found[0];
  return true;
}

void AdapterParts::take_grown_rows() {
  for (const std::string& weight : {embedding_, std::string(kHead)}) {
    const auto parts = parts_.find(weight);
    if (parts == parts_.end()) continue;
    const auto found = in_base_.find(weight);
    std::optional<size_t>& base = parts->second.base;
    if (found != in_base_.end() && base) {
      const std::vector<int64_t>& shape = base_.tensors()[found->second].shape;
      if (shape_of(*base) == shape || !is_resized(weight, shape_of(*base), shape)) base.reset();
    }
    // A branch on a tied output layer unties it; the copy of its weight is the embedding's.
    const bool has_own = parts->second.a || parts->second.factors || parts->second.lambda_b;
    if (found == in_base_.end() && has_own) base.reset();
    // A tied output layer goes with the embedding, rows of single tokens too, unless it alone has
    // some.
    const bool is_second = found == in_base_.end() && weight == kHead &&
                           (base || parts->second.rows) && !has_rows_alone(parts->second);
    if (is_second) require_rows_of_both(parts->second);
    if (is_second || parts->second.is_empty()) parts_.erase(parts);
  }
}

bool AdapterParts::has_rows_alone(const Parts& head) const {
  const Parts* embedding = find(embedding_);
  const bool has_both = embedding != nullptr && embedding->rows;
  return head.rows && !has_both && settings_.token_module == "lm_head";
}

void AdapterParts::require_rows_of_both(const Parts& head) const {
  if (!head.rows) return;
  const Parts* embedding = find(embedding_);
  if (embedding != nullptr && embedding->rows &&
      read_tensor(adapter_, *embedding->rows).equal(read_tensor(adapter_, *head.rows))) {
    return;
  }
  refuse({fmt::format("rows that \"{}\" has not for the tied \"{}\"", embedding_, kHead)});
}

bool AdapterParts::drop_second_name() {
  const auto head = parts_.find(kHead), embedding = parts_.find(embedding_);
  if (in_base_.contains(kHead) || embedding == parts_.end()) return false;
  if (head == parts_.end()) return settings_.ensure_weight_tying && embedding->second.whole;
  if (!head->second.whole || !embedding->second.whole) return false;
  const at::Tensor one = read_tensor(adapter_, *head->second.whole);
  const at::Tensor other = read_tensor(adapter_, *embedding->second.whole);
  if (one.sizes() != other.sizes() || !one.equal(other)) return false;
  parts_.erase(head);
  return true;
}

const std::vector<int64_t>& AdapterParts::shape_of(size_t index) const {
  return adapter_.tensors()[index].shape;
}

}  // namespace strata::checkpoint
