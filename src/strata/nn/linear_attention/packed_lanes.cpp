// Lanes in which documents follow one another without padding, so that many short ones cost no more
// than a long one.
#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

#include "strata/libtorch/host_copies.h"
#include "strata/nn/linear_attention/document_lanes.h"

namespace strata::nn {
namespace {

// Chunks of a lane follow each other in time: few, but enough to leave little of a lane empty.
constexpr int64_t kLeastChunks = 8;

struct Lane {
  int64_t used = 0;               // tokens
  std::vector<size_t> documents;  // in order
};

// Longest first, each into the emptiest lane. Requires: one lane, and as many tokens as lanes.
std::vector<Lane> fill_lanes(const std::vector<int64_t>& lengths, int64_t num_lanes) {
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t d) { return lengths[d]; });
  std::vector<Lane> lanes(static_cast<size_t>(num_lanes));
  for (const size_t d : order) {
    if (lengths[d] == 0) break;
    Lane& lane = *std::ranges::min_element(lanes, {}, &Lane::used);
    lane.used += lengths[d];
    lane.documents.push_back(d);
  }
  return lanes;
}

// Which document is at each place, int64 [lanes, chunks, chunk]; empty places go on with the last
// of their lane.
at::Tensor documents_at(const std::vector<Lane>& lanes, const std::vector<int64_t>& lengths,
                        const DocumentLanes& shape) {
  at::Tensor documents =
      at::empty({shape.num_lanes, shape.num_chunks * shape.chunk_size}, at::kLong);
  for (size_t l = 0; l < lanes.size(); ++l) {
    int64_t* place = documents[static_cast<int64_t>(l)].data_ptr<int64_t>();
    int64_t* const end = place + documents.size(1);
    for (const size_t d : lanes[l].documents) {
      place = std::fill_n(place, lengths[d], static_cast<int64_t>(d));
    }
    std::fill(place, end, static_cast<int64_t>(lanes[l].documents.back()));
  }
  return documents.view({shape.num_lanes, shape.num_chunks, shape.chunk_size});
}

// Of the place before each chunk, [lanes, chunks, 1]; of a lane's first chunk its own first.
at::Tensor documents_before(const at::Tensor& documents) {
  const at::Tensor firsts = documents.narrow(1, 0, 1).narrow(2, 0, 1);
  const at::Tensor lasts =
      documents.narrow(1, 0, documents.size(1) - 1).narrow(2, documents.size(2) - 1, 1);
  return at::cat({firsts, lasts}, 1);
}

}  // namespace

DocumentLanes make_packed_lanes(const std::vector<int64_t>& offsets, at::Device device) {
  const int64_t num_tokens = offsets.empty() ? 0 : offsets.back();
  std::vector<int64_t> lengths;
  for (size_t d = 1; d < offsets.size(); ++d) lengths.push_back(offsets[d] - offsets[d - 1]);
  if (num_tokens == 0) return make_lanes(offsets, device);
  const int64_t size = chunk_size_for(num_tokens);
  const int64_t least = std::max(std::ranges::max(lengths), kLeastChunks * size);
  const std::vector<Lane> lanes = fill_lanes(lengths, std::max<int64_t>(num_tokens / least, 1));

  DocumentLanes result{.num_lanes = std::ssize(lanes), .num_chunks = 0, .chunk_size = size};
  for (const Lane& lane : lanes) {
    result.num_chunks = std::max(result.num_chunks, (lane.used + size - 1) / size);
  }
  at::Tensor source = at::full({result.num_places()}, num_tokens, at::kLong);
  at::Tensor place = at::empty({num_tokens}, at::kLong);
  for (size_t l = 0; l < lanes.size(); ++l) {
    int64_t at_place = static_cast<int64_t>(l) * result.num_chunks * size;
    for (const size_t d : lanes[l].documents) {
      for (int64_t i = 0; i < lengths[d]; ++i, ++at_place) {
        source.data_ptr<int64_t>()[at_place] = offsets[d] + i;
        place.data_ptr<int64_t>()[offsets[d] + i] = at_place;
      }
    }
  }
  result.source = to_device(source, device);
  result.place = to_device(place, device);
  result.keeps = to_device(at::ones({result.num_lanes, result.num_chunks}, at::kFloat), device);
  const auto is_shared = [](const Lane& lane) { return lane.documents.size() > 1; };
  if (std::ranges::none_of(lanes, is_shared)) return result;
  const at::Tensor documents = documents_at(lanes, lengths, result);
  const at::Tensor goes_on = documents.eq(documents_before(documents)).flatten(0, 1);
  const at::Tensor by_chunk = documents.flatten(0, 1);
  result.is_same = to_device(by_chunk.unsqueeze(2).eq(by_chunk.unsqueeze(1)), device);
  result.goes_on = to_device(goes_on, device);
  return result;
}

}  // namespace strata::nn
