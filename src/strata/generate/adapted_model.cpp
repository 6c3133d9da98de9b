#include "strata/generate/adapted_model.h"

#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "strata/adapters/adapter_options.h"
#include "strata/adapters/lora_init.h"
#include "strata/adapters/merged_weight.h"
#include "strata/base/error.h"
#include "strata/checkpoint/base_mark.h"
#include "strata/checkpoint/import.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/base_fingerprint.h"
#include "strata/models/quantization.h"
#include "strata/models/registry.h"
#include "strata/models/vocabulary.h"

namespace strata::generate {
namespace {

at::Tensor dense(const nn::Parameter& parameter) {
  return parameter.dense_value(at::kFloat).to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
}

bool is_in_codes_of_files(const nn::Parameter& parameter) {
  const auto& quantization = parameter.quantization();
  return quantization && !ops::quant::is_of_bitsandbytes(quantization->format);
}

std::string mark_of(const AdaptableBase& base) {
  if (!base.quantization) return checkpoint::base_mark(base.folder);
  return checkpoint::base_mark(base.folder,
                               {{.quantization = *base.quantization, .type = base.storage_type}});
}

}  // namespace

AdaptedModel::AdaptedModel(const AdaptableBase& base, const std::filesystem::path& adapter)
    : folder_(adapter),
      storage_type_(base.storage_type),
      compute_type_(base.compute_type),
      config_(base.folder.config()) {
  const hf::AdapterConfig config = hf::read_adapter_config(adapter);
  if (config.task_type == "SEQ_CLS") {
    throw ConfigError(
        "{}: found an adapter that gives texts a reward or a label (task_type SEQ_CLS), expected "
        "one "
        "that predicts tokens; read its numbers with transformers' "
        "AutoModelForSequenceClassification, "
        "or fold it into its base with strata merge-adapter",
        adapter.string());
  }
  adapters::require_applied(config, adapter.string());
  const adapters::LoraOptions options = adapters::lora_options_of(config);
  adapters::require_known_directions(options, adapter.string());
  notes_ = config.warnings;
  const std::string base_note = checkpoint::require_base(
      adapter.string(), hf::fingerprint_in(hf::ModelFolder(adapter)), base.folder.path().string(),
      mark_of(base), adapters::changes_base(options));
  if (!base_note.empty()) notes_.push_back(base_note);
  // The adapter may bring a larger vocabulary along.
  const Json rows = config_.value("vocab_size", Json(0));
  const int64_t num_old_rows = rows.is_number_integer() ? rows.get<int64_t>() : 0;
  const int64_t num_rows = checkpoint::stored_vocabulary_rows(adapter);
  if (num_rows > 0 && num_old_rows > 0) config_["vocab_size"] = num_rows;
  model_ = models::create_model(config_, {.storage = base.storage_type});
  model_->follow_tie(base.folder);
  adapter_ = adapters::attach_lora(*model_, options);
  if (base.quantization) models::quantize_base(*model_, *base.quantization);
  keep_codes(*model_, base.kept_codes, base.storage_type);
  models::mark_new_rows(*model_, num_old_rows);
  if (num_rows > 0) checkpoint::expect_stored_vocabulary(adapter, *model_, *adapter_);
  attach_base(base.folder, base.tensors);
  device_ = base.tensors.begin()->second.device();
  adapter_->settle_fixed_tensors(device_);
  const checkpoint::AdapterValues values = checkpoint::read_adapter(adapter, *adapter_);
  if (adapters::changes_base(adapter_->options())) change_base(/*seed=*/0);
  for (const auto& [parameter, value] : values) {
    const at::ScalarType type = parameter->keeps_type() ? parameter->storage_type() : compute_type_;
    parameter->attach_value(value.to(device_, type).contiguous());
  }
  for (nn::Parameter* parameter : model_->parameters()) parameter->set_requires_grad(false);
}

void AdaptedModel::attach_base(const hf::ModelFolder& base, const BaseTensors& tensors) {
  // What is in the adapter's file comes from there.
  std::set<const nn::Parameter*> of_adapter;
  for (const auto& tensor : adapter_->tensors()) of_adapter.insert(tensor.parameter);
  const models::WeightSources sources = model_->check_weights(base);
  for (nn::Parameter* parameter : model_->parameters()) {
    const auto source = sources.find(parameter->name());
    if (source == sources.end() || of_adapter.contains(parameter)) continue;
    parameter->attach_value(tensors.at(source->second));
  }
}

void AdaptedModel::change_base(uint64_t seed) {
  const at::NoGradGuard no_grad;
  const adapters::Place write = [&](nn::Parameter& parameter, const at::Tensor& value) {
    if (parameter.quantization()) {
      parameter.attach_value(parameter.encoded(value.cpu()).to(device_));
    } else {
      parameter.attach_value(value.to(device_, compute_type_).contiguous());
    }
  };
  adapters::BaseAccess access;
  access.read = dense;
  access.write = write;
  access.share = [](at::Tensor&, int) {};
  adapters::initialize_from_base(*adapter_, seed, write, access, /*only_base=*/true);
}

void AdaptedModel::merge() {
  if (adapter_->options().has_virtual_tokens()) {
    throw ConfigError(
        "{}: found rows before the prompt, expected an adapter of layers to merge; use it as it is",
        folder_.string());
  }
  if (adapter_->embedding() != nullptr || adapter_->trained_tokens()) {
    throw ConfigError(
        "{}: found an adapter of the embedding or of single tokens, expected one of linear layers "
        "to merge while it "
        "answers; run strata merge-adapter",
        folder_.string());
  }
  const at::NoGradGuard no_grad;
  const BaseTensors values = merged_values();
  auto merged = models::create_model(config_, {.storage = compute_type_});
  // A head of its own, as the adapter made it.
  if (values.contains("lm_head.weight")) merged->trainable_copy("lm_head.weight");
  // Weights that the adapter changed or replaced do not stay in codes.
  KeptCodes kept = kept_codes(*model_);
  std::erase_if(
      kept, [&](const auto& codes) { return values.at(codes.first).scalar_type() != at::kByte; });
  for (nn::Parameter* parameter : merged->parameters()) parameter->set_requires_grad(false);
  keep_codes(*merged, kept, storage_type_);
  for (nn::Parameter* parameter : merged->parameters()) {
    parameter->attach_value(values.at(parameter->name()));
  }
  merged_ = std::move(merged);
}

BaseTensors AdaptedModel::merged_values() const {
  BaseTensors values;
  for (const nn::Parameter* parameter : model_->parameters()) {
    if (is_in_codes_of_files(*parameter)) {
      values[parameter->name()] = parameter->quantized_bytes();
      continue;
    }
    if (parameter->quantization()) {
      throw ConfigError(
          "{}: found the quantised \"{}\", expected plain weights to merge into; run strata "
          "merge-adapter with --dequantize",
          folder_.string(), parameter->name());
    }
    values[parameter->name()] = parameter->value();
  }
  // One after the other: all of them in fp32 would be twice what is kept.
  const auto change = [&](const std::string& name, const at::Tensor& value) {
    if (!at::isfinite(value).all().item<bool>()) {
      throw FormatError(
          "{}: found NaN or infinity in \"{}\" after merging, expected finite numbers; the adapter "
          "or the base is broken",
          folder_.string(), name);
    }
    values[name] = value.to(compute_type_);
  };
  for (const nn::Linear* layer : adapter_->layers()) {
    if (layer->low_rank() && layer->low_rank()->bias && !layer->bias()) {
      throw ConfigError(
          "{}: found a bias (lora_bias) for \"{}\", which has none to merge it into, expected a "
          "branch without; use it as it is",
          folder_.string(), layer->path());
    }
    change(layer->path() + ".weight", adapters::merged_weight(*layer));
    if (layer->bias()) change(layer->path() + ".bias", adapters::merged_bias(*layer));
  }
  for (const nn::ExpertParameter* matrices : adapter_->expert_parameters()) {
    adapters::visit_merged_weights(*matrices, change);
  }
  return values;
}

}  // namespace strata::generate
