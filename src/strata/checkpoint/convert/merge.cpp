#include "strata/checkpoint/convert/merge.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include "strata/adapters/adapter_options.h"
#include "strata/adapters/base_directions.h"
#include "strata/adapters/lora_init.h"
#include "strata/adapters/merged_weight.h"
#include "strata/adapters/target_layers.h"
#include "strata/adapters/vera.h"
#include "strata/base/abandoned.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/base_mark.h"
#include "strata/checkpoint/convert/adapter_parts.h"
#include "strata/checkpoint/convert/convert.h"
#include "strata/checkpoint/convert/param_groups.h"
#include "strata/checkpoint/convert/saved_values.h"
#include "strata/checkpoint/convert/vera_projection.h"
#include "strata/checkpoint/element_type.h"
#include "strata/checkpoint/export_files.h"
#include "strata/checkpoint/finite_values.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/weight_names.h"
#include "strata/models/registry.h"
#include "strata/models/reward_head.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

// adapter_config.json of what is merged; `notes`: what is not known of it. ConfigError for methods
// that no weight can hold.
adapters::LoraOptions settings_of(const SavedState& adapter, std::vector<std::string>& notes) {
  const std::string subject = adapter.path().string();
  if (!adapter.is_adapter() && adapter.facts().adapter_config.is_null()) {
    throw ConfigError(
        "{}: found no weights of an adapter, expected a PEFT folder or a checkpoint of a run with "
        "an adapter; name the adapter here and its base with --base_model",
        subject);
  }
  const hf::AdapterConfig config =
      hf::parse_adapter_config(parse_json(adapter_config_text(adapter), subject), subject);
  notes = config.warnings;
  adapters::LoraOptions options = adapters::lora_options_of(config);
  if (options.has_virtual_tokens()) {
    throw ConfigError(
        "{}: found an adapter of type {}, which is no part of any weight, expected LORA (with DoRA "
        "or without), IA3 or VERA; use it with its base",
        subject, config.peft_type);
  }
  adapters::require_known_directions(options, subject);
  return options;
}

// The tensors of the result, in the order in which they are written.
struct Layout {
  std::vector<hf::TensorBytes> sizes;  // by their names in the file
  std::vector<std::string> weights;    // the same by those in the model
  std::unordered_map<std::string, hf::TensorSpec> specs;
  uint64_t num_parameters = 0;
};

class Merger {
 public:
  Merger(SavedState& base, SavedState& adapter, const MergeOptions& options)
      : base_(base),
        adapter_(adapter),
        options_(options),
        settings_(settings_of(adapter, notes_)),
        config_(config_of(base)),
        parts_(base, config_, adapter, settings_) {
    if (options.decoded && adapters::changes_base(settings_) && settings_.init != "olora") {
      throw ConfigError(
          "{}: found init_lora_weights {} over codes, expected an adapter of plain weights to be "
          "merged into those; name the model that was quantised with --base_model",
          adapter.path().string(), settings_.init);
    }
    projection_ = projection_of(base, adapter, parts_, settings_);
    const std::string base_note = require_base(
        adapter.path().string(), adapter.facts().base_fingerprint, base.path().string(),
        base.facts().base_fingerprint, adapters::changes_base(settings_));
    if (!base_note.empty()) notes_.push_back(base_note);
  }

  std::vector<std::string> write(const fs::path& out) {
    require_new_folder(out);
    const Layout layout = layout_of_result();
    if (const auto count = parts_.num_labels()) {
      models::give_labels_of(adapter_.path(), *count, config_);
    } else if (const int64_t labels = models::num_labels(config_); labels > 0) {
      models::give_labels_of(adapter_.path(), labels, config_);
    }
    const hf::ShardPlan plan = hf::plan_shards(layout.sizes, options_.max_shard_size);
    const fs::path in_use[] = {adapter_.path(), base_.path()};
    for (std::string& note : remove_abandoned(out, in_use)) notes_.push_back(std::move(note));
    AtomicFolder folder(out, *options_.files);
    const WriteClaim claim(folder.path());
    ExportFiles files(folder.path(), Trained::kUnknown, *options_.files);
    files.add(plan, layout.specs);
    if (plan.is_indexed()) {
      files.add_text(hf::kModelIndexFile, plan.index_json(layout.num_parameters));
    }
    for (size_t i = 0; i < layout.sizes.size(); ++i) {
      const std::string& name = layout.sizes[i].name;
      const at::Tensor value =
          merged(layout.weights[i]).to(memory_type_of(layout.specs.at(name).dtype));
      files.write(name, {static_cast<const std::byte*>(value.data_ptr()), value.nbytes()});
    }
    files.publish();
    std::vector<std::string> notes = notes_;
    add_companions(folder.path(), notes);
    require_new_folder(out);  // what came there meanwhile stays
    folder.commit();
    return notes;
  }

 private:
  void add_tensor(Layout& layout, const std::string& weight, const SavedTensor& tensor) const {
    const std::string name = hf::name_in_folder(config_, weight);
    layout.weights.push_back(weight);
    const bool is_rounded =
        !hf::keeps_float32(weight) && at::isFloatingType(memory_type_of(tensor.dtype));
    const hf::DType type = is_rounded ? options_.weight_type.value_or(tensor.dtype) : tensor.dtype;
    const uint64_t numel = tensor.size_bytes() / hf::size_of(tensor.dtype);
    layout.specs[name] = {name, type, tensor.shape};
    layout.sizes.push_back({name, numel * hf::size_of(type)});
    if (!hf::is_buffer(weight)) layout.num_parameters += numel;
  }

  bool is_of_other_head(const std::string& weight) const {
    return models::is_of_other_head(weight) ||
           (!models::is_encoder(config_) && models::is_token_head_weight(weight));
  }

  Layout layout_of_result() const {
    Layout layout;
    for (const SavedTensor& tensor : base_.tensors()) {
      const bool is_replaced =
          (parts_.num_labels() && is_of_other_head(tensor.weight)) ||
          std::ranges::count(parts_.new_head(), tensor.weight, &AdapterParts::NewWeight::first) > 0;
      if (!is_replaced) add_tensor(layout, tensor.weight, parts_.resized(tensor));
    }
    for (const auto& [weight, index] : parts_.new_head()) {
      SavedTensor head = adapter_.tensors()[index];
      head.dtype = plain_type(base_);
      add_tensor(layout, weight, head);
    }
    if (const auto untied_from = parts_.untied_from()) {
      SavedTensor head = base_.tensors()[*untied_from];
      head.weight = AdapterParts::kHead;
      add_tensor(layout, AdapterParts::kHead, parts_.resized(head));
    }
    return layout;
  }

  // The files beside the weights; `notes` takes what they need of the reader.
  void add_companions(const fs::path& folder, std::vector<std::string>& notes) const {
    // A tokenizer beside the adapter is the one it was trained with.
    const ConfigChange change{
        .type = options_.weight_type.value_or(plain_type(base_)),
        // T5 has no such setting: its config.json says by that name how
        // the decoder's output is scaled, and two tensors are two weights.
        .unties_head = parts_.untied_from().has_value() && !parts_.has_shared_embedding(),
        .is_decoded = true,
        .is_packed = holds_packed(base_),
        .vocab_size = parts_.num_rows(),
        .config = models::num_labels(config_) > 0 ? config_ : Json(),
        .tokenizer = adapter_.path(),
        .takes_special_tokens = true,
        .notes = &notes,
        .files = options_.files};
    const fs::path companions = base_model_of(base_);
    if (companions.empty() || !copy_companions(companions, folder, change)) {
      notes.emplace_back(
          "the base has no config.json: copy it and the tokenizer into the weights' folder");
    }
  }

  at::Tensor merged(const std::string& name) {
    at::Tensor value = merged_unchecked(name);
    if (is_finite(value)) return value;
    throw FormatError(
        "{}: found NaN or infinity in \"{}\" after merging, expected finite numbers; the adapter "
        "or the base is broken",
        adapter_.path().string(), name);
  }

  // A bias takes what belongs to its layer: B's bias, the factors of (IA)^3.
  void add_to_bias(const std::string& name, at::Tensor& value) {
    if (!name.ends_with(".bias")) return;
    const std::string module = name.substr(0, name.rfind('.'));
    const Parts* layer = parts_.find(module + ".weight");
    if (layer == nullptr) return;
    const Parts& parts = *layer;
    if (parts.bias_of_b) {
      const at::Tensor bias = read_tensor(adapter_, *parts.bias_of_b).to(at::kFloat);
      const double scale = scale_of(name, parts_.shape_of(*parts.a)[0]);
      value = value.to(at::kFloat).add(bias, scale).to(type_of_result(value));
    }
    if (parts.factors && parts_.shape_of(*parts.factors)[1] == 1) {
      const at::Tensor factors = read_tensor(adapter_, *parts.factors).to(at::kFloat);
      value = (value * factors.view({-1})).to(type_of_result(value));
    }
  }

  // For a result in fp32 values of codes are not rounded to the type that the weights had before.
  at::Tensor base_weight(size_t index) const {
    const SavedTensor& tensor = base_.tensors()[index];
    const bool is_exact = tensor.is_decoded && options_.weight_type == hf::DType::kF32;
    return is_exact ? options_.decoded->decode(tensor.weight, at::kFloat)
                    : read_tensor(base_, index);
  }

  at::Tensor merged_unchecked(const std::string& name) {
    const Parts* parts = parts_.find(name);
    if (parts != nullptr && parts->whole) {
      at::Tensor value = read_tensor(adapter_, *parts->whole);
      add_to_bias(name, value);
      return value;
    }
    at::Tensor weight = parts != nullptr && parts->base ? read_tensor(adapter_, *parts->base)
                                                        : base_weight(parts_.source_in_base(name));
    add_to_bias(name, weight);
    if (parts == nullptr) return weight;
    if (!parts_.is_transposed(name)) return with_parts(name, weight, *parts);
    if (adapters::changes_base(settings_)) {
      throw ConfigError(
          "{}: found init_lora_weights {} over \"{}\", which the base holds as [in, out], expected "
          "true, false, gaussian or orthogonal there; merge it with PEFT",
          adapter_.path().string(), settings_.init, name);
    }
    return with_parts(name, weight.t().contiguous(), *parts).t().contiguous();
  }

  // `weight` [out, in].
  at::Tensor with_parts(const std::string& name, at::Tensor weight, const Parts& parts) {
    if (parts.factors) {
      const at::Tensor factors = read_tensor(adapter_, *parts.factors).to(at::kFloat);
      return (weight * factors).to(type_of_result(weight));
    }
    if (parts.rows) {
      const at::ScalarType type = type_of_result(weight);
      const at::Tensor rows = read_tensor(adapter_, *parts.rows).to(type);
      const at::Tensor places = at::tensor(settings_.trainable_tokens, at::kLong);
      return weight.to(type).index_copy(0, places, rows);
    }
    if (parts.columns) return with_columns(name, weight, parts);
    if (parts.lambda_b) return with_vectors(weight, parts);
    if (!parts.a) return weight;
    if (parts.layer) return with_expert_layer(name, weight, parts);
    adapters::Branch branch;
    branch.a = read_tensor(adapter_, *parts.a).to(at::kFloat);
    branch.b = read_tensor(adapter_, *parts.b).to(at::kFloat);
    if (parts.magnitude) {
      branch.magnitude = read_tensor(adapter_, *parts.magnitude).to(at::kFloat).reshape({-1});
    }
    if (parts.is_of_experts) return with_expert_branches(name, weight, branch);
    branch.scale = scale_of(name, branch.a.size(0));
    if (adapters::changes_base(settings_)) {
      weight = base_of_training(weight, name, branch).to(weight.scalar_type());
    }
    return with_branch(weight, branch);
  }

  at::Tensor with_expert_layer(const std::string& name, const at::Tensor& weight,
                               const Parts& parts) {
    const LayerOfExperts& layer = *parts.layer;
    const BranchesOfExperts& all = branches_of_experts(parts);
    const int64_t outputs = weight.size(0);
    const adapters::ExpertLayer place{.expert = layer.expert,
                                      .num_experts = layer.num_experts,
                                      .first_row = layer.place * outputs};
    const double scale = scale_of(name, all.a.size(0) / layer.num_experts);
    return with_branch(weight, adapters::branch_of_layer(all.a, all.b, place, outputs, scale));
  }

  // Those of all experts are as large as many of their layers: they are read once for the layers
  // that follow one another, which in a file are of two parameters in turn.
  struct BranchesOfExperts {
    std::string parameter;
    at::Tensor a, b;
  };
  const BranchesOfExperts& branches_of_experts(const Parts& parts) {
    const std::string& parameter = parts.layer->parameter;
    const auto found =
        std::ranges::find(branches_of_experts_, parameter, &BranchesOfExperts::parameter);
    if (found != branches_of_experts_.end()) return *found;
    constexpr size_t kMost = 2;
    if (branches_of_experts_.size() == kMost) {
      branches_of_experts_.erase(branches_of_experts_.begin());
    }
    return branches_of_experts_.emplace_back(
        BranchesOfExperts{parameter, read_tensor(adapter_, *parts.a).to(at::kFloat),
                          read_tensor(adapter_, *parts.b).to(at::kFloat)});
  }

  at::Tensor with_expert_branches(const std::string& name, const at::Tensor& weight,
                                  const adapters::Branch& branch) const {
    const at::Tensor result = result_for(weight);
    const double scale = scale_of(name, branch.a.size(0) / weight.size(0));
    const bool rows_are_outputs = parts_.expert_rows_are_outputs();
    at::Tensor of_inputs = adapters::rows_of_inputs(result, rows_are_outputs);
    adapters::add_expert_branches(adapters::rows_of_inputs(weight, rows_are_outputs), branch.a,
                                  branch.b, scale, of_inputs);
    return result;
  }

  // What training left of a weight when it took the first directions off.
  at::Tensor base_of_training(const at::Tensor& weight, const std::string& name,
                              const adapters::Branch& branch) const {
    const auto place = parts_.place_in_base(name);
    const bool is_decoded =
        options_.decoded != nullptr && place && base_.tensors()[*place].is_decoded;
    // Codes were not rounded to the type of other weights there.
    const at::Tensor values =
        is_decoded ? options_.decoded->decode(name, at::kFloat) : weight.to(at::kFloat);
    const adapters::BaseDirections taken =
        adapters::base_directions(values, branch.a.size(0), branch.scale, settings_);
    return is_decoded ? options_.decoded->quantize_again(name, taken.base) : taken.base;
  }

  // A VeRA branch is a LoRA branch whose matrices are scaled.
  at::Tensor with_vectors(const at::Tensor& weight, const Parts& parts) {
    const adapters::Branch branch =
        adapters::vera_branch(projection_, read_tensor(adapter_, *parts.lambda_b),
                              read_tensor(adapter_, *parts.lambda_d), weight.sizes());
    return with_branch(weight, branch);
  }

  at::Tensor with_branch(const at::Tensor& weight, const adapters::Branch& branch) const {
    at::Tensor result = result_for(weight);
    adapters::add_branch(weight, branch, result);
    return result;
  }

  // What is computed is rounded to once.
  at::ScalarType type_of_result(const at::Tensor& weight) const {
    return options_.weight_type ? memory_type_of(*options_.weight_type) : weight.scalar_type();
  }

  // Where a sum in the type of the result goes.
  at::Tensor result_for(const at::Tensor& weight) const {
    const at::ScalarType type = type_of_result(weight);
    return type == weight.scalar_type() ? weight : at::empty_like(weight, type);
  }

  // LoRA of an embedding: W + scale * (B A)^T.
  at::Tensor with_columns(const std::string& name, const at::Tensor& weight, const Parts& parts) {
    const at::Tensor a = read_tensor(adapter_, *parts.columns).to(at::kFloat);
    const at::Tensor b = read_tensor(adapter_, *parts.b).to(at::kFloat);
    const double scale = scale_of(name, a.size(0));
    // DoRA's lengths are those of columns: the rows of the transposed sum.
    if (parts.magnitude) {
      adapters::Branch columns{.a = a, .b = b, .magnitude = {}, .scale = scale};
      columns.magnitude = read_tensor(adapter_, *parts.magnitude).to(at::kFloat).reshape({-1});
      return with_branch(weight.t().contiguous(), columns).t().contiguous();
    }
    return with_branch(weight, {.a = b.t(), .b = a.t(), .magnitude = {}, .scale = scale});
  }

  double scale_of(const std::string& weight, int64_t rank) const {
    return adapters::scaling_of(settings_, parts_.module_of(weight), rank);
  }

  SavedState& base_;
  SavedState& adapter_;
  MergeOptions options_;
  std::vector<std::string> notes_;  // what is not known of the adapter and its base
  adapters::LoraOptions settings_;
  Json config_;  // the base's
  AdapterParts parts_;
  nn::VeraProjection projection_;
  std::vector<BranchesOfExperts> branches_of_experts_;  // the last that were read
};

}  // namespace

std::vector<std::string> merge_adapter(SavedState& base, SavedState& adapter, const fs::path& out,
                                       const MergeOptions& options) {
  return Merger(base, adapter, options).write(out);
}

}  // namespace strata::checkpoint
