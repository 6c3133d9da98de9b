#include "strata/checkpoint/state_pieces.h"

#include <cstring>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "strata/checkpoint/finite_values.h"
#include "strata/checkpoint/piece_file.h"
#include "strata/hf/adapter_files.h"
#include "strata/libtorch/cuda_build.h"
#include "strata/libtorch/memory_kind.h"
#include "strata/shard/loading.h"
#include "strata/shard/pinned_memory.h"
#include "strata/shard/segments.h"

namespace strata::checkpoint {
namespace {

at::Tensor host_memory_like(const at::Tensor& data) {
  const MemoryScope scope(MemoryKind::kSnapshot);
  const auto options = at::TensorOptions().dtype(data.scalar_type());
  if (data.is_meta()) return at::empty({data.numel()}, options.device(at::kMeta));
  if constexpr (kHasCuda) {
    if (data.is_cuda()) {
      at::Tensor locked = shard::pinned_zeros_if_possible(data.numel(), data.scalar_type());
      if (locked.defined()) return locked;
    }
  }
  return at::empty({data.numel()}, options);
}

LocalPiece weights_of(shard::UnitStore& store, const shard::OwnPiece& own,
                      const std::string& name) {
  return {name, own.piece.parameter->shape(), own.piece.tensor_begin, shard::value_of(store, own),
          store.home(own.unit, own.segment).region.has_value()};
}

}  // namespace

std::vector<LocalPiece> local_pieces(shard::UnitStore& store, optim::Optimizer* optimizer) {
  std::vector<LocalPiece> pieces;
  for (const shard::OwnPiece& own : shard::own_trained_pieces(store)) {
    pieces.push_back(weights_of(store, own, "parameter/" + own.piece.parameter->name()));
  }
  if (optimizer == nullptr) return pieces;
  for (optim::StateTensor& state : optimizer->state()) {
    pieces.push_back({state.name + "/" + state.parameter->name(), std::move(state.shape),
                      state.begin, std::move(state.data), state.rests_in_file});
  }
  return pieces;
}

std::vector<LocalPiece> frozen_pieces(shard::UnitStore& store, const FrozenWeights& weights) {
  std::vector<LocalPiece> pieces;
  if (weights.empty()) return pieces;
  for (const shard::OwnPiece& own : shard::own_pieces(store)) {
    const auto found = weights.find(own.piece.parameter);
    if (found == weights.end()) continue;
    for (const std::string& key : found->second) {
      pieces.push_back(weights_of(store, own, fmt::format("{}/{}", kFrozen, key)));
    }
  }
  return pieces;
}

std::vector<at::Tensor> projection_weights(shard::UnitStore& store,
                                           const adapters::LoraAdapter& adapter) {
  std::vector<at::Tensor> weights;
  for (const nn::Parameter* parameter : adapter.inner_parameters()) {
    weights.push_back(shard::read_tensor(store, *parameter));
  }
  return weights;
}

std::vector<LocalPiece> projected_prefix(shard::UnitStore& store,
                                         const std::vector<at::Tensor>& weights) {
  if (weights.empty() || store.mesh().shard->rank() != 0) return {};
  const at::Tensor rows = nn::PrefixProjection::rows_of(weights).cpu();
  return {{fmt::format("{}/{}", kFrozen, hf::kPromptKey), rows.sizes().vec(), 0,
           rows.contiguous().view({-1})}};
}

std::vector<std::string> not_finite(const std::vector<LocalPiece>& pieces) {
  constexpr std::string_view kWeight = "parameter/";
  std::vector<std::string> names;
  for (const LocalPiece& piece : pieces) {
    if (!piece.tensor.starts_with(kWeight)) continue;
    // Pages of a file that were looked at would go on counting as this process's memory.
    const bool is_good = piece.rests_in_file
                             ? is_finite(flat_bytes(piece.data), piece.data.scalar_type())
                             : is_finite(piece.data);
    if (is_good) continue;
    names.push_back(piece.tensor.substr(kWeight.size()));
  }
  return names;
}

uint64_t size_bytes(const std::vector<LocalPiece>& pieces) {
  uint64_t total = 0;
  for (const LocalPiece& piece : pieces) total += piece.data.nbytes();
  return total;
}

std::vector<LocalPiece> snapshot_memory(const std::vector<LocalPiece>& pieces) {
  std::vector<LocalPiece> copies = pieces;
  for (LocalPiece& copy : copies) {
    copy.rests_in_file = false;
    copy.data = host_memory_like(copy.data);
    if (!copy.data.is_meta()) std::memset(copy.data.mutable_data_ptr(), 0, copy.data.nbytes());
  }
  return copies;
}

std::vector<LocalPiece> snapshot(const std::vector<LocalPiece>& pieces,
                                 std::vector<LocalPiece> reused) {
  std::vector<LocalPiece> copies = pieces;
  for (size_t i = 0; i < copies.size(); ++i) {
    at::Tensor& data = copies[i].data;
    const bool fits = i < reused.size() && reused[i].data.numel() == data.numel() &&
                      reused[i].data.scalar_type() == data.scalar_type();
    at::Tensor host = fits ? reused[i].data : host_memory_like(data);
    host.copy_(data);
    data = host;
    copies[i].rests_in_file = false;
  }
  return copies;
}

}  // namespace strata::checkpoint
