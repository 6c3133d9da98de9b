#include "strata/hf/base_fingerprint.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include "strata/base/file.h"
#include "strata/base/float16.h"
#include "strata/hf/bitsandbytes.h"

namespace strata::hf {
namespace {

constexpr uint64_t kBlockElements = 512;
// Between a fingerprint and what is said of codes.
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

// Calls `take` with the bytes of a block at the beginning and of one in the middle.
template <typename Take>
void sample(const ModelFolder& folder, const TensorInfo& info, const Take& take) {
  const std::span<const std::byte> bytes = folder.bytes(info);
  const auto numel = static_cast<uint64_t>(info.numel());
  const uint64_t size = size_of(info.dtype);
  for (const uint64_t begin : {uint64_t{0}, numel / 2}) {
    const uint64_t count = std::min(kBlockElements, numel - begin);
    take(bytes.subspan(begin * size, count * size));
  }
  forget_pages(bytes);  // the kernel maps far more than was looked at
}

void append_values(const ModelFolder& folder, const TensorInfo& info, std::vector<float>& values) {
  sample(folder, info, [&](std::span<const std::byte> block) {
    for (size_t i = 0; i < block.size(); i += size_of(info.dtype)) {
      values.push_back(value_at(block.data() + i, info.dtype));
    }
  });
}

std::string heading(const std::string& name, const TensorInfo& info) {
  return fmt::format("{} [{}]\n", name, fmt::join(info.shape, ", "));
}

std::string sampled_weights(const ModelFolder& folder) {
  std::string sampled;
  for (const std::string& name : folder.names()) {
    const TensorInfo& info = *folder.find(name);
    if (!is_sampled(name, info)) continue;
    sampled += heading(name, info);
    std::vector<float> values;
    append_values(folder, info, values);
    sampled.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
  return sampled;
}

std::string sampled_codes(const ModelFolder& folder) {
  std::string sampled;
  for (const std::string& name : folder.names()) {
    const TensorInfo& info = *folder.find(name);
    sampled += heading(name, info);
    sample(folder, info, [&](std::span<const std::byte> block) {
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
  for (const std::string& name : folder.names()) {
    const TensorInfo& info = *folder.find(name);
    if (is_sampled(name, info)) append_values(folder, info, values);
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
