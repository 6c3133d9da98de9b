#include "strata/adapters/lora_init.h"

#include <charconv>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "strata/adapters/token_embedding.h"
#include "strata/base/error.h"
#include "strata/nn/dora.h"

namespace strata::adapters {
namespace {

constexpr std::string_view kIterations = "pissa_niter_";

// N of "pissa_niter_N", or -1.
int64_t num_iterations(const std::string& name) {
  if (!name.starts_with(kIterations)) return -1;
  int64_t number = -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kIterations.size(), end, number);
  return error == std::errc() && stop == end ? number : -1;
}

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
  if (init != "true" && init != "gaussian") return values;
  if (init == "true") {
    values.a = draw_linear(rank, layer.in_features(), generator);
  } else {
    values.a.normal_(0, 1 / static_cast<double>(rank), generator);
  }
  values.b.zero_();
  if (values.bias.defined()) values.bias.zero_();
  return values;
}

// torch.svd_lowrank: U, S, V of the randomised range finder of Halko et al. 2009.
std::tuple<at::Tensor, at::Tensor, at::Tensor> low_rank_svd(const at::Tensor& w, int64_t iterations,
                                                            const at::Tensor& random) {
  const bool is_wide = w.size(0) < w.size(1);
  const at::Tensor m = is_wide ? w.t() : w;
  at::Tensor q = std::get<0>(at::linalg_qr(at::matmul(m, random)));
  for (int64_t i = 0; i < iterations; ++i) {
    q = std::get<0>(at::linalg_qr(at::matmul(m.t(), q)));
    q = std::get<0>(at::linalg_qr(at::matmul(m, q)));
  }
  const auto [u, s, vh] = at::linalg_svd(at::matmul(q.t(), m), /*full_matrices=*/false);
  const at::Tensor left = q.matmul(u), right = vh.t();
  return is_wide ? std::tuple{right, s, left} : std::tuple{left, s, right};
}

// A and B of one layer from its weight.
BaseDirections from_weight(const at::Tensor& w, int64_t rank, double scaling,
                           const std::string& init, const at::Tensor& random) {
  if (init == "olora") {
    const auto [q, r] = at::linalg_qr(w);
    return {r.narrow(0, 0, rank).contiguous(), q.narrow(1, 0, rank).contiguous()};
  }
  at::Tensor left, sizes, right;
  if (random.defined()) {
    std::tie(left, sizes, right) = low_rank_svd(w, num_iterations(init), random);
    right = right.t();
  } else {
    std::tie(left, sizes, right) = at::linalg_svd(w, /*full_matrices=*/false);
  }
  const at::Tensor roots = at::diag(at::sqrt(sizes.narrow(0, 0, rank) / scaling));
  return {at::matmul(roots, right.narrow(0, 0, rank)), at::matmul(left.narrow(1, 0, rank), roots)};
}

// What one layer starts from and with.
struct Start {
  nn::Linear* layer;
  Values drawn;       // where the base's weight does not decide
  at::Tensor random;  // of pissa_niter_N
};

// The embedding's branch, which stands before all layers.
void start_embedding(nn::Embedding& embedding, const std::string& init,
                     const at::Generator& generator, const Place& place) {
  const EmbeddingStart start = draw_start(embedding, init, generator);
  const at::ScalarType type = embedding.weight().storage_type();
  place(embedding.low_rank()->a, start.a.to(type).to(at::kFloat));
  place(embedding.low_rank()->b, start.b.to(type).to(at::kFloat));
}

std::vector<Start> draw_starts(const LoraAdapter& adapter, const at::Generator& generator) {
  std::vector<Start> starts;
  for (nn::Linear* layer : adapter.layers()) {
    Start start{layer, draw_values(*layer, adapter.options().init, generator), {}};
    if (num_iterations(adapter.options().init) >= 0) {
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
  if (!init.starts_with("pissa")) return;
  for (const nn::Linear* layer : adapter.layers()) {
    if (!layer->weight().quantization()) continue;
    throw ConfigError(
        "init_lora_weights: found {} over the quantised \"{}\", expected a plain base for it; "
        "choose "
        "olora, gaussian or true, or leave the base as it is",
        init, layer->path());
  }
}

}  // namespace

void check_init(const std::string& name) {
  constexpr std::string_view kNames[] = {"true", "false", "gaussian", "orthogonal",
                                         "eva",  "pissa", "olora"};
  for (const std::string_view known : kNames) {
    if (name == known) return;
  }
  if (num_iterations(name) >= 0) return;
  throw ConfigError(
      "init_lora_weights: found \"{}\", expected true, false, gaussian, orthogonal, pissa, "
      "pissa_niter_N or olora; choose one of them",
      name);
}

BaseDirections base_directions(const at::Tensor& weight, int64_t rank, double scaling,
                               const std::string& init) {
  return from_weight(weight, rank, scaling, init, at::Tensor());
}

bool changes_base(const LoraOptions& options) {
  return options.init.starts_with("pissa") || options.init == "olora";
}

bool starts_from_base(const LoraOptions& options) {
  return changes_base(options) || options.use_dora;
}

void initialize(const LoraAdapter& adapter, uint64_t seed, const Place& place) {
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
  for (const Start& start : draw_starts(adapter, generator)) {
    nn::LowRankBranch& branch = *start.layer->low_rank();
    at::Tensor a = start.drawn.a, b = start.drawn.b;
    // PEFT moves the branch to the base's type before it makes it fp32 again.
    if (!start.layer->weight().quantization()) {
      const at::ScalarType type = start.layer->weight().storage_type();
      a = a.to(type).to(at::kFloat);
      b = b.to(type).to(at::kFloat);
    }
    place(branch.a, a);
    place(branch.b, b);
    if (branch.bias) place(*branch.bias, start.drawn.bias);
  }
}

void initialize_from_base(const LoraAdapter& adapter, uint64_t seed, const Place& place,
                          const BaseAccess& base, bool only_base) {
  const LoraOptions& options = adapter.options();
  require_plain_base(adapter);
  std::vector<Start> starts = draw_starts(adapter, at::make_generator<at::CPUGeneratorImpl>(seed));
  const auto ranks = static_cast<size_t>(base.num_ranks);
  for (size_t round = 0; round < starts.size(); round += ranks) {
    const size_t end = std::min(starts.size(), round + ranks);
    for (size_t i = round; i < end && changes_base(options); ++i) {
      const at::Tensor w = base.read(starts[i].layer->weight());
      if (i - round == static_cast<size_t>(base.rank)) {
        const nn::LowRankBranch& branch = *starts[i].layer->low_rank();
        const BaseDirections found =
            from_weight(w, branch.a.shape()[0], branch.scaling, options.init, starts[i].random);
        starts[i].drawn = {found.a, found.b, at::Tensor()};
      }
    }
    for (size_t i = round; i < end; ++i) {
      Values& values = starts[i].drawn;
      nn::LowRankBranch& branch = *starts[i].layer->low_rank();
      nn::Parameter& weight = starts[i].layer->weight();
      values.a = values.a.contiguous();
      values.b = values.b.contiguous();
      base.share(values.a, static_cast<int>(i - round));
      base.share(values.b, static_cast<int>(i - round));
      at::Tensor w = base.read(weight);
      if (changes_base(options)) {
        w = w - at::matmul(values.b * branch.scaling, values.a);
        base.write(weight, w);
      }
      if (only_base) continue;
      place(branch.a, values.a);
      place(branch.b, values.b);
      if (!branch.magnitude) continue;
      // Of the weight as it rests now, rounded or quantised.
      if (changes_base(options)) w = base.read(weight);
      place(*branch.magnitude, nn::dora_row_norms(w, values.a, values.b, branch.scaling));
    }
  }
}

}  // namespace strata::adapters
