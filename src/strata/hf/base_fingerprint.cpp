#include "strata/hf/base_fingerprint.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include "strata/base/file.h"
#include "strata/base/float16.h"

namespace strata::hf {
namespace {

constexpr uint64_t kBlockElements = 512;
// Between a fingerprint and the format of codes.
constexpr std::string_view kAsCodes = " as ";

bool is_sampled(const std::string& name, const TensorInfo& info) {
  const bool is_floating =
      info.dtype == DType::kF32 || info.dtype == DType::kBF16 || info.dtype == DType::kF16;
  return is_floating && info.shape.size() >= 2 && name != "lm_head.weight";
}

float value_at(const std::byte* bytes, DType dtype) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return dtype == DType::kBF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

// Elements [begin, end) of a tensor as the bytes of floats.
std::string values_of(std::span<const std::byte> tensor, DType dtype, uint64_t begin,
                      uint64_t end) {
  std::string bytes;
  for (uint64_t i = begin; i < end; ++i) {
    const float value = value_at(tensor.data() + i * size_of(dtype), dtype);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return bytes;
}

}  // namespace

std::string base_fingerprint(const ModelFolder& folder) {
  if (folder.config().contains("quantization_config")) return "";
  std::string sampled;
  for (const std::string& name : folder.names()) {
    const TensorInfo& info = *folder.find(name);
    if (!is_sampled(name, info)) continue;
    sampled += fmt::format("{} [{}]\n", name, fmt::join(info.shape, ", "));
    const std::span<const std::byte> bytes = folder.bytes(info);
    const auto numel = static_cast<uint64_t>(info.numel());
    const uint64_t middle = numel / 2;
    sampled += values_of(bytes, info.dtype, 0, std::min(kBlockElements, numel));
    sampled += values_of(bytes, info.dtype, middle, std::min(middle + kBlockElements, numel));
    forget_pages(bytes);  // the kernel maps far more than was looked at
  }
  if (sampled.empty()) return "";
  return fmt::format("{:016x}", XXH3_64bits(sampled.data(), sampled.size()));
}

std::string fingerprint_of_codes(const std::string& fingerprint, const std::string& codes) {
  return fingerprint.empty() ? "" : fmt::format("{}{}{}", fingerprint, kAsCodes, codes);
}

std::string codes_of_fingerprint(const std::string& fingerprint) {
  const size_t at = fingerprint.find(kAsCodes);
  return at == std::string::npos ? "" : fingerprint.substr(at + kAsCodes.size());
}

std::string fingerprint_in(const ModelFolder& adapter) {
  for (const SafetensorsFile& file : adapter.files()) {
    const auto found = file.metadata().find(kBaseFingerprintKey);
    if (found != file.metadata().end()) return found->second;
  }
  return "";
}

}  // namespace strata::hf
