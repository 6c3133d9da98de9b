#include "strata/models/encoder_decoder.h"

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/model_folder.h"
#include "strata/models/weight_check.h"
#include "strata/nn/attention/decoder_cache.h"
#include "strata/nn/chunked_cross_entropy.h"

namespace strata::models {
namespace {

// [D, length + 1, H, C]: `added` [D, H * C] after `earlier`.
at::Tensor extended(const at::Tensor& earlier, const at::Tensor& added, int64_t heads) {
  const at::Tensor last = added.view({added.size(0), 1, heads, -1});
  return earlier.defined() ? at::cat({earlier, last}, 1) : last.clone();
}

}  // namespace

nn::ForwardContext of_source(const nn::ForwardContext& context) {
  if (context.batch->source == nullptr) {
    throw InternalError(
        "encoder: found a batch without source documents, expected them; report this as a bug");
  }
  nn::ForwardContext source = context;
  source.batch = context.batch->source.get();
  return source;
}

void read_decoder_cache(std::vector<at::Tensor>& qkv, nn::BiasedAttentionShape& shape,
                        int64_t index, const nn::ForwardContext& context) {
  if (context.generation.decoder_cache == nullptr) return;
  nn::DecoderCache& cache = *context.generation.decoder_cache;
  auto& layer = cache.layers.at(static_cast<size_t>(index));
  if (cache.parents.defined() && layer.keys.defined()) {
    layer.keys = layer.keys.index_select(0, cache.parents);
    layer.values = layer.values.index_select(0, cache.parents);
  }
  layer.keys = extended(layer.keys, qkv[1], shape.num_heads);
  layer.values = extended(layer.values, qkv[2], shape.num_heads);
  qkv[1] = layer.keys.view({-1, shape.num_heads * shape.head_dim});
  qkv[2] = layer.values.view({-1, shape.num_heads * shape.head_dim});
  shape.key_lead = cache.length;
  for (int64_t& offset : shape.key_offsets) offset *= cache.length + 1;
}

std::vector<int64_t> offsets_by_source(const nn::Batch& batch) {
  const size_t documents = batch.offsets.size() - 1, sources = batch.source->offsets.size() - 1;
  std::vector<int64_t> offsets;
  for (size_t d = 0; d <= documents; d += documents / sources) offsets.push_back(batch.offsets[d]);
  return offsets;
}

std::vector<at::Tensor> source_keys_values(const nn::Linear& k, const nn::Linear& v, int64_t index,
                                           const nn::ForwardContext& context) {
  nn::DecoderCache::Layer* cached =
      context.generation.decoder_cache == nullptr
          ? nullptr
          : &context.generation.decoder_cache->layers.at(static_cast<size_t>(index));
  if (cached != nullptr && cached->source_keys.defined()) {
    return {cached->source_keys, cached->source_values};
  }
  std::vector<at::Tensor> kv =
      nn::linear_shared_input({&k, &v}, context.pass.shelf->at(kEncoderOutput), of_source(context));
  if (cached != nullptr) {
    cached->source_keys = kv[0];
    cached->source_values = kv[1];
  }
  return kv;
}

at::Tensor loss_or_logits(const at::Tensor& h, const nn::Linear& lm_head,
                          const nn::ForwardContext& context) {
  if (context.head.next_logits == nullptr) return nn::chunked_cross_entropy(h, lm_head, context);
  const auto& offsets = context.batch->offsets;
  const at::Tensor last = at::empty({static_cast<int64_t>(offsets.size()) - 1}, at::kLong);
  for (int64_t d = 0; d < last.numel(); ++d) {
    last.data_ptr<int64_t>()[d] = offsets[static_cast<size_t>(d) + 1] - 1;
  }
  const at::Tensor rows = h.index_select(0, last.to(h.device()));
  *context.head.next_logits = lm_head.forward(rows, nn::ForwardContext{}).to(at::kFloat);
  return at::zeros({}, h.options().dtype(at::kFloat));
}

WeightSources EncoderDecoderModel::check_weights(const hf::ModelFolder& folder) {
  const std::string& shared = table()->name();
  const hf::TensorInfo* embedding = folder.find(shared);
  for (const std::string& name : names_.others) {
    const hf::TensorInfo* other = folder.find(name);
    if (embedding == nullptr || other == nullptr || same_values(folder, *embedding, *other)) {
      continue;
    }
    throw ConfigError(
        "{}: found \"{}\" with other values than \"{}\", expected one embedding for encoder and "
        "decoder; use a checkpoint that shares it",
        folder.path().string(), name, shared);
  }
  follow_tie(folder);
  std::vector<ExpectedWeight> expected;
  for (const nn::Parameter* parameter : parameters()) {
    if (parameter->name().starts_with(hf::kAdapterKeyPrefix)) continue;
    expected.push_back({parameter, {parameter->name()}});
    std::vector<std::string>& names = expected.back().names;
    if (parameter == table().get()) {
      names.insert(names.end(), names_.others.begin(), names_.others.end());
      if (is_tied()) names.push_back(kHeadWeight);
    }
    // An adapter that trains the output layer has untied it from a file that ties.
    if (parameter->name() == kHeadWeight) names.push_back(shared);
  }
  return match_weights(folder, expected, names_.ignored);
}

}  // namespace strata::models
