// Whether the tensors of an adapter fit its base (adapter_parts.h). Owns: the shapes that belong
// together, what a list of misfits says. Never: names of parts.
#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "strata/adapters/target_layers.h"
#include "strata/base/error.h"
#include "strata/checkpoint/convert/adapter_parts.h"
#include "strata/models/registry.h"
#include "strata/models/reward_head.h"

namespace strata::checkpoint {
namespace {

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
    const bool is_of_parameter = parts.is_of_experts || parts.is_of_matrix;
    if (has_branch && !is_of_parameter && !adapters::may_target(settings_, path)) {
      others.push_back(path);
    }
  }
  if (others.empty()) return;
  throw ConfigError(
      "{}: found tensors for {} that target_modules of adapter_config.json does not mean (the "
      "first "
      "is \"{}\"), expected those of its layers alone; correct adapter_config.json",
      adapter_.path().string(),
      others.size() == 1 ? "a layer" : fmt::format("{} layers", others.size()), others[0]);
}

bool AdapterParts::is_document_head(const std::string& weight) const {
  const bool is_score = weight == models::kRewardWeight;
  return models::is_head_weight(weight) && is_score != models::is_encoder(config_);
}

bool AdapterParts::replaces_head(const std::string& weight, std::vector<int64_t> shape,
                                 std::vector<int64_t> base) const {
  if (!is_document_head(weight)) return false;
  if (models::num_labels(config_) == 0) return true;
  const std::string layer = weight.substr(0, weight.rfind('.'));
  if (!models::is_label_weight(layer + ".weight") || shape.empty() || base.empty()) return false;
  return std::exchange(shape[0], 0) != std::exchange(base[0], 0) && shape == base;
}

void AdapterParts::take_new_weight(const std::string& weight, const Parts& parts) {
  if (parts.whole && is_document_head(weight)) {
    const std::vector<int64_t>& head = shape_of(*parts.whole);
    if (models::is_label_weight(weight)) {
      if (head.size() != 2) {
        fail(weight, fmt::format("values [{}] and no rows of labels", fmt::join(head, ", ")));
      }
      num_labels_ = head[0];
    }
    new_head_.emplace_back(weight, *parts.whole);
    return;
  }
  // PEFT over transformers 5 trains the matrices of all experts as one parameter.
  const bool is_of_all =
      weight.ends_with(".experts.weight") || weight.ends_with(".experts.base_layer.weight");
  if (parts.a && is_of_all && !settings_.target_parameters.empty()) {
    throw ConfigError(
        "{}: found branches of all experts of a layer together (target_parameters {}), expected "
        "one for each expert, as the base's files hold them; merge it with PEFT",
        adapter_.path().string(), fmt::join(settings_.target_parameters, ", "));
  }
  if (in_base_.contains(weight + std::string(kBlocks))) {
    refuse_packed("values of experts that trained whole (modules_to_save)", weight);
  }
  fail(weight, "values");
}

bool AdapterParts::check_weight(const std::string& weight, const Parts& parts, bool unties) {
  auto found = in_base_.find(weight);
  if (found == in_base_.end() && weight == kHead && in_base_.contains(embedding_)) {
    // The head changes, the embedding that it was a name of does not.
    found = in_base_.find(embedding_);
    untied_from_ = found->second;
    if (parts.whole) return false;
  }
  if (found == in_base_.end()) {
    take_new_weight(weight, parts);
    return false;
  }
  std::vector<int64_t> shape =
      parts.base ? shape_of(*parts.base) : base_.tensors()[found->second].shape;
  if (parts.whole && replaces_head(weight, shape_of(*parts.whole), shape)) {
    take_new_weight(weight, parts);
    return false;
  }
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
  if (parts.layer) {
    const LayerOfExperts& layer = *parts.layer;
    if (shape.size() != 2) fail(weight, "branches of experts");
    check_branch(weight, shape_of(*parts.b), shape_of(*parts.a),
                 {layer.num_layers * shape[0], shape[1]},
                 layer.num_experts * adapters::rank_of(settings_, layer.parameter));
    return;
  }
  if (shape.size() != 3) fail(weight, "branches of experts");
  const int64_t rows = shape[0] * adapters::rank_of(settings_, weight);
  const bool rows_are_outputs = expert_rows_are_outputs();
  const int64_t in = shape[rows_are_outputs ? 2 : 1], out = shape[rows_are_outputs ? 1 : 2];
  check_branch(weight, shape_of(*parts.b), shape_of(*parts.a), {out, in}, rows);
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
  if (found == in_base_.end()) {
    throw ConfigError(
        "{}: found a trained bias (lora_bias) of \"{}\", which has none in {}, expected a bias of "
        "the base to add it to: the model has no place for it; use the adapter with its base",
        adapter_.path().string(), module_of(weight), base_.path().string());
  }
  if (shape_of(*parts.bias_of_b) != base_.tensors()[found->second].shape) {
    fail(bias, "another shape");
  }
}

}  // namespace strata::checkpoint
