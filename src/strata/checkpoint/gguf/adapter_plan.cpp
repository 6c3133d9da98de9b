#include "strata/checkpoint/gguf/adapter_plan.h"

#include <algorithm>
#include <cmath>

#include "strata/adapters/adapter_options.h"
#include "strata/adapters/lora_init.h"
#include "strata/adapters/target_layers.h"
#include "strata/base/error.h"
#include "strata/checkpoint/convert/param_groups.h"
#include "strata/checkpoint/gguf/family.h"
#include "strata/hf/adapter_files.h"

namespace strata::checkpoint {
namespace {

constexpr const char* kTokens = "token_embd.weight";
constexpr const char* kOutput = "output.weight";

[[noreturn]] void refuse(const SavedState& adapter, const std::string& found) {
  const std::string path = adapter.path().string();
  throw ConfigError(
      "{}: found {}, expected branches of LoRA that llama.cpp applies to its model; fold the "
      "adapter into the model: strata merge-adapter {} MODEL, then strata convert MODEL OUT.gguf "
      "--to gguf",
      path, found, path);
}

// What of a weight's parts is no branch; empty: nothing.
std::string other_than_branch(const std::string& weight, const Parts& parts) {
  if (parts.magnitude) return "magnitudes of DoRA (use_dora)";
  if (parts.bias_of_b) return "biases of branches (lora_bias)";
  if (parts.rows) return "rows of single tokens (trainable_token_indices)";
  if (parts.base) return fmt::format("\"{}\" with other rows than the base's", weight);
  const bool is_bias = weight.ends_with(".bias");
  if (parts.whole && is_bias) return fmt::format("\"{}\", a trained bias", weight);
  if (parts.whole) return fmt::format("\"{}\", which trained whole (modules_to_save)", weight);
  if (!parts.a && !parts.columns) return fmt::format("no branch for \"{}\"", weight);
  if (parts.is_of_experts) return "branches of parameters of experts (target_parameters)";
  return "";
}

class Planner {
 public:
  Planner(SavedState& base, const SavedState& adapter, const AdapterParts& parts,
          const adapters::LoraOptions& settings)
      : base_(base), adapter_(adapter), parts_(parts), settings_(settings) {
    if (!parts.new_head().empty()) {
      throw ConfigError(
          "{}: found a sequence classification head (\"{}\"), expected an adapter of a model that "
          "predicts tokens, as --to gguf writes no other; use it with its base with PEFT",
          adapter.path().string(), parts.new_head().front().first);
    }
    for (const auto& [weight, found] : parts.by_weight()) {
      const std::string other = other_than_branch(weight, found);
      if (!other.empty()) refuse(adapter, other);
    }
  }

  AdapterPlan plan(const Json& config) {
    const GgufFamily family = describe_family(config);
    plan_.architecture = family.architecture;
    find_branches(plan_tensors(base_, config, family, hf::GgufType::kF32));
    plan_.alpha = static_cast<float>(most_frequent_alpha());
    for (PlannedBranch& branch : plan_.branches) set_factors(branch);
    return std::move(plan_);
  }

 private:
  const Parts* parts_of(size_t source) const { return parts_.find(base_.tensors()[source].weight); }

  int64_t rank_of(const Parts& parts) const {
    return parts_.shape_of(parts.columns ? *parts.columns : *parts.a)[0];
  }

  double scale_of(size_t source) const {
    const std::string module = parts_.module_of(base_.tensors()[source].weight);
    return adapters::scaling_of(settings_, module, rank_of(*parts_of(source)));
  }

  void find_branches(TensorPlan of_base) {
    const bool is_tied = std::ranges::none_of(of_base.tensors, [](const PlannedTensor& planned) {
      return planned.tensor.name == kOutput;
    });
    size_t num_found = 0;
    for (PlannedTensor& planned : of_base.tensors) {
      PlannedBranch branch{.base = std::move(planned), .factors = {}};
      for (const size_t source : branch.base.sources) {
        const Parts* parts = parts_of(source);
        if (parts == nullptr) continue;
        ++num_found;
        branch.is_embedding = parts->columns.has_value();
        branch.rank = std::max(branch.rank, rank_of(*parts));
      }
      if (branch.is_embedding) require_applied(branch.base.tensor.name, is_tied);
      if (branch.rank > 0) plan_.branches.push_back(std::move(branch));
    }
    if (num_found == parts_.by_weight().size()) return;
    refuse(adapter_, "a branch of an output layer that is the embedding");
  }

  // llama.cpp has one tensor where the output layer is the embedding, and takes its branch for
  // both.
  void require_applied(const std::string& name, bool is_tied) const {
    if (name != kTokens) refuse(adapter_, fmt::format("a branch of \"{}\"", name));
    if (is_tied) refuse(adapter_, "a branch of an embedding that is the output layer, too");
  }

  // By which llama.cpp's scale is right for the tensor's first branch.
  double alpha_of(const PlannedBranch& branch) const {
    const auto first = std::ranges::find_if(
        branch.base.sources, [&](size_t source) { return parts_of(source) != nullptr; });
    return scale_of(*first) * static_cast<double>(branch.rank);
  }

  // Where all are 0 any other, as to llama.cpp 0 is no scale at all.
  double most_frequent_alpha() const {
    std::vector<double> alphas;
    for (const PlannedBranch& branch : plan_.branches) alphas.push_back(alpha_of(branch));
    double best = 1;
    std::ptrdiff_t most = 0;
    for (const double alpha : alphas) {
      const std::ptrdiff_t count = std::ranges::count(alphas, alpha);
      if (alpha == 0 || count <= most) continue;
      best = alpha;
      most = count;
    }
    return best;
  }

  void set_factors(PlannedBranch& branch) {
    for (const size_t source : branch.base.sources) {
      if (parts_of(source) == nullptr) {
        branch.factors.push_back(0);
        continue;
      }
      constexpr double kRounding = 1e-6;  // of alpha itself
      const double factor = scale_of(source) * static_cast<double>(branch.rank) / plan_.alpha;
      const bool is_one = std::abs(factor - 1) < kRounding;
      branch.factors.push_back(is_one ? 1.0F : static_cast<float>(factor));
      if (!is_one) ++plan_.num_folded;
    }
  }

  SavedState& base_;
  const SavedState& adapter_;
  const AdapterParts& parts_;
  const adapters::LoraOptions& settings_;
  AdapterPlan plan_;
};

}  // namespace

adapters::LoraOptions gguf_settings_of(const SavedState& adapter, std::vector<std::string>& notes) {
  const std::string path = adapter.path().string();
  const hf::AdapterConfig config =
      hf::parse_adapter_config(parse_json(adapter_config_text(adapter), path), path);
  notes = config.warnings;
  adapters::LoraOptions settings = adapters::lora_options_of(config);
  if (settings.has_virtual_tokens()) {
    throw ConfigError(
        "{}: found an adapter of type {}, expected LORA, as llama.cpp knows no other; use it with "
        "its base with strata chat or PEFT",
        path, config.peft_type);
  }
  if (settings.method != adapters::Method::kLora) {
    refuse(adapter, fmt::format("an adapter of type {}", config.peft_type));
  }
  if (!adapters::changes_base(settings)) return settings;
  if (settings.init == "loftq") refuse(adapter, "init_lora_weights loftq, which changes the base");
  throw ConfigError(
      "{}: found init_lora_weights {}, which changes the base, expected an adapter over the base "
      "as "
      "it is; make one with strata convert {} PLAIN --to lora and convert PLAIN",
      path, settings.init, path);
}

AdapterPlan plan_adapter(SavedState& base, const Json& config, const SavedState& adapter,
                         const AdapterParts& parts, const adapters::LoraOptions& settings) {
  return Planner(base, adapter, parts, settings).plan(config);
}

}  // namespace strata::checkpoint
