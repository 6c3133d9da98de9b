#include "strata/checkpoint/adapter_parts.h"

#include <algorithm>
#include <span>

#include <ATen/ops/equal.h>
#include <fmt/ranges.h>

#include "strata/adapters/module_match.h"
#include "strata/adapters/target_layers.h"
#include "strata/adapters/target_parameters.h"
#include "strata/base/error.h"
#include "strata/checkpoint/convert.h"
#include "strata/checkpoint/saved_values.h"
#include "strata/hf/adapter_files.h"
#include "strata/models/gpt2/config.h"
#include "strata/models/reward_head.h"

namespace strata::checkpoint {
namespace {

// What the first files of GPT-2 leave out.
const std::string kBody = "transformer.";

// Of a weight in MXFP4 (hf/mxfp4.h).
constexpr std::string_view kBlocks = "_blocks";

[[noreturn]] void refuse_packed(const SavedState& adapter, std::string_view found,
                                const std::string& weight) {
  throw ConfigError(
      "{}: found {} for \"{}\", which the base holds in MXFP4, expected plain weights to merge "
      "into; pass --dequantize to write decoded weights",
      adapter.path().string(), found, weight);
}

// What of an adapter does not fit the base.
struct Misfit {
  std::string text;
};
[[noreturn]] void fail(const std::string& weight, const std::string& found) {
  throw Misfit{fmt::format("{} for \"{}\"", found, weight)};
}

// b [rows, r], a [r, columns] of a matrix; r, the rank, as adapter_config.json says, by which PEFT
// scales.
void check_branch(const std::string& weight, const std::vector<int64_t>& b,
                  const std::vector<int64_t>& a, const std::vector<int64_t>& shape, int64_t rank) {
  if (a.size() == 2 && b.size() == 2 && shape.size() == 2 && a[0] == b[1] && a[1] == shape[1] &&
      b[0] == shape[0]) {
    if (a[0] == rank) return;
    fail(weight, fmt::format("a branch of rank {}, {} in adapter_config.json,", a[0], rank));
  }
  fail(weight, fmt::format("a branch of [{}] and [{}]", fmt::join(a, ", "), fmt::join(b, ", ")));
}

void check_factors(const std::string& weight, const std::vector<int64_t>& factors,
                   const std::vector<int64_t>& shape) {
  const bool fits = shape.size() == 2 && (factors == std::vector<int64_t>{shape[0], 1} ||
                                          factors == std::vector<int64_t>{1, shape[1]});
  if (!fits) fail(weight, fmt::format("factors of [{}]", fmt::join(factors, ", ")));
}

}  // namespace

Json config_of(const SavedState& base) {
  const std::filesystem::path config = base_model_of(base) / "config.json";
  return std::filesystem::is_regular_file(config) ? read_json_file(config) : Json::object();
}

// T5's key of that name is another: its rows of single tokens are refused before.
static bool is_called_tied(const Json& config) {
  const bool is_gpt2 = config.value("model_type", "").starts_with("gpt");
  const auto entry = config.find("tie_word_embeddings");
  return entry == config.end() ? is_gpt2 : entry->is_boolean() && entry->get<bool>();
}

AdapterParts::AdapterParts(const SavedState& base, const Json& config, SavedState& adapter,
                           const adapters::LoraOptions& settings)
    : base_(base), config_(config), adapter_(adapter), settings_(settings) {
  for (size_t i = 0; i < base.tensors().size(); ++i) in_base_[base.tensors()[i].weight] = i;
  for (const char* name : {kShared, kGpt2Embedding, kBareEmbedding}) {
    if (in_base_.contains(name)) embedding_ = name;
  }
  is_bare_ = embedding_ == kBareEmbedding;
  name_expert_branches();
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

std::string AdapterParts::module_of(const std::string& weight) const {
  const Parts* parts = find(weight);
  if (parts != nullptr && parts->is_of_experts) return weight;
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

void AdapterParts::name_expert_branches() {
  std::vector<std::string> weights;
  for (const auto& [name, place] : in_base_) {
    const bool is_packed = name.ends_with(kBlocks);
    const std::string weight = is_packed ? name.substr(0, name.size() - kBlocks.size()) : name;
    if (!adapters::matches_list(weight, settings_.target_parameters)) continue;
    if (is_packed) refuse_packed(adapter_, "branches of experts (target_parameters)", weight);
    weights.push_back(weight);
  }
  const std::vector<std::string> paths = adapters::branch_paths(weights);
  for (size_t i = 0; i < weights.size(); ++i) {
    expert_branches_[paths[i].substr(std::string_view(hf::kAdapterKeyPrefix).size())] = weights[i];
  }
}

void AdapterParts::add_part(size_t index) {
  std::string name = adapter_.tensors()[index].weight;
  if (name.starts_with(hf::kAdapterKeyPrefix)) {
    name = name.substr(std::string_view(hf::kAdapterKeyPrefix).size());
  }
  if (is_bare_ && name.starts_with(kBody)) name = name.substr(kBody.size());
  const std::pair<std::string_view, std::optional<size_t> Parts::*> kEndings[] = {
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
      parts_[experts->second].*part = index;
      parts_[experts->second].is_of_experts = true;
      return;
    }
    parts_[name.substr(0, name.size() - ending.size()) + ".weight"].*part = index;
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

void AdapterParts::check_fit() {
  bool has_branch = false;
  take_grown_rows();
  const bool stays_tied = drop_second_name();
  const bool unties = !stays_tied && !in_base_.contains(kHead) && !parts_.contains(kHead);
  std::vector<std::string> misfits;
  for (const auto& [weight, parts] : parts_) {
    try {
      has_branch |= check_weight(weight, parts, unties);
    } catch (const Misfit& misfit) {
      misfits.push_back(misfit.text);
    }
  }
  if (!misfits.empty()) refuse(misfits);
  if (!has_branch) {
    throw ConfigError("{}: found no LoRA weights, expected an adapter", adapter_.path().string());
  }
}

// PEFT makes layers of adapter_config.json and leaves other tensors of the file out without a word.
void AdapterParts::require_targets() const {
  std::vector<std::string> others;
  for (const auto& [weight, parts] : parts_) {
    const bool has_branch = parts.a || parts.columns || parts.factors || parts.lambda_b;
    const std::string path = weight.substr(0, weight.rfind('.'));
    if (has_branch && !parts.is_of_experts && !adapters::may_target(settings_, path))
      others.push_back(path);
  }
  if (others.empty()) return;
  throw ConfigError(
      "{}: found tensors for {} that target_modules of adapter_config.json does not mean (the "
      "first "
      "is \"{}\"), expected those of its layers alone; correct adapter_config.json",
      adapter_.path().string(),
      others.size() == 1 ? "a layer" : fmt::format("{} layers", others.size()), others[0]);
}

bool AdapterParts::check_weight(const std::string& weight, const Parts& parts, bool unties) {
  auto found = in_base_.find(weight);
  if (found == in_base_.end() && weight == kHead && in_base_.contains(embedding_)) {
    // The head changes, the embedding that it was a name of does not.
    found = in_base_.find(embedding_);
    untied_from_ = found->second;
    if (parts.whole) return false;
  }
  if (found == in_base_.end() && weight == models::kRewardWeight && parts.whole) {
    // Of several labels it is no layer of rewards, and config.json would say that it is.
    const std::vector<int64_t>& head = shape_of(*parts.whole);
    if (head.size() != 2 || head[0] != 1) {
      fail(weight, fmt::format("values [{}] and not of one label", fmt::join(head, ", ")));
    }
    new_head_ = parts.whole;
    return false;
  }
  if (found == in_base_.end()) {
    if (in_base_.contains(weight + std::string(kBlocks))) {
      refuse_packed(adapter_, "values of experts that trained whole (modules_to_save)", weight);
    }
    fail(weight, "values");
  }
  std::vector<int64_t> shape =
      parts.base ? shape_of(*parts.base) : base_.tensors()[found->second].shape;
  if (parts.whole) {
    const std::vector<int64_t>& whole = shape_of(*parts.whole);
    const bool has_rows = whole != shape && is_resized(weight, whole, shape);
    if (whole != shape && !has_rows) fail(weight, "another shape");
    // The base's head was the embedding that is replaced here; the head keeps its values.
    if (weight == embedding_ && unties && !has_rows) untied_from_ = found->second;
    return false;
  }
  if (parts.base && !parts.a && !parts.rows && !parts.columns) return false;
  if (parts.is_of_experts) {
    check_experts(weight, parts, shape);
    return true;
  }
  check_bias(weight, parts);
  // From here on [out, in].
  if (is_transposed(weight)) std::ranges::reverse(shape);
  const int64_t rank = adapters::rank_of(settings_, module_of(weight));
  if (parts.rows) {
    check_rows(weight, shape_of(*parts.rows), shape);
  } else if (parts.columns) {
    if (!parts.b) fail(weight, "half a branch");
    check_branch(weight, shape_of(*parts.b), shape_of(*parts.columns), {shape[1], shape[0]}, rank);
    if (parts.magnitude.has_value() != settings_.use_dora) fail(weight, "half a DoRA branch");
    // The head was a name of the embedding, to which the branch does not belong.
    if (weight == embedding_ && unties) untied_from_ = found->second;
  } else if (parts.factors) {
    check_factors(weight, shape_of(*parts.factors), shape);
  } else if (parts.lambda_b || parts.lambda_d) {
    check_vectors(weight, parts, shape);
  } else {
    if (!parts.a || !parts.b) fail(weight, "half a branch");
    check_branch(weight, shape_of(*parts.b), shape_of(*parts.a), shape, rank);
    if (parts.magnitude.has_value() != settings_.use_dora) fail(weight, "half a DoRA branch");
  }
  return true;
}

void AdapterParts::check_vectors(const std::string& weight, const Parts& parts,
                                 const std::vector<int64_t>& shape) {
  if (!parts.lambda_b || !parts.lambda_d || shape.size() != 2 ||
      shape_of(*parts.lambda_b) != std::vector<int64_t>{shape[0]} ||
      shape_of(*parts.lambda_d).size() != 1) {
    fail(weight, "half a VeRA branch, or vectors of another size,");
  }
  projection_.rank = shape_of(*parts.lambda_d)[0];
  projection_.most_in = std::max(projection_.most_in, shape[1]);
  projection_.most_out = std::max(projection_.most_out, shape[0]);
}

void AdapterParts::check_experts(const std::string& weight, const Parts& parts,
                                 const std::vector<int64_t>& shape) const {
  if (!parts.a || !parts.b) fail(weight, "half a branch");
  if (shape.size() != 3) fail(weight, "branches of experts");
  const int64_t rows = shape[0] * adapters::rank_of(settings_, weight);
  check_branch(weight, shape_of(*parts.b), shape_of(*parts.a), {shape[2], shape[1]}, rows);
}

void AdapterParts::check_rows(const std::string& weight, const std::vector<int64_t>& rows,
                              const std::vector<int64_t>& shape) const {
  const std::vector<int64_t> ids = settings_.trainable_tokens;
  bool fits = rows.size() == 2 && shape.size() == 2 && rows[1] == shape[1] &&
              rows[0] == static_cast<int64_t>(ids.size());
  const int64_t num_rows = num_rows_.value_or(shape.empty() ? 0 : shape[0]);
  for (const int64_t id : ids) fits = fits && id >= 0 && id < num_rows;
  if (!fits) fail(weight, fmt::format("rows [{}]", fmt::join(rows, ", ")));
}

void AdapterParts::check_bias(const std::string& weight, const Parts& parts) const {
  if (!parts.bias_of_b) return;
  const std::string bias = weight.substr(0, weight.rfind('.')) + ".bias";
  const auto found = in_base_.find(bias);
  if (found == in_base_.end()) fail(bias, "a trained bias");
  if (shape_of(*parts.bias_of_b) != base_.tensors()[found->second].shape) {
    fail(bias, "another shape");
  }
}

}  // namespace strata::checkpoint
