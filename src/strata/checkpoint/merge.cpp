#include "strata/checkpoint/merge.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>

#include "strata/adapters/lora_init.h"
#include "strata/adapters/module_match.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/convert.h"
#include "strata/checkpoint/element_type.h"
#include "strata/checkpoint/export_files.h"
#include "strata/checkpoint/import.h"
#include "strata/checkpoint/param_groups.h"
#include "strata/hf/adapter_files.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

// Rows of a weight that are widened at once: 4 MB.
constexpr int64_t kElementsAtOnce = int64_t{1} << 20;

at::Tensor read_tensor(SavedState& state, size_t index) {
  const SavedTensor& tensor = state.tensors()[index];
  at::Tensor value =
      at::empty(tensor.shape, at::TensorOptions().dtype(memory_type_of(tensor.dtype)));
  state.read(index, {static_cast<std::byte*>(value.data_ptr()), value.nbytes()});
  return value;
}

// In parts: the test of a whole tensor takes more memory than the tensor.
bool is_finite(const at::Tensor& value) {
  if (!at::isFloatingType(value.scalar_type())) return true;
  const at::Tensor flat = value.reshape({-1});
  for (int64_t begin = 0; begin < flat.numel(); begin += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, flat.numel() - begin);
    if (!at::isfinite(flat.narrow(0, begin, count)).all().item<bool>()) return false;
  }
  return true;
}

// Where an adapter's parts for one weight of the base stand in its list.
struct Parts {
  std::optional<size_t> a, b, magnitude, whole;
  std::optional<size_t> bias_of_b;  // lora_bias: goes into the layer's bias
  std::optional<size_t> factors;    // (IA)^3, of the weight's rows [out, 1] or columns [1, in]
};

// The branch of one weight: W + scale * B A, for DoRA with rows of the length `magnitude`.
struct Branch {
  at::Tensor a;          // [r, in]
  at::Tensor b;          // [out, r]
  at::Tensor magnitude;  // [out], or undefined
  double scale = 0;
};

// lora_alpha and its like of adapter_config.json.
class AdapterSettings {
 public:
  AdapterSettings(const SavedState& adapter)
      : subject_(adapter.path().string()),
        json_(parse_json(adapter_config_text(adapter), subject_)) {
    if (text("peft_type") != "LORA" && text("peft_type") != "IA3") {
      throw ConfigError(
          "{}: found an adapter of type {}, expected LORA (with DoRA or without) or IA3", subject_,
          text("peft_type"));
    }
    const auto init = json_.find("init_lora_weights");
    if (init != json_.end() && init->is_string()) init_ = init->get<std::string>();
    if (init_.starts_with("pissa_niter_")) {
      throw ConfigError(
          "{}: found init_lora_weights {}, which takes random directions off the base, expected "
          "pissa or another; merge it with the model it was trained in",
          subject_, init_);
    }
    for (const char* key : {"fan_in_fan_out", "use_qalora"}) {
      if (!json_.value(key, Json(false)).is_boolean() || json_.value(key, false)) {
        throw ConfigError("{}: found {} true, expected false; merge it with PEFT", subject_, key);
      }
    }
  }

  bool uses_dora() const { return flag("use_dora"); }
  // Whether the first values were taken off the base: "pissa" and "olora".
  bool changes_base() const { return init_ == "pissa" || init_ == "olora"; }
  const std::string& init() const { return init_; }
  double scale(const std::string& module, int64_t rank) const {
    const double alpha = alpha_of(module);
    const auto r = static_cast<double>(rank);
    return alpha / (flag("use_rslora") ? std::sqrt(r) : r);
  }

 private:
  bool flag(const char* key) const {
    const auto found = json_.find(key);
    return found != json_.end() && found->is_boolean() && found->get<bool>();
  }
  std::string text(const char* key) const {
    const auto found = json_.find(key);
    return found != json_.end() && found->is_string() ? found->get<std::string>() : "nothing";
  }
  // The first pattern that is the module's path or its end.
  double alpha_of(const std::string& module) const {
    const auto patterns = json_.find("alpha_pattern");
    if (patterns != json_.end() && patterns->is_object()) {
      for (const auto& [key, value] : patterns->items()) {
        const bool fits = adapters::PathPattern("(.*\\.)?(" + key + ")").matches(module);
        if (value.is_number() && fits) {
          return value.get<double>();
        }
      }
    }
    const auto alpha = json_.find("lora_alpha");
    if (alpha == json_.end() || !alpha->is_number()) {
      throw FormatError("{}: found no lora_alpha, expected a number", subject_);
    }
    return alpha->get<double>();
  }

  std::string subject_;
  Json json_;
  std::string init_;
};

class Merger {
 public:
  Merger(SavedState& base, SavedState& adapter, const MergeOptions& options)
      : base_(base), adapter_(adapter), options_(options), settings_(adapter) {
    for (size_t i = 0; i < base.tensors().size(); ++i) in_base_[base.tensors()[i].weight] = i;
    for (size_t i = 0; i < adapter.tensors().size(); ++i) {
      if (adapter.tensors()[i].is_parameter()) add_part(i);
    }
    check_fit();
    require_base(adapter.path().string(), adapter.facts().base_fingerprint, base.path().string(),
                 base.facts().base_fingerprint);
  }

  std::vector<std::string> write(const fs::path& out) {
    require_new_folder(out);
    std::vector<hf::TensorBytes> sizes;
    std::unordered_map<std::string, hf::TensorSpec> specs;
    uint64_t num_parameters = 0;
    const auto add = [&](const std::string& name, const SavedTensor& tensor) {
      const bool is_floating = at::isFloatingType(memory_type_of(tensor.dtype));
      const hf::DType type =
          is_floating ? options_.weight_type.value_or(tensor.dtype) : tensor.dtype;
      const uint64_t numel = tensor.size_bytes() / hf::size_of(tensor.dtype);
      specs[name] = {name, type, tensor.shape};
      sizes.push_back({name, numel * hf::size_of(type)});
      num_parameters += numel;
    };
    for (const SavedTensor& tensor : base_.tensors()) add(tensor.weight, tensor);
    if (untied_from_) add(kHead, base_.tensors()[*untied_from_]);
    const hf::ShardPlan plan = hf::plan_shards(sizes, options_.max_shard_size);
    AtomicFolder folder(out);
    ExportFiles files(folder.path());
    files.add(plan, specs);
    for (const hf::TensorBytes& tensor : sizes) {
      const at::Tensor value = merged(tensor.name).to(memory_type_of(specs.at(tensor.name).dtype));
      files.write(tensor.name, {static_cast<const std::byte*>(value.data_ptr()), value.nbytes()});
    }
    files.publish();
    if (plan.is_indexed()) {
      write_file_atomically(folder.path() / hf::kModelIndexFile, plan.index_json(num_parameters));
    }
    std::vector<std::string> notes;
    const ConfigChange change{.type = specs.at(sizes[0].name).dtype,
                              .unties_head = untied_from_.has_value(),
                              .is_decoded = true};
    const fs::path companions = base_model_of(base_);
    if (companions.empty() || !copy_companions(companions, folder.path(), change)) {
      notes.push_back("the base has no config.json: copy it and the tokenizer beside the weights");
    }
    folder.commit();
    return notes;
  }

 private:
  static constexpr const char* kHead = "lm_head.weight";
  static constexpr const char* kEmbedding = "model.embed_tokens.weight";

  void add_part(size_t index) {
    std::string name = adapter_.tensors()[index].weight;
    if (name.starts_with(hf::kAdapterKeyPrefix)) {
      name = name.substr(std::string_view(hf::kAdapterKeyPrefix).size());
    }
    const std::pair<std::string_view, std::optional<size_t> Parts::*> kEndings[] = {
        {".lora_A.weight", &Parts::a},
        {".lora_B.weight", &Parts::b},
        {".lora_magnitude_vector", &Parts::magnitude},
        {".lora_magnitude_vector.weight", &Parts::magnitude},
        {".lora_B.bias", &Parts::bias_of_b},
        {".ia3_l", &Parts::factors}};
    for (const auto& [ending, part] : kEndings) {
      if (!name.ends_with(ending)) continue;
      parts_[name.substr(0, name.size() - ending.size()) + ".weight"].*part = index;
      return;
    }
    if (name.find(".lora_") != std::string::npos) {
      throw ConfigError("{}: found \"{}\", expected branches of linear layers; merge it with PEFT",
                        adapter_.path().string(), name);
    }
    // PEFT saves the base's own weight of a targeted output layer, and biases that trained.
    constexpr std::string_view kOfBase = ".base_layer.";
    if (const size_t at = name.find(kOfBase); at != std::string::npos) {
      name.replace(at, kOfBase.size(), ".");
      if (!name.ends_with(".bias")) return;
    }
    parts_[name].whole = index;
  }

  [[noreturn]] void fail(const std::string& weight, const std::string& found) const {
    throw ConfigError(
        "{}: found {} for \"{}\", expected an adapter of {}; name the base that it was "
        "trained on",
        adapter_.path().string(), found, weight, base_.path().string());
  }

  const std::vector<int64_t>& shape_of(size_t index) const {
    return adapter_.tensors()[index].shape;
  }

  void check_fit() {
    bool has_branch = false;
    for (const auto& [weight, parts] : parts_) {
      const auto found = in_base_.find(weight);
      if (parts.whole && found == in_base_.end() && weight == kHead &&
          in_base_.contains(kEmbedding)) {
        untied_from_ = in_base_.at(kEmbedding);
        continue;
      }
      if (found == in_base_.end()) fail(weight, "values");
      const std::vector<int64_t>& shape = base_.tensors()[found->second].shape;
      if (parts.whole) {
        if (shape_of(*parts.whole) != shape) fail(weight, "another shape");
        // The base's head was the embedding that is replaced here; the head keeps its values.
        if (weight == kEmbedding && !in_base_.contains(kHead)) untied_from_ = found->second;
        continue;
      }
      has_branch = true;
      check_bias(weight, parts);
      if (parts.factors) {
        check_factors(weight, shape_of(*parts.factors), shape);
        continue;
      }
      if (!parts.a || !parts.b) fail(weight, "half a branch");
      const auto &a = shape_of(*parts.a), &b = shape_of(*parts.b);
      if (a.size() != 2 || b.size() != 2 || shape.size() != 2 || a[0] != b[1] || a[1] != shape[1] ||
          b[0] != shape[0]) {
        fail(weight,
             fmt::format("a branch of [{}] and [{}]", fmt::join(a, ", "), fmt::join(b, ", ")));
      }
      const bool has_magnitude = parts.magnitude.has_value();
      if (has_magnitude != settings_.uses_dora()) fail(weight, "half a DoRA branch");
    }
    if (!has_branch) {
      throw ConfigError("{}: found no LoRA weights, expected an adapter", adapter_.path().string());
    }
  }

  void check_bias(const std::string& weight, const Parts& parts) const {
    if (!parts.bias_of_b) return;
    const std::string bias = weight.substr(0, weight.rfind('.')) + ".bias";
    const auto found = in_base_.find(bias);
    if (found == in_base_.end()) fail(bias, "a trained bias");
    if (shape_of(*parts.bias_of_b) != base_.tensors()[found->second].shape) {
      fail(bias, "another shape");
    }
  }

  void check_factors(const std::string& weight, const std::vector<int64_t>& factors,
                     const std::vector<int64_t>& shape) const {
    const bool fits = shape.size() == 2 && (factors == std::vector<int64_t>{shape[0], 1} ||
                                            factors == std::vector<int64_t>{1, shape[1]});
    if (!fits) fail(weight, fmt::format("factors of [{}]", fmt::join(factors, ", ")));
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
    const auto layer = parts_.find(module + ".weight");
    if (layer == parts_.end()) return;
    const Parts& parts = layer->second;
    if (parts.bias_of_b) {
      const at::Tensor bias = read_tensor(adapter_, *parts.bias_of_b).to(at::kFloat);
      const double scale = settings_.scale(module, shape_of(*parts.a)[0]);
      value = value.to(at::kFloat).add(bias, scale).to(value.scalar_type());
    }
    if (parts.factors && shape_of(*parts.factors)[1] == 1) {
      const at::Tensor factors = read_tensor(adapter_, *parts.factors).to(at::kFloat);
      value = (value * factors.view({-1})).to(value.scalar_type());
    }
  }

  at::Tensor merged_unchecked(const std::string& name) {
    const auto parts = parts_.find(name);
    if (parts != parts_.end() && parts->second.whole) {
      at::Tensor value = read_tensor(adapter_, *parts->second.whole);
      add_to_bias(name, value);
      return value;
    }
    const auto place = in_base_.find(name);
    at::Tensor weight = read_tensor(base_, place == in_base_.end() ? *untied_from_ : place->second);
    add_to_bias(name, weight);
    if (parts == parts_.end()) return weight;
    if (parts->second.factors) {
      const at::Tensor factors = read_tensor(adapter_, *parts->second.factors).to(at::kFloat);
      return (weight * factors).to(weight.scalar_type());
    }
    if (!parts->second.a) return weight;
    Branch branch;
    branch.a = read_tensor(adapter_, *parts->second.a).to(at::kFloat);
    branch.b = read_tensor(adapter_, *parts->second.b).to(at::kFloat);
    if (parts->second.magnitude) {
      branch.magnitude =
          read_tensor(adapter_, *parts->second.magnitude).to(at::kFloat).reshape({-1});
    }
    branch.scale = settings_.scale(name.substr(0, name.rfind('.')), branch.a.size(0));
    if (settings_.changes_base()) {
      const adapters::BaseDirections taken = adapters::base_directions(
          weight.to(at::kFloat), branch.a.size(0), branch.scale, settings_.init());
      weight = (weight - at::matmul(taken.b * branch.scale, taken.a)).to(weight.scalar_type());
    }
    const at::ScalarType type =
        options_.weight_type ? memory_type_of(*options_.weight_type) : weight.scalar_type();
    at::Tensor result = type == weight.scalar_type() ? weight : at::empty_like(weight, type);
    add_branch(weight, branch, result);
    return result;
  }

  // Some rows at a time: they do not depend on each other, not even DoRA's lengths.
  static void add_branch(const at::Tensor& weight, const Branch& branch, at::Tensor& result) {
    const int64_t step =
        std::max<int64_t>(kElementsAtOnce / std::max<int64_t>(weight.size(1), 1), 1);
    for (int64_t row = 0; row < weight.size(0); row += step) {
      const int64_t rows = std::min(step, weight.size(0) - row);
      at::Tensor sum = at::matmul(branch.b.narrow(0, row, rows), branch.a).mul_(branch.scale);
      sum.add_(weight.narrow(0, row, rows).to(at::kFloat));
      if (branch.magnitude.defined()) {
        const at::Tensor length = at::linalg_vector_norm(sum, 2, at::IntArrayRef{1});
        sum.mul_((branch.magnitude.narrow(0, row, rows) / length).unsqueeze(1));
      }
      result.narrow(0, row, rows).copy_(sum);
    }
  }

  SavedState& base_;
  SavedState& adapter_;
  MergeOptions options_;
  AdapterSettings settings_;
  std::map<std::string, size_t> in_base_;
  std::map<std::string, Parts> parts_;
  std::optional<size_t> untied_from_;  // the base's embedding, of which the head was a name
};

}  // namespace

std::vector<std::string> merge_adapter(SavedState& base, SavedState& adapter, const fs::path& out,
                                       const MergeOptions& options) {
  return Merger(base, adapter, options).write(out);
}

}  // namespace strata::checkpoint
