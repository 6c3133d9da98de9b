#include "strata/checkpoint/state_pieces.h"

#include <cstring>
#include <utility>

namespace strata::checkpoint {
namespace {

at::Tensor host_memory_like(const at::Tensor& data) {
  const bool pinned = !data.is_cpu();
  return at::empty({data.numel()},
                   at::TensorOptions().dtype(data.scalar_type()).pinned_memory(pinned));
}

}  // namespace

std::vector<LocalPiece> local_pieces(shard::UnitStore& store, optim::Optimizer* optimizer) {
  const int rank = store.mesh().shard->rank();
  std::vector<LocalPiece> pieces;
  for (int u = 0; u < store.num_units(); ++u) {
    const auto& segments = store.unit(u).segments;
    for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
      if (!segments[static_cast<size_t>(s)].trainable) continue;
      for (const shard::Piece& piece : shard::pieces_of(segments[static_cast<size_t>(s)], rank)) {
        pieces.push_back({"parameter/" + piece.parameter->name(), piece.parameter->shape(),
                          piece.tensor_begin,
                          store.home(u, s).value.narrow(0, piece.shard_begin, piece.length)});
      }
    }
  }
  if (optimizer == nullptr) return pieces;
  for (optim::StateTensor& state : optimizer->state()) {
    pieces.push_back({state.name + "/" + state.parameter->name(), std::move(state.shape),
                      state.begin, std::move(state.data)});
  }
  return pieces;
}

uint64_t size_bytes(const std::vector<LocalPiece>& pieces) {
  uint64_t total = 0;
  for (const LocalPiece& piece : pieces) total += piece.data.nbytes();
  return total;
}

std::vector<LocalPiece> snapshot_memory(const std::vector<LocalPiece>& pieces) {
  std::vector<LocalPiece> copies = pieces;
  for (LocalPiece& copy : copies) {
    copy.data = host_memory_like(copy.data);
    std::memset(copy.data.mutable_data_ptr(), 0, copy.data.nbytes());
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
  }
  return copies;
}

}  // namespace strata::checkpoint
