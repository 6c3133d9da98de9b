#include "strata/nn/linear_attention/document_lanes.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

#include "strata/libtorch/host_copies.h"
#include "strata/libtorch/planned_device.h"
#include "strata/nn/chosen_rows.h"

namespace strata::nn {
namespace {

constexpr int64_t kMaxChunk = 64;

struct Lane {
  int64_t used = 0;               // chunks
  std::vector<size_t> documents;  // in order
};

std::vector<Lane> fill_lanes(const std::vector<int64_t>& chunks) {
  std::vector<size_t> order(chunks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t d) { return chunks[d]; });
  const int64_t room = chunks.empty() ? 0 : chunks[order.front()];
  std::vector<Lane> lanes;
  for (const size_t d : order) {
    const auto fits = [&](const Lane& lane) { return lane.used + chunks[d] <= room; };
    auto lane = std::ranges::find_if(lanes, fits);
    if (lane == lanes.end()) lane = lanes.insert(lanes.end(), Lane{});
    lane->used += chunks[d];
    lane->documents.push_back(d);
  }
  return lanes;
}

}  // namespace

int64_t chunk_size_for(int64_t most_tokens) {
  int64_t size = 1;
  while (size < kMaxChunk && size < most_tokens) size *= 2;
  return size;
}

DocumentLanes make_lanes(const std::vector<int64_t>& offsets, at::Device device) {
  std::vector<int64_t> lengths;
  for (size_t d = 1; d < offsets.size(); ++d) lengths.push_back(offsets[d] - offsets[d - 1]);
  const int64_t size = chunk_size_for(lengths.empty() ? 1 : std::ranges::max(lengths));
  std::vector<int64_t> chunks;
  for (const int64_t length : lengths) chunks.push_back((length + size - 1) / size);
  const std::vector<Lane> lanes = fill_lanes(chunks);

  DocumentLanes result{.num_lanes = std::ssize(lanes), .num_chunks = 0, .chunk_size = size};
  for (const Lane& lane : lanes) result.num_chunks = std::max(result.num_chunks, lane.used);
  const int64_t num_tokens = offsets.empty() ? 0 : offsets.back();
  at::Tensor source = at::full({result.num_places()}, num_tokens, at::kLong);
  at::Tensor place = at::empty({num_tokens}, at::kLong);
  at::Tensor keeps = at::ones({result.num_lanes, result.num_chunks}, at::kFloat);
  for (size_t l = 0; l < lanes.size(); ++l) {
    int64_t chunk = static_cast<int64_t>(l) * result.num_chunks;
    for (const size_t d : lanes[l].documents) {
      if (lengths[d] == 0) continue;
      keeps.data_ptr<float>()[chunk] = 0;
      for (int64_t i = 0; i < lengths[d]; ++i) {
        source.data_ptr<int64_t>()[chunk * size + i] = offsets[d] + i;
        place.data_ptr<int64_t>()[offsets[d] + i] = chunk * size + i;
      }
      chunk += chunks[d];
    }
  }
  result.source = to_device(source, device);
  result.place = to_device(place, device);
  result.keeps = to_device(keeps, device);
  return result;
}

at::Tensor in_lanes(const at::Tensor& x, const DocumentLanes& lanes) {
  std::vector<int64_t> padding(2 * static_cast<size_t>(x.dim()), 0);
  padding.back() = 1;  // a row of zeros after the last
  const at::Tensor rows = at::constant_pad_nd(x.to(at::kFloat), padding);
  std::vector<int64_t> sizes{lanes.num_lanes, lanes.num_chunks, lanes.chunk_size};
  sizes.insert(sizes.end(), x.sizes().begin() + 1, x.sizes().end());
  return chosen_rows(rows, lanes.source).view(sizes);
}

const DocumentLanes& LaneTable::of(const Batch& batch) {
  if (batch.positions.is_same(positions_) && batch.positions._version() == positions_version_) {
    return lanes_;
  }
  lanes_ = {};
  const at::Device device = batch.positions.device();
  const bool is_packed = kind_ == Kind::kPacked && is_for_cuda(device);
  lanes_ = (is_packed ? make_packed_lanes : make_lanes)(batch.offsets, device);
  positions_ = batch.positions;
  positions_version_ = batch.positions._version();
  return lanes_;
}

}  // namespace strata::nn
