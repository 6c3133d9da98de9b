#include "strata/nn/attention/kv_cache.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "strata/base/error.h"

namespace strata::nn {

bool KvCache::has_states() const {
  return std::ranges::any_of(layers, [](const Layer& layer) {
    return layer.state.defined() || layer.last_inputs.defined();
  });
}

void KvCache::forget_states() {
  for (Layer& layer : layers) {
    layer.state = at::Tensor();
    layer.last_inputs = at::Tensor();
  }
}

KeysValues extend_cache(KvCache& cache, int64_t layer, const at::Tensor& k, const at::Tensor& v) {
  const int64_t added = k.size(0), total = cache.length + added;
  if (total > cache.capacity) {
    throw ConfigError(
        "generation: found {} tokens, expected at most {} in the cache of keys and "
        "values; ask for fewer new tokens or a larger cache",
        total, cache.capacity);
  }
  KvCache::Layer& slot = cache.layers.at(layer);
  if (!slot.keys.defined()) {
    slot.keys = at::empty({cache.capacity, k.size(1), k.size(2)}, k.options());
    slot.values = at::empty({cache.capacity, v.size(1), v.size(2)}, v.options());
  }
  slot.keys.narrow(0, cache.length, added).copy_(k);
  slot.values.narrow(0, cache.length, added).copy_(v);
  return {slot.keys.narrow(0, 0, total), slot.values.narrow(0, 0, total)};
}

KeysValues read_cache(const KvCache& cache, int64_t layer, int64_t added) {
  const KvCache::Layer& slot = cache.layers.at(static_cast<size_t>(layer));
  const int64_t total = cache.length + added;
  if (slot.keys.defined() && total <= slot.keys.size(0)) {
    return {slot.keys.narrow(0, 0, total), slot.values.narrow(0, 0, total)};
  }
  throw InternalError(
      "attention: found a cache without the {} keys of layer {}, expected the layer to have run; "
      "report this as a bug",
      total, layer);
}

}  // namespace strata::nn
