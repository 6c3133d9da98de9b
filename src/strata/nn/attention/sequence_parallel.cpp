#include "strata/nn/attention/sequence_parallel.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/labels.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [tokens, heads, D] each.
struct Heads {
  at::Tensor q, k, v;
};

Heads heads_of(const HeadShare& s, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto split = [&](const at::Tensor& x, int64_t heads) {
    return x.view({x.size(0), heads, s.head_dim});
  };
  return {split(q, s.num_heads), split(k, s.num_kv_heads), split(v, s.num_kv_heads)};
}

Heads heads_of(const HeadShare& s, const at::Tensor& qkv, bool interleaved) {
  if (interleaved) {
    const at::Tensor all = qkv.view({qkv.size(0), s.num_heads, 3, s.head_dim});
    return {all.select(2, 0), all.select(2, 1), all.select(2, 2)};
  }
  const at::Tensor all = qkv.view({qkv.size(0), s.num_heads + 2 * s.num_kv_heads, s.head_dim});
  return {all.narrow(1, 0, s.num_heads), all.narrow(1, s.num_heads, s.num_kv_heads),
          all.narrow(1, s.num_heads + s.num_kv_heads, s.num_kv_heads)};
}

at::Tensor exchanged(comm::Group& group, const at::Tensor& sent) {
  at::Tensor received = at::empty_like(sent);
  group.all_to_all(received, sent)->wait();
  return received;
}

// What each rank gets of this one's tokens, or gives back: [P, n, H / P + 2 K / P, D].
class Parcels {
 public:
  Parcels(const HeadShare& share, int64_t tokens, const at::TensorOptions& options)
      : Parcels(share, at::empty({share.sequence->size(), tokens,
                                  share.own_heads() + 2 * share.own_kv_heads(), share.head_dim},
                                 options)) {}
  Parcels(const HeadShare& share, at::Tensor all) : s_(share), all_(std::move(all)) {}

  const at::Tensor& all() const { return all_; }

  void pack(const Heads& heads) const {
    q().copy_(by_rank(heads.q, s_.own_heads()));
    pack_shared(keys(), heads.k);
    pack_shared(values(), heads.v);
  }

  void unpack(const Heads& to) const {
    by_rank(to.q, s_.own_heads()).copy_(q());
    unpack_shared(keys(), to.k);
    unpack_shared(values(), to.v);
  }

 private:
  at::Tensor q() const { return all_.narrow(2, 0, s_.own_heads()); }
  at::Tensor keys() const { return all_.narrow(2, s_.own_heads(), s_.own_kv_heads()); }
  at::Tensor values() const {
    return all_.narrow(2, s_.own_heads() + s_.own_kv_heads(), s_.own_kv_heads());
  }

  // [n, heads, D] as [P, n, heads / P, D].
  static at::Tensor by_rank(const at::Tensor& x, int64_t share) {
    return x.unflatten(1, {-1, share}).transpose(0, 1);
  }
  // Of heads that several ranks read, [P, n, 1, D] as [K, P / K, n, D].
  at::Tensor by_head(const at::Tensor& part) const {
    return part.squeeze(2).unflatten(0, {s_.num_kv_heads, -1});
  }
  bool has_readers() const { return s_.num_kv_heads < s_.sequence->size(); }

  void pack_shared(const at::Tensor& part, const at::Tensor& x) const {
    if (has_readers()) {
      by_head(part).copy_(x.transpose(0, 1).unsqueeze(1).expand_as(by_head(part)));
    } else {
      part.copy_(by_rank(x, s_.own_kv_heads()));
    }
  }
  // Gradients of all readers are added, in the order of the ranks.
  void unpack_shared(const at::Tensor& part, const at::Tensor& to) const {
    if (has_readers()) {
      to.copy_(by_head(part).sum(/*dim=*/1, /*keepdim=*/false, at::kFloat).transpose(0, 1));
    } else {
      by_rank(to, s_.own_kv_heads()).copy_(part);
    }
  }

  const HeadShare& s_;
  at::Tensor all_;
};

at::Tensor sent_to_heads(const HeadShare& share, const Heads& heads) {
  const Parcels parcels(share, heads.q.size(0), heads.q.options());
  parcels.pack(heads);
  const at::Tensor received = exchanged(*share.sequence, parcels.all());
  return received.view({received.size(0) * received.size(1), -1});
}

void sent_back(const HeadShare& share, const at::Tensor& gradient, const Heads& to) {
  const int64_t ranks = share.sequence->size();
  const at::Tensor sent = gradient.contiguous().view(
      {ranks, gradient.size(0) / ranks, gradient.size(1) / share.head_dim, share.head_dim});
  Parcels(share, exchanged(*share.sequence, sent)).unpack(to);
}

struct HeadsFunction : torch::autograd::Function<HeadsFunction> {
  static at::Tensor forward(AutogradContext* context, const HeadShare& share, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v) {
    save_state(context, share);
    return sent_to_heads(share, heads_of(share, q, k, v));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& share = load_state<HeadShare>(context);
    const int64_t tokens = gradients[0].size(0) / share.sequence->size();
    const auto made = [&](int64_t heads) {
      return at::empty({tokens, heads * share.head_dim}, gradients[0].options());
    };
    const at::Tensor dq = made(share.num_heads), dk = made(share.num_kv_heads),
                     dv = made(share.num_kv_heads);
    sent_back(share, gradients[0], heads_of(share, dq, dk, dv));
    return {at::Tensor(), dq, dk, dv};
  }
};

struct FusedShare {
  HeadShare share;
  bool interleaved;
};

struct FusedHeadsFunction : torch::autograd::Function<FusedHeadsFunction> {
  static at::Tensor forward(AutogradContext* context, const FusedShare& fused,
                            const at::Tensor& qkv) {
    save_state(context, fused);
    return sent_to_heads(fused.share, heads_of(fused.share, qkv, fused.interleaved));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& [share, interleaved] = load_state<FusedShare>(context);
    const int64_t columns = (share.num_heads + 2 * share.num_kv_heads) * share.head_dim;
    const at::Tensor dqkv =
        at::empty({gradients[0].size(0) / share.sequence->size(), columns}, gradients[0].options());
    sent_back(share, gradients[0], heads_of(share, dqkv, interleaved));
    return {at::Tensor(), dqkv};
  }
};

struct TokensFunction : torch::autograd::Function<TokensFunction> {
  static at::Tensor forward(AutogradContext* context, const HeadShare& share, const at::Tensor& x) {
    save_state(context, share);
    const int64_t ranks = share.sequence->size();
    const at::Tensor received =
        exchanged(*share.sequence, x.contiguous().view({ranks, x.size(0) / ranks, x.size(1)}));
    return received.transpose(0, 1).reshape({x.size(0) / ranks, -1});
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& share = load_state<HeadShare>(context);
    const int64_t ranks = share.sequence->size();
    const at::Tensor sent = gradients[0].unflatten(1, {ranks, -1}).transpose(0, 1).contiguous();
    return {at::Tensor(), exchanged(*share.sequence, sent).flatten(0, 1)};
  }
};

// The batch with a document of padding at its end, on which nobody trains.
Batch padded(const Batch& batch, int64_t missing) {
  if (missing == 0) return batch;
  Batch longer = batch;
  longer.num_padding = missing;
  longer.ids = at::constant_pad_nd(batch.ids, {0, missing}, 0);
  longer.targets = at::constant_pad_nd(batch.targets, {0, missing}, kNotTrained);
  longer.positions = at::cat({batch.positions, at::arange(missing, batch.positions.options())});
  // No row of data has such keys.
  longer.token_keys =
      at::cat({batch.token_keys, at::arange(missing, batch.token_keys.options()).sub_(missing)});
  if (batch.token_types.defined()) {
    longer.token_types = at::constant_pad_nd(batch.token_types, {0, missing}, 0);
  }
  longer.offsets.push_back(batch.offsets.back() + missing);
  return longer;
}

// Those of the documents that have tokens in [begin, begin + count), from 0 on.
std::vector<int64_t> cut_offsets(const std::vector<int64_t>& offsets, int64_t begin,
                                 int64_t count) {
  std::vector<int64_t> cut{0};
  for (const int64_t offset : offsets) {
    const int64_t here = std::clamp<int64_t>(offset - begin, 0, count);
    if (here > cut.back()) cut.push_back(here);
  }
  return cut;
}

}  // namespace

Batch part_of(const Batch& whole, comm::Group& sequence) {
  const int64_t ranks = sequence.size();
  const int64_t count = (whole.num_tokens() + ranks - 1) / ranks;
  const int64_t begin = sequence.rank() * count;
  const auto all = std::make_shared<const Batch>(padded(whole, count * ranks - whole.num_tokens()));
  const auto cut = [&](const at::Tensor& x) { return x.narrow(0, begin, count); };
  Batch part;
  part.ids = cut(all->ids);
  part.targets = cut(all->targets);
  part.positions = cut(all->positions);
  part.token_keys = cut(all->token_keys);
  if (all->token_types.defined()) part.token_types = cut(all->token_types);
  part.offsets = cut_offsets(all->offsets, begin, count);
  part.num_padding = std::clamp<int64_t>(begin + count - whole.num_tokens(), 0, count);
  part.whole = all;
  part.sequence = &sequence;
  return part;
}

std::string head_share_error(int64_t num_heads, int64_t num_kv_heads, int64_t ranks) {
  const auto fits = [&](int64_t r) {
    return num_heads % r == 0 && (num_kv_heads % r == 0 || r % num_kv_heads == 0);
  };
  if (fits(ranks)) return "";
  std::vector<int64_t> possible;
  for (int64_t r = 1; r <= num_heads; ++r) {
    if (fits(r)) possible.push_back(r);
  }
  return fmt::format(
      "found {} ranks to share {} heads of queries and {} of keys and values, "
      "expected one of {}",
      ranks, num_heads, num_kv_heads, fmt::join(possible, ", "));
}

at::Tensor to_own_heads(const HeadShare& share, const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v) {
  return HeadsFunction::apply(share, q, k, v);
}

at::Tensor to_own_heads(const HeadShare& share, const at::Tensor& qkv, bool interleaved) {
  return FusedHeadsFunction::apply(FusedShare{share, interleaved}, qkv);
}

at::Tensor to_own_tokens(const HeadShare& share, const at::Tensor& x) {
  return TokensFunction::apply(share, x);
}

}  // namespace strata::nn
