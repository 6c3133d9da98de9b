#include "strata/models/vocabulary.h"

#include <mutex>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "strata/base/error.h"
#include "strata/hf/adapter_files.h"
#include "strata/nn/linear.h"

namespace strata::models {
namespace {

constexpr int64_t kBytesAtOnce = int64_t{64} << 20;
constexpr double kShareOfCovariance = 1e-9;
// at::normal_ fills 16 values at a time and draws the last 16 once more when some are left over.
constexpr int64_t kBlock = 16;

// Every draw of a float takes one number of the generator.
void skip_draws(at::Generator& generator, int64_t count) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  auto* numbers = at::check_generator<at::CPUGeneratorImpl>(generator);
  for (int64_t i = 0; i < count; ++i) numbers->random();
}

int64_t draws_of_normal(int64_t numel) {
  return numel % kBlock == 0 || numel < kBlock ? numel : numel + kBlock;
}

struct Moments {
  at::Tensor mean;        // [columns]
  at::Tensor covariance;  // [columns, columns]
};

Moments moments_of(const ReadRows& read, int64_t rows, int64_t columns) {
  const int64_t step = std::max<int64_t>(kBytesAtOnce / (4 * columns), 1);
  const auto for_chunks = [&](const auto& visit) {
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t count = std::min(step, rows - begin);
      visit(read(begin, count).view({count, columns}));
    }
  };
  Moments result;
  at::Tensor sum = at::zeros({columns});
  for_chunks([&](const at::Tensor& chunk) { sum.add_(chunk.sum(0)); });
  result.mean = sum.div_(static_cast<double>(rows));
  result.covariance = at::zeros({columns, columns});
  for_chunks([&](const at::Tensor& chunk) {
    const at::Tensor centered = chunk - result.mean;
    result.covariance.addmm_(centered.t(), centered);
  });
  result.covariance.div_(static_cast<double>(rows));
  return result;
}

// The lower factor of a covariance; undefined where it is not positive definite.
at::Tensor factor_of(const at::Tensor& covariance) {
  const at::Tensor asymmetry = (covariance - covariance.t()).abs();
  if (asymmetry.max().item<float>() > 1e-6) return {};
  auto [factor, info] = at::linalg_cholesky_ex(covariance);
  return info.item<int>() == 0 ? factor : at::Tensor();
}

at::Tensor around_mean(const nn::Parameter& parameter, const ReadRows& read,
                       at::Generator& generator) {
  const int64_t columns = parameter.shape()[1], added = parameter.num_new_rows();
  const Moments old = moments_of(read, parameter.shape()[0] - added, columns);
  const at::Tensor factor = factor_of(old.covariance * kShareOfCovariance);
  if (!factor.defined()) return old.mean.unsqueeze(0).repeat({added, 1});
  const at::Tensor noise = at::empty({added, columns}).normal_(0, 1, generator);
  return at::matmul(factor, noise.unsqueeze(-1)).squeeze(-1) + old.mean;
}

// The end of a draw of the whole weight.
at::Tensor end_of_normal(const nn::Parameter& parameter, double deviation,
                         at::Generator& generator) {
  const int64_t wanted = parameter.num_new_rows() * parameter.shape()[1];
  int64_t begin = (parameter.numel() - wanted) / kBlock * kBlock;
  if (parameter.numel() - begin < kBlock) begin = 0;
  skip_draws(generator, begin);
  const at::Tensor end = at::empty({parameter.numel() - begin}, at::dtype(parameter.storage_type()))
                             .normal_(0, deviation, generator);
  return end.narrow(0, end.numel() - wanted, wanted)
      .view({parameter.num_new_rows(), parameter.shape()[1]});
}

at::Tensor draw_bias(const nn::Parameter& bias, const ReadRows& read, bool mean_resizing,
                     at::Generator& generator) {
  const int64_t added = bias.num_new_rows();
  if (!mean_resizing) return at::zeros({added});
  const at::Tensor old = read(0, bias.numel() - added);
  const double mean = old.mean().item<float>();
  const double deviation = old.std().item<float>();
  return at::empty({added}).normal_(mean, kShareOfCovariance * deviation, generator);
}

bool is_embedding(const nn::Parameter& parameter) {
  return parameter.name().find("lm_head") == std::string::npos;
}

}  // namespace

std::vector<VocabularyWeight> vocabulary_weights(Model& model) {
  std::vector<VocabularyWeight> weights;
  for (Block* block : model.blocks()) {
    if (block->kind() == BlockKind::kLayer) continue;
    if (block->kind() == BlockKind::kHead) {
      const std::vector<nn::Linear*> layers = block->linears();
      if (!layers.empty() && layers.back()->out_features() == model.vocab_size()) {
        nn::Linear& output = *layers.back();
        weights.push_back({output.path() + ".weight", &output.weight()});
        if (output.bias() != nullptr) weights.push_back({output.path() + ".bias", output.bias()});
      }
      continue;
    }
    for (nn::Parameter* parameter : block->parameters()) {
      if (parameter->name().starts_with(hf::kAdapterKeyPrefix)) continue;
      const bool is_known = std::ranges::any_of(
          weights, [&](const VocabularyWeight& known) { return known.parameter == parameter; });
      if (parameter->shape()[0] == model.vocab_size() && !is_known) {
        weights.push_back({parameter->name(), parameter});
        break;
      }
    }
  }
  return weights;
}

void mark_new_rows(Model& model, int64_t num_old) {
  if (num_old <= 0 || num_old == model.vocab_size()) return;
  for (Block* block : model.blocks()) {
    if (block->kind() == BlockKind::kLayer) continue;
    for (nn::Parameter* parameter : block->parameters()) {
      const bool is_base = !parameter->name().starts_with(hf::kAdapterKeyPrefix);
      if (!is_base || parameter->shape()[0] != model.vocab_size()) continue;
      if (parameter->quantization()) {
        throw ConfigError(
            "chat_template_format: found new tokens and \"{}\" quantised, expected plain rows to "
            "add to; name the output layer in llm_int8_skip_modules",
            parameter->name());
      }
      parameter->set_num_new_rows(model.vocab_size() - num_old);
    }
  }
}

at::Tensor draw_new_rows(const nn::Parameter& parameter, const ReadRows& old_rows,
                         const NewRowOptions& options, at::Generator& generator) {
  at::Tensor rows;
  if (parameter.shape().size() == 1) {
    rows = draw_bias(parameter, old_rows, options.mean_resizing, generator);
  } else {
    // First the layer is made, an embedding with normal values, a linear layer with uniform ones.
    const int64_t of_linear = parameter.numel() + (options.has_bias ? parameter.shape()[0] : 0);
    skip_draws(generator, is_embedding(parameter) ? draws_of_normal(parameter.numel()) : of_linear);
    rows = options.mean_resizing ? around_mean(parameter, old_rows, generator)
                                 : end_of_normal(parameter, options.initializer_range, generator);
  }
  return rows.to(parameter.storage_type());
}

}  // namespace strata::models
