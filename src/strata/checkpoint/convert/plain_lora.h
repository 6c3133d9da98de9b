// A LoRA adapter that began with directions of its base (PiSSA, OLoRA), seen as one of twice the
// rank over the unchanged base: W - s B0 A0 + s B A = W + s [B, -B0] [A; A0], which is what PEFT's
// save_pretrained(path_initial_model_for_weight_conversion=...) writes. Never: writing.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/adapters/lora.h"
#include "strata/checkpoint/convert/saved_state.h"

namespace strata::checkpoint {

class PlainLoraState final : public SavedState {
 public:
  // `first`: the base, off which A0 and B0 are taken again, or the adapter as it was before its
  // first step; pissa_niter_N, whose random directions nobody can draw again, needs the latter.
  // Both must outlive this. Optimizer state is left out.
  // ConfigError for adapters that began otherwise, or on another base.
  PlainLoraState(SavedState& adapter, SavedState& first);

  // Memory: the weight of a layer and its decomposition, fp32.
  void read(size_t index, std::span<std::byte> out) override;
  std::string verify() override { return adapter_.verify(); }

 private:
  // The A and B that a layer's training began with, fp32.
  struct FirstValues {
    at::Tensor a, b;
  };
  const FirstValues& first_values(const std::string& module);
  FirstValues taken_off_base(const std::string& module, const std::vector<int64_t>& shape,
                             int64_t rank);
  at::Tensor saved_value(const std::string& name, const std::vector<int64_t>& shape);
  [[noreturn]] void fail(const std::string& found, const std::string& expected,
                         const std::string& advice) const;

  SavedState& adapter_;
  SavedState& first_;
  adapters::LoraOptions settings_;
  // Of the layer that was read last: its A and B stand side by side.
  std::string module_;
  FirstValues values_;
};

}  // namespace strata::checkpoint
