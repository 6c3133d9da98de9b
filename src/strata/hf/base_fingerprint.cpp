#include "strata/hf/base_fingerprint.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include "strata/base/file.h"
#include "strata/base/float16.h"
#include "strata/hf/bitsandbytes.h"
#include "strata/hf/element.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_values.h"

namespace strata::hf {
namespace {

constexpr uint64_t kBlockElements = 512;
// Between a fingerprint and what is said of codes.
constexpr std::string_view kAsCodes = " as ";

// A matrix that goes into the mark.
struct Matrix {
  std::string name;
  std::vector<int64_t> shape;
  const TensorInfo* info;  // of integers their codes
  std::optional<Fp8Weight> fp8;
  std::optional<IntWeight> ints;
};

std::vector<Matrix> sampled_matrices(const ModelFolder& folder) {
  const std::vector<std::string> listed = fp8_scales(folder);
  const std::set<std::string_view> scales(listed.begin(), listed.end());
  std::vector<Matrix> matrices;
  for (const std::string& name : names_of_copy(folder)) {
    if (name == "lm_head.weight" || scales.contains(name)) continue;
    if (auto ints = find_readable_ints(folder, name)) {
      matrices.push_back({name, ints->dims(), ints->codes, std::nullopt, ints});
      continue;
    }
    const TensorInfo& info = *folder.find(name);
    if (info.shape.size() < 2) continue;
    auto fp8 = find_readable_fp8(folder, name);
    const bool is_plain =
        info.dtype == DType::kF32 || info.dtype == DType::kBF16 || info.dtype == DType::kF16;
    if (is_plain || fp8) matrices.push_back({name, info.shape, &info, std::move(fp8), {}});
  }
  return matrices;
}

// Calls `take` with the first element and the number of a block at the beginning and of one in the
// middle.
template <typename Take>
void sample(const ModelFolder& folder, const TensorInfo& info, int64_t count, const Take& take) {
  const auto numel = static_cast<uint64_t>(count);
  for (const uint64_t begin : {uint64_t{0}, numel / 2}) {
    take(begin, std::min(kBlockElements, numel - begin));
  }
  forget_pages(folder.bytes(info));  // the kernel maps far more than was looked at
}

// The type of a copy of weights in fp8: what config.json names; else bfloat16.
DType type_of_copy(const ModelFolder& folder) {
  const Json& config = folder.config();
  const Json named = config.value("dtype", config.value("torch_dtype", Json()));
  if (!named.is_string()) return DType::kBF16;
  const std::string name = named.get<std::string>();
  if (name.ends_with("float16") && !name.ends_with("bfloat16")) return DType::kF16;
  return name.ends_with("float32") ? DType::kF32 : DType::kBF16;
}

float rounded(float value, DType type) {
  if (type == DType::kF32) return value;
  return type == DType::kF16 ? fp16_to_float(float_to_fp16(value))
                             : bf16_to_float(float_to_bf16(value));
}

std::vector<float> decoded_values(const ModelFolder& folder, const Matrix& matrix, DType type,
                                  uint64_t begin, uint64_t count) {
  std::vector<float> values(count);
  if (matrix.ints) {
    IntValues(folder, *matrix.ints).read(static_cast<int64_t>(begin), values);
  } else {
    read_fp8(folder, *matrix.fp8, static_cast<int64_t>(begin), values);
    for (float& value : values) value = rounded(value, type);
  }
  return values;
}

// Those of fp8 as a copy of that type has them.
void append_values(const ModelFolder& folder, const Matrix& matrix, DType type,
                   std::vector<float>& values) {
  const std::byte* bytes = folder.bytes(*matrix.info).data();
  const DType dtype = matrix.info->dtype;
  const int64_t numel =
      matrix.ints ? matrix.ints->rows * matrix.ints->columns : matrix.info->numel();
  sample(folder, *matrix.info, numel, [&](uint64_t begin, uint64_t count) {
    if (matrix.fp8 || matrix.ints) {
      const std::vector<float> found = decoded_values(folder, matrix, type, begin, count);
      values.insert(values.end(), found.begin(), found.end());
      return;
    }
    for (uint64_t i = begin; i < begin + count; ++i) {
      values.push_back(element_at(bytes + i * size_of(dtype), dtype));
    }
  });
}

std::string heading(const std::string& name, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]\n", name, fmt::join(shape, ", "));
}

std::string sampled_weights(const ModelFolder& folder) {
  std::string sampled;
  for (const Matrix& matrix : sampled_matrices(folder)) {
    sampled += heading(matrix.name, matrix.shape);
    std::vector<float> values;
    append_values(folder, matrix, type_of_copy(folder), values);
    sampled.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
  return sampled;
}

std::string sampled_codes(const ModelFolder& folder) {
  std::string sampled;
  for (const std::string& name : folder.names()) {
    const TensorInfo& info = *folder.find(name);
    sampled += heading(name, info.shape);
    const std::span<const std::byte> bytes = folder.bytes(info);
    const uint64_t size = size_of(info.dtype);
    sample(folder, info, info.numel(), [&](uint64_t begin, uint64_t count) {
      const auto block = bytes.subspan(begin * size, count * size);
      sampled.append(reinterpret_cast<const char*>(block.data()), block.size());
    });
  }
  return sampled;
}

}  // namespace

std::string base_fingerprint(const ModelFolder& folder) {
  const bool holds_codes = announces_codes(folder.config());
  const std::string sampled = holds_codes ? sampled_codes(folder) : sampled_weights(folder);
  if (sampled.empty()) return "";
  return fmt::format("{:016x}", XXH3_64bits(sampled.data(), sampled.size()));
}

std::vector<float> sampled_values(const ModelFolder& folder) {
  std::vector<float> values;
  for (const Matrix& matrix : sampled_matrices(folder)) {
    append_values(folder, matrix, DType::kF32, values);
  }
  return values;
}

std::string BaseMark::text() const {
  return codes.empty() ? fingerprint : fmt::format("{}{}{}", fingerprint, kAsCodes, codes);
}

BaseMark parse_base_mark(const std::string& text) {
  const size_t at = text.find(kAsCodes);
  if (at == std::string::npos) return {.fingerprint = text, .codes = {}};
  return {.fingerprint = text.substr(0, at), .codes = text.substr(at + kAsCodes.size())};
}

std::string fingerprint_in(const ModelFolder& folder) {
  for (const SafetensorsFile& file : folder.files()) {
    const auto found = file.metadata().find(kBaseFingerprintKey);
    if (found != file.metadata().end()) return found->second;
  }
  return "";
}

}  // namespace strata::hf
