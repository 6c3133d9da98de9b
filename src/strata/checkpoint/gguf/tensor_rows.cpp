#include "strata/checkpoint/gguf/tensor_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "strata/base/error.h"
#include "strata/base/float16.h"
#include "strata/base/vectorize.h"
#include "strata/hf/element.h"

namespace strata::checkpoint {
namespace {

// Number of values that are made at once.
constexpr int64_t kChunkElements = int64_t{1} << 18;

STRATA_VECTORIZED void widen_bf16(const uint16_t* from, float* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = bf16_to_float(from[i]);
}

// A weight's values at any place, as fp32.
class Source {
 public:
  Source(SavedState& state, size_t place)
      : state_(state), place_(place), type_(state.tensors()[place].dtype) {
    bytes_ = state.view(place);
    if (!bytes_.empty() || state.tensors()[place].size_bytes() == 0) return;
    copy_.resize(state.tensors()[place].size_bytes());
    state.read(place, copy_);
    bytes_ = copy_;
  }
  ~Source() { state_.forget(place_); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  void read(int64_t begin, std::span<float> out) {
    const size_t element = hf::size_of(type_);
    const std::byte* from = bytes_.data() + static_cast<size_t>(begin) * element;
    if (type_ == hf::DType::kF32) {
      std::memcpy(out.data(), from, out.size_bytes());
      return;
    }
    halves_.resize(out.size());  // the map may put them between two addresses of their type
    std::memcpy(halves_.data(), from, out.size() * element);
    if (type_ == hf::DType::kBF16) return widen_bf16(halves_.data(), out.data(), out.size());
    fp16_to_float(halves_, out);
  }

  float at(int64_t index) const {
    return hf::element_at(bytes_.data() + static_cast<size_t>(index) * hf::size_of(type_), type_);
  }

 private:
  SavedState& state_;
  size_t place_;
  hf::DType type_;
  std::span<const std::byte> bytes_;
  std::vector<std::byte> copy_;
  std::vector<uint16_t> halves_;
};

class RowMaker {
 public:
  RowMaker(SavedState& state, const PlannedTensor& planned,
           const std::function<void(std::span<const std::byte>)>& sink)
      : state_(state), planned_(planned), sink_(sink) {}

  void write_values() {
    values_ = planned_.values;
    encode();
  }

  void write_source(size_t place) {
    Source source(state_, place);
    const std::vector<int64_t>& shape = state_.tensors()[place].shape;
    const bool is_vector = shape.size() < 2;
    // A vector's elements are rows where they change places.
    int64_t rows = is_vector ? 1 : shape[0], columns = is_vector ? shape.at(0) : shape[1];
    if (is_vector && planned_.heads_in_pairs > 0) std::swap(rows, columns);
    if (planned_.is_transposed) std::swap(rows, columns);
    const int64_t at_once = std::max<int64_t>(1, kChunkElements / std::max<int64_t>(1, columns));
    for (int64_t begin = 0; begin < rows; begin += at_once) {
      const int64_t count = std::min(at_once, rows - begin);
      values_.resize(static_cast<size_t>(count * columns));
      fill(source, begin, rows, columns);
      if (planned_.added != 0) {
        for (float& value : values_) value += planned_.added;
      }
      encode();
    }
  }

 private:
  void fill(Source& source, int64_t begin, int64_t rows, int64_t columns) {
    const std::span<float> all(values_);
    if (planned_.is_transposed) {
      const auto count = static_cast<int64_t>(all.size()) / columns;
      for (int64_t column = 0; column < columns; ++column) {
        for (int64_t row = 0; row < count; ++row) {
          all[static_cast<size_t>(row * columns + column)] = source.at(column * rows + begin + row);
        }
      }
      return;
    }
    if (planned_.heads_in_pairs == 0) return source.read(begin * columns, all);
    const int64_t size = rows / planned_.heads_in_pairs;
    const auto width = static_cast<size_t>(columns);
    for (size_t row = 0; row * width < all.size(); ++row) {
      const int64_t from = row_before_pairs(begin + static_cast<int64_t>(row), size);
      source.read(from * columns, all.subspan(row * width, width));
    }
  }

  void encode() {
    const std::string source = state_.path().string();
    encode_values(planned_.tensor, values_, source, bytes_);
    sink_(bytes_);
  }

  SavedState& state_;
  const PlannedTensor& planned_;
  const std::function<void(std::span<const std::byte>)>& sink_;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
};

void require_halves(const hf::GgufTensor& tensor, std::span<const float> values,
                    const std::string& source) {
  constexpr float kEnd = 65520;  // rounds to infinity
  const auto found = std::ranges::find_if(
      values, [](float value) { return std::abs(value) >= kEnd && std::isfinite(value); });
  if (found == values.end()) return;
  throw FormatError(
      "{}: tensor \"{}\": found {}, expected numbers up to 65504, which float16 holds; "
      "use --dtype bfloat16 or float32",
      source, tensor.name, *found);
}

// Of eight bits the scale is a half: a 127th of the largest number of a block.
void require_scales(const hf::GgufTensor& tensor, std::span<const float> values,
                    const std::string& source) {
  constexpr float kEnd = 65520.0F * 127;
  const auto found =
      std::ranges::find_if(values, [](float value) { return !(std::abs(value) < kEnd); });
  if (found == values.end()) return;
  throw FormatError(
      "{}: tensor \"{}\": found {}, expected finite numbers up to 8320000, which q8_0 holds; use "
      "--dtype bfloat16 or float32",
      source, tensor.name, *found);
}

}  // namespace

int64_t row_before_pairs(int64_t row, int64_t size) {
  const int64_t in_head = row % size;
  return row - in_head + in_head % 2 * (size / 2) + in_head / 2;
}

void encode_values(const hf::GgufTensor& tensor, std::span<const float> values,
                   const std::string& source, std::vector<std::byte>& out) {
  if (tensor.type == hf::GgufType::kF16) require_halves(tensor, values, source);
  if (tensor.type == hf::GgufType::kQ8_0) require_scales(tensor, values, source);
  const hf::GgufBlock block = hf::gguf_block(tensor.type).value();
  out.resize(values.size() / block.elements * block.bytes);
  hf::encode_gguf(tensor.type, values, out);
}

void write_rows(SavedState& state, const PlannedTensor& planned,
                const std::function<void(std::span<const std::byte>)>& sink) {
  RowMaker maker(state, planned, sink);
  if (planned.sources.empty()) return maker.write_values();
  for (const size_t place : planned.sources) maker.write_source(place);
}

}  // namespace strata::checkpoint
