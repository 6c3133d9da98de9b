#include "strata/adapters/lora_init.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "strata/adapters/base_directions.h"
#include "strata/adapters/token_embedding.h"
#include "strata/base/error.h"
#include "strata/nn/dora.h"
#include "strata/nn/embedded_rows.h"
#include "strata/ops/quant/quantized.h"

namespace strata::adapters {
namespace {

at::Tensor draw_uniform(at::IntArrayRef shape, double bound, const at::Generator& generator) {
  return at::empty(shape, at::kFloat).uniform_(-bound, bound, generator);
}

// torch.nn.init.kaiming_uniform_(a=sqrt(5)) of [rows, columns], as nn.Linear and PEFT draw it.
at::Tensor draw_linear(int64_t rows, int64_t columns, const at::Generator& generator) {
  const double slope = std::sqrt(5.0);
  const double gain = std::sqrt(2.0 / (1 + slope * slope));
  const double bound = std::sqrt(3.0) * (gain / std::sqrt(static_cast<double>(columns)));
  return draw_uniform({rows, columns}, bound, generator);
}

struct Values {
  at::Tensor a, b, bias;
};

void make_orthogonal(Values& values, int64_t rank, const at::Generator& generator) {
  if (rank % 2 != 0) {
    throw ConfigError(
        "init_lora_weights: found \"orthogonal\" with rank {}, expected an even rank; change one",
        rank);
  }
  const int64_t in = values.a.size(1), out = values.b.size(0);
  const at::Tensor q = std::get<0>(at::linalg_qr(at::randn({rank, rank}, generator)));
  const at::Tensor odd = q.slice(0, 0, rank, 2), even = q.slice(0, 1, rank, 2);
  values.a = at::randn({in, rank / 2}, generator).mm(odd).t().div(10.0).contiguous();
  values.b = at::randn({rank / 2, out}, generator).t().mm(even).div(10.0).contiguous();
}

// The kinds that draw A again and begin with a B of zero.
void begin_at_zero(Values& values, int64_t rank, const std::string& init,
                   const at::Generator& generator) {
  if (init != "true" && init != "gaussian") return;
  if (init == "true") {
    values.a = draw_linear(values.a.size(0), values.a.size(1), generator);
  } else {
    values.a.normal_(0, 1 / static_cast<double>(rank), generator);
  }
  values.b.zero_();
  if (values.bias.defined()) values.bias.zero_();
}

// What nn.Linear draws for A, B and its bias, which most kinds replace.
Values draw_values(const nn::Linear& layer, const std::string& init,
                   const at::Generator& generator) {
  const nn::LowRankBranch& branch = *layer.low_rank();
  const int64_t rank = branch.a.shape()[0];
  Values values{draw_linear(rank, layer.in_features(), generator),
                draw_linear(layer.out_features(), rank, generator), at::Tensor()};
  if (branch.bias) {
    values.bias =
        draw_uniform({layer.out_features()}, 1 / std::sqrt(static_cast<double>(rank)), generator);
  }
  if (init == "orthogonal") make_orthogonal(values, rank, generator);
  begin_at_zero(values, rank, init, generator);
  return values;
}

// The same for all experts of a layer at once.
Values draw_values(const nn::ExpertParameter& matrices, const std::string& init,
                   const at::Generator& generator) {
  const nn::ExpertBranch& branch = *matrices.branch;
  const int64_t rows = branch.a.shape()[0];
  Values values{draw_linear(rows, matrices.in_features, generator),
                draw_linear(matrices.out_features, rows, generator), at::Tensor()};
  begin_at_zero(values, branch.rank(), init, generator);
  return values;
}

// What one layer starts from and with.
struct Start {
  nn::Linear* layer = nullptr;
  Values drawn;       // where the base's weight does not decide
  at::Tensor random;  // of pissa_niter_N
  at::Tensor base;    // what is left of the weight, on the rank that computed it
};

// The embedding's branch, which stands before all layers.
EmbeddingStart start_embedding(nn::Embedding& embedding, const std::string& init,
                               const at::Generator& generator, const Place& place) {
  const EmbeddingStart drawn = draw_start(embedding, init, generator);
  const at::ScalarType type = embedding.weight().storage_type();
  const EmbeddingStart start{drawn.a.to(type).to(at::kFloat), drawn.b.to(type).to(at::kFloat)};
  place(embedding.low_rank()->a, start.a);
  place(embedding.low_rank()->b, start.b);
  return start;
}

std::vector<Start> draw_starts(const LoraAdapter& adapter, const at::Generator& generator) {
  std::vector<Start> starts;
  // What is fitted to codes replaces PEFT's own first values.
  const std::string init = adapter.options().keeps_base ? "true" : adapter.options().init;
  for (nn::Linear* layer : adapter.layers()) {
    Start start{layer, draw_values(*layer, init, generator), {}, {}};
    if (num_svd_iterations(adapter.options().init) >= 0) {
      start.random = at::randn(
          {std::min(layer->in_features(), layer->out_features()), layer->low_rank()->a.shape()[0]},
          generator);
    }
    starts.push_back(std::move(start));
  }
  return starts;
}

// PEFT refuses this too: quantising what PiSSA leaves of the base is a step of its own.
void require_plain_base(const LoraAdapter& adapter) {
  const std::string& init = adapter.options().init;
  if (!init.starts_with("pissa") && init != "loftq") return;
  for (const nn::Linear* layer : adapter.layers()) {
    if (!layer->weight().quantization()) continue;
    throw ConfigError(
        "init_lora_weights: found {} over the quantised \"{}\", expected a plain base for it{}; "
        "choose olora, gaussian or true, or leave the base as it is",
        init, layer->path(), init == "loftq" ? " or one in 4 bits" : "");
  }
}

// Whether LoftQ fits the layer to the codes that it has.
bool is_fitted(const LoraOptions& options, const nn::Linear& layer) {
  const auto& quantization = layer.weight().quantization();
  return options.keeps_base && quantization && quantization->format.kind != ops::quant::Kind::kInt8;
}

// As PEFT's replace_lora_weights_loftq(): layers in 4 bits, once.
void check_codes_to_fit(const LoraAdapter& adapter, const BaseAccess& base) {
  const LoraOptions& options = adapter.options();
  const auto& layers = adapter.layers();
  const auto fitted = std::find_if(layers.begin(), layers.end(), [&](const nn::Linear* layer) {
    return is_fitted(options, *layer);
  });
  if (fitted == layers.end()) return require_plain_base(adapter);
  if (options.loftq_iter != 1) {
    throw ConfigError(
        "loftq_iter: found {} over the quantised \"{}\", expected 1, because its codes stay as "
        "they are; set it to 1, or leave the base as it is",
        options.loftq_iter, (*fitted)->path());
  }
  if (options.loftq_bits != 4) {
    throw ConfigError(
        "loftq_bits: found {} over the 4 bits of \"{}\", expected 4; set it to 4, or leave the "
        "base "
        "as it is",
        options.loftq_bits, (*fitted)->path());
  }
  if (!base.read_plain) {
    throw ConfigError(
        "init_lora_weights: found loftq over \"{}\", of which the checkpoint holds codes alone, "
        "expected plain weights to compare with; name the model that was quantised",
        (*fitted)->path());
  }
}

}  // namespace

void check_init(const std::string& name) {
  constexpr std::string_view kNames[] = {"true", "false", "gaussian", "orthogonal",
                                         "eva",  "pissa", "olora",    "loftq"};
  for (const std::string_view known : kNames) {
    if (name == known) return;
  }
  if (num_svd_iterations(name) >= 0) return;
  throw ConfigError(
      "init_lora_weights: found \"{}\", expected true, false, gaussian, orthogonal, pissa, "
      "pissa_niter_N, olora or loftq; choose one of them",
      name);
}

bool changes_base(const LoraOptions& options) {
  if (options.method != Method::kLora || options.keeps_base) return false;
  return options.init.starts_with("pissa") || options.init == "olora" || options.init == "loftq";
}

bool draws_directions(const LoraOptions& options) {
  return changes_base(options) && num_svd_iterations(options.init) >= 0;
}

void require_known_directions(const LoraOptions& options, const std::string& subject) {
  if (!draws_directions(options)) return;
  throw ConfigError(
      "{}: found init_lora_weights {}, which took directions off the base that were searched from "
      "random ones and cannot be searched again (PEFT takes others), expected pissa or another; "
      "write it as a plain LoRA: strata convert ADAPTER OUT --to lora "
      "--path_initial_model_for_weight_conversion FIRST",
      subject, options.init);
}

bool starts_from_base(const LoraOptions& options) {
  const bool samples = options.method == Method::kPrompt && options.prompt_init != "RANDOM";
  return changes_base(options) || options.keeps_base || options.use_dora || samples;
}

namespace {

void initialize_vera(const LoraAdapter& adapter, uint64_t seed, const Place& place) {
  const LoraOptions& options = adapter.options();
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (const nn::Linear* layer : adapter.layers()) {
    nn::Vera& vera = *layer->vera();
    const at::Tensor drawn = at::randn(vera.d.shape(), generator);
    const bool is_random = options.init_weights == "false";
    place(vera.b, is_random ? at::ones(vera.b.shape()) : at::zeros(vera.b.shape()));
    place(vera.d, is_random ? drawn : at::full(vera.d.shape(), options.d_initial));
  }
}

// What torch.nn.Embedding draws.
at::Tensor draw_rows(const nn::Parameter& values, const at::Generator& generator) {
  return at::empty(values.shape(), at::kFloat).normal_(0, 1, generator);
}

// PEFT's PrefixEncoder: an embedding and two linear layers.
void initialize_encoder(const LoraAdapter& adapter, uint64_t seed, const Place& place) {
  const std::vector<nn::Parameter*>& weights = adapter.inner_parameters();
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  place(*weights[0], draw_rows(*weights[0], generator));
  for (const size_t layer : {1u, 3u}) {
    const std::vector<int64_t>& shape = weights[layer]->shape();
    const at::Tensor weight = draw_linear(shape[0], shape[1], generator);
    const at::Tensor bias =
        draw_uniform({shape[0]}, 1 / std::sqrt(static_cast<double>(shape[1])), generator);
    const bool is_zero = layer == 3 && adapter.options().init_weights == "zero";
    place(*weights[layer], is_zero ? at::zeros_like(weight) : weight);
    place(*weights[layer + 1], is_zero ? at::zeros_like(bias) : bias);
  }
}

void initialize_rows(const LoraAdapter& adapter, uint64_t seed, const Place& place) {
  if (!adapter.inner_parameters().empty()) return initialize_encoder(adapter, seed, place);
  nn::Parameter& values = *adapter.tensors()[0].parameter;
  const at::Tensor drawn = draw_rows(values, at::make_generator<at::CPUGeneratorImpl>(seed));
  place(values, adapter.options().init_weights == "zero" ? at::zeros_like(drawn) : drawn);
}

// The rows of the base's embedding that the virtual tokens start from.
at::Tensor sampled_ids(const LoraAdapter& adapter, uint64_t seed, int64_t vocab_size) {
  const nn::Parameter& values = *adapter.tensors()[0].parameter;
  const int64_t count = values.shape()[0];
  const std::vector<int64_t>& text = adapter.options().prompt_text_ids;
  if (adapter.options().prompt_init == "TEXT") {
    if (text.empty()) {
      throw ConfigError(
          "prompt_tuning_init_text: found a text without tokens, expected words; write some");
    }
    at::Tensor ids = at::empty({count}, at::kLong);
    for (int64_t i = 0; i < count; ++i) {
      ids.data_ptr<int64_t>()[i] = text[static_cast<size_t>(i) % text.size()];
    }
    return ids;
  }
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  draw_rows(values, generator);
  return at::randint(0, vocab_size, {count}, generator, at::kLong);
}

// A and B of one layer from its weight, by the rank that `root` is. Collective.
void compute_start(Start& start, const LoraOptions& options, const BaseAccess& base, int root) {
  const nn::Linear& layer = *start.layer;
  const bool computes = options.keeps_base ? is_fitted(options, layer) : changes_base(options);
  if (!computes) return;
  const at::Tensor w = base.read(layer.weight());
  if (base.rank != root) return;
  const nn::LowRankBranch& branch = *start.layer->low_rank();
  const int64_t rank = branch.a.shape()[0];
  const BaseDirections found =
      options.keeps_base ? best_approximation(base.read_plain(layer.weight()) - w, rank)
                         : base_directions(w, rank, branch.scaling, options, start.random);
  start.drawn = {found.a, found.b, at::Tensor()};
  start.base = found.base;
}

// Makes root's values everyone's. The weight as it rests then, rounded or quantised. Collective.
at::Tensor share_start(Start& start, const LoraOptions& options, const BaseAccess& base, int root) {
  Values& values = start.drawn;
  values.a = values.a.contiguous();
  values.b = values.b.contiguous();
  base.share(values.a, root);
  base.share(values.b, root);
  nn::Parameter& weight = start.layer->weight();
  at::Tensor w = base.read(weight);
  if (!changes_base(options)) return w;
  // A rank's products may differ in the last bit from another's: all take the root's.
  w = start.base.defined() ? start.base.contiguous() : at::empty_like(w);
  base.share(w, root);
  base.write(weight, w);
  return start.layer->low_rank()->magnitude ? base.read(weight) : w;
}

void place_start(const Start& start, const at::Tensor& w, const Place& place) {
  nn::LowRankBranch& branch = *start.layer->low_rank();
  place(branch.a, start.drawn.a);
  place(branch.b, start.drawn.b);
  if (!branch.magnitude) return;
  const at::Tensor rows = start.layer->weight().is_transposed() ? w.t().contiguous() : w;
  place(*branch.magnitude, nn::dora_row_norms(rows, start.drawn.a, start.drawn.b, branch.scaling));
}

}  // namespace

void initialize(const LoraAdapter& adapter, uint64_t seed, const Place& place) {
  if (adapter.options().has_virtual_tokens()) return initialize_rows(adapter, seed, place);
  if (adapter.options().method == Method::kVera) return initialize_vera(adapter, seed, place);
  if (adapter.options().method == Method::kIa3) {
    for (const nn::Linear* layer : adapter.layers()) {
      nn::Parameter& factors = layer->rescale()->factors;
      place(factors, at::ones(factors.shape()));
    }
    return;
  }
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  if (adapter.embedding() != nullptr) {
    start_embedding(*adapter.embedding(), adapter.options().init, generator, place);
  }
  // PEFT moves the branch to the base's type before it makes it fp32 again. Codes of bitsandbytes
  // have none; MXFP4 and fp8 are decoded there.
  const auto place_rounded = [&](nn::Parameter& parameter, const at::Tensor& value,
                                 const nn::Parameter& base) {
    const bool has_type =
        !base.quantization() || !ops::quant::is_of_bitsandbytes(base.quantization()->format);
    place(parameter, has_type ? value.to(base.plain_storage_type()).to(at::kFloat) : value);
  };
  for (const Start& start : draw_starts(adapter, generator)) {
    nn::LowRankBranch& branch = *start.layer->low_rank();
    place_rounded(branch.a, start.drawn.a, start.layer->weight());
    place_rounded(branch.b, start.drawn.b, start.layer->weight());
    if (branch.bias) place(*branch.bias, start.drawn.bias);
  }
  for (const nn::ExpertParameter* matrices : adapter.expert_parameters()) {
    const Values drawn = draw_values(*matrices, adapter.options().init, generator);
    place_rounded(matrices->branch->a, drawn.a, *matrices->weights[0]);
    place_rounded(matrices->branch->b, drawn.b, *matrices->weights[0]);
  }
}

void initialize_from_base(const LoraAdapter& adapter, uint64_t seed, const Place& place,
                          const BaseAccess& base, bool only_base) {
  const LoraOptions& options = adapter.options();
  if (options.has_virtual_tokens()) {
    const at::Tensor table = base.read(*base.embedding);
    const at::Tensor ids = sampled_ids(adapter, seed, table.size(0));
    // As the reference embeds the tokens, in the base's type.
    const at::Tensor rows = nn::scale_rows(
        table.index_select(0, ids).to(base.embedding->storage_type()), base.embedding_scale);
    if (!only_base) place(*adapter.tensors()[0].parameter, rows.to(at::kFloat));
    return;
  }
  options.keeps_base ? check_codes_to_fit(adapter, base) : require_plain_base(adapter);
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  if (nn::Embedding* embedding = adapter.embedding(); embedding != nullptr && !only_base) {
    const EmbeddingStart start = start_embedding(*embedding, options.init, generator, place);
    const nn::EmbeddingBranch& branch = *embedding->low_rank();
    if (branch.magnitude) {
      place(*branch.magnitude, nn::dora_column_norms(base.read(embedding->weight()), start.a,
                                                     start.b, branch.scaling));
    }
  }
  std::vector<Start> starts = draw_starts(adapter, generator);
  const auto ranks = static_cast<size_t>(base.num_ranks);
  for (size_t round = 0; round < starts.size(); round += ranks) {
    const size_t end = std::min(starts.size(), round + ranks);
    for (size_t i = round; i < end; ++i) {
      compute_start(starts[i], options, base, static_cast<int>(i - round));
    }
    for (size_t i = round; i < end; ++i) {
      const at::Tensor w = share_start(starts[i], options, base, static_cast<int>(i - round));
      if (!only_base) place_start(starts[i], w, place);
      starts[i] = {};
    }
  }
}

}  // namespace strata::adapters
