#include "strata/models/modernbert/model.h"

#include <cmath>
#include <string>

#include <ATen/ATen.h>

#include "strata/models/tied_decoder.h"

namespace strata::models {
namespace {

// torch.nn.init.trunc_normal_ around 0: what lies too far off is drawn again.
void fill_with_truncated_normal(const at::Tensor& full, double deviation, double cutoff,
                                const at::Generator& generator) {
  const double most = cutoff * deviation;
  full.normal_(0.0, deviation, generator);
  for (at::Tensor is_far = full.abs() > most; is_far.any().item<bool>();
       is_far = full.abs() > most) {
    const at::Tensor again = at::empty_like(full).normal_(0.0, deviation, generator);
    full.copy_(at::where(is_far, again, full));
  }
}

}  // namespace

ModernBertModel::ModernBertModel(const ModernBertConfig& config, at::ScalarType storage)
    : EncoderModel({.classifier = "classifier",
                    .dense = {"head"},
                    .dense_ending = "head.dense",
                    .num_labels = config.num_labels,
                    .has_new_dense = config.has_new_dense}),
      config_(config),
      rope_(config.rope),
      window_rope_(config.window_rope),
      embeddings_(std::make_unique<ModernBertEmbeddings>(config, storage)) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    nn::Rope& rope = config.has_window[static_cast<size_t>(i)] ? window_rope_ : rope_;
    layers_.push_back(std::make_unique<ModernBertLayer>(config, i, storage, rope));
  }
  head_ = std::make_unique<ModernBertHead>(config, storage);
}

std::vector<Block*> ModernBertModel::blocks() { return chain_of(*embeddings_, layers_, *head_); }

void ModernBertModel::init_weight(const nn::Parameter& parameter, at::Tensor full,
                                  at::Generator generator) const {
  const std::string& name = parameter.name();
  if (parameter.shape().size() == 1) {
    full.fill_(name.ends_with(".bias") ? 0.0 : 1.0);
    return;
  }
  const double range = config_.initializer_range;
  const bool is_out = name.ends_with(".Wo.weight") || name == "head.dense.weight";
  const double deviation =
      name == "classifier.weight" ? 1 / std::sqrt(static_cast<double>(config_.hidden_size))
      : is_out ? range / std::sqrt(2.0 * static_cast<double>(config_.num_hidden_layers))
               : range;
  // The reference draws each matrix as that of any model before it draws it as one of this.
  full.normal_(0.0, range, generator);
  fill_with_truncated_normal(full, deviation, config_.initializer_cutoff, generator);
}

}  // namespace strata::models
