#include "strata/adapters/counts.h"

#include <fmt/format.h>

#include "strata/models/footprint.h"

namespace strata::adapters {
namespace {

std::string with_thousands(int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

}  // namespace

std::string trainable_parameters_line(models::Model& model) {
  int64_t trainable = 0, all = model.num_copied_elements();
  for (const nn::Parameter* parameter : model.parameters()) {
    if (!parameter->is_buffer()) all += models::counted_elements(*parameter);
    if (parameter->requires_grad()) trainable += parameter->numel();
  }
  return fmt::format("trainable params: {} || all params: {} || trainable%: {:.4f}",
                     with_thousands(trainable), with_thousands(all),
                     100.0 * static_cast<double>(trainable) / static_cast<double>(all));
}

int64_t buffer_bytes(const LoraAdapter& adapter) {
  int64_t bytes = 0;
  if (const auto& projection = adapter.projection()) {
    bytes += static_cast<int64_t>(projection->a.nbytes() + projection->b.nbytes());
  }
  if (const auto& tokens = adapter.trained_tokens()) {
    bytes += tokens->rows->rows().numel() * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

}  // namespace strata::adapters
