#include "strata/hf/formats/gguf_type.h"

#include <array>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/float16.h"
#include "strata/base/vectorize.h"

namespace strata::hf {
namespace {

struct TypeRow {
  uint32_t number;
  const char* name;
  GgufBlock block;
};

// ggml's table of types; numbers that are missing were given up.
constexpr TypeRow kTypes[] = {
    {0, "F32", {1, 4}},         {1, "F16", {1, 2}},         {2, "Q4_0", {32, 18}},
    {3, "Q4_1", {32, 20}},      {6, "Q5_0", {32, 22}},      {7, "Q5_1", {32, 24}},
    {8, "Q8_0", {32, 34}},      {9, "Q8_1", {32, 36}},      {10, "Q2_K", {256, 84}},
    {11, "Q3_K", {256, 110}},   {12, "Q4_K", {256, 144}},   {13, "Q5_K", {256, 176}},
    {14, "Q6_K", {256, 210}},   {15, "Q8_K", {256, 292}},   {16, "IQ2_XXS", {256, 66}},
    {17, "IQ2_XS", {256, 74}},  {18, "IQ3_XXS", {256, 98}}, {19, "IQ1_S", {256, 50}},
    {20, "IQ4_NL", {32, 18}},   {21, "IQ3_S", {256, 110}},  {22, "IQ2_S", {256, 82}},
    {23, "IQ4_XS", {256, 136}}, {24, "I8", {1, 1}},         {25, "I16", {1, 2}},
    {26, "I32", {1, 4}},        {27, "I64", {1, 8}},        {28, "F64", {1, 8}},
    {29, "IQ1_M", {256, 56}},   {30, "BF16", {1, 2}},       {34, "TQ1_0", {256, 54}},
    {35, "TQ2_0", {256, 66}},   {39, "MXFP4", {32, 17}},
};

const TypeRow* find_type(GgufType type) {
  for (const TypeRow& row : kTypes) {
    if (row.number == static_cast<uint32_t>(type)) return &row;
  }
  return nullptr;
}

STRATA_VECTORIZED void encode_bf16(const float* values, uint16_t* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = float_to_bf16(values[i]);
}

void encode_f16(const float* values, uint16_t* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = float_to_fp16(values[i]);
}

// Halves away from zero, as C's roundf, in operations that wide registers have.
STRATA_INLINE float rounded(float value) {
  const float magnitude = std::fabs(value);
  const float whole = std::trunc(magnitude);
  const float up = magnitude - whole >= 0.5F ? whole + 1.0F : whole;
  return std::copysign(up, value);
}

STRATA_VECTORIZED float largest_magnitude(const float* values) {
  float largest = 0;
  for (size_t i = 0; i < kQ8Elements; ++i) {
    const float magnitude = std::fabs(values[i]);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

STRATA_VECTORIZED void encode_codes(const float* values, float inverse, int8_t* codes) {
  for (size_t i = 0; i < kQ8Elements; ++i) {
    codes[i] = static_cast<int8_t>(rounded(values[i] * inverse));
  }
}

void encode_q8_0(std::span<const float> values, std::byte* out) {
  std::array<int8_t, kQ8Elements> codes{};
  for (size_t begin = 0; begin < values.size(); begin += kQ8Elements) {
    const float* block = values.data() + begin;
    const float scale = largest_magnitude(block) / 127.0F;
    encode_codes(block, scale == 0 ? 0 : 1.0F / scale, codes.data());
    const uint16_t half = float_to_fp16(scale);
    std::memcpy(out, &half, sizeof(half));
    std::memcpy(out + sizeof(half), codes.data(), codes.size());
    out += sizeof(half) + codes.size();
  }
}

}  // namespace

std::optional<GgufBlock> gguf_block(GgufType type) {
  const TypeRow* row = find_type(type);
  return row == nullptr ? std::nullopt : std::optional(row->block);
}

std::string gguf_type_name(GgufType type) {
  const TypeRow* row = find_type(type);
  return row == nullptr ? fmt::format("type {}", static_cast<uint32_t>(type)) : row->name;
}

void encode_gguf(GgufType type, std::span<const float> values, std::span<std::byte> out) {
  switch (type) {
    case GgufType::kF32:
      std::memcpy(out.data(), values.data(), values.size_bytes());
      return;
    case GgufType::kF16:
      return encode_f16(values.data(), reinterpret_cast<uint16_t*>(out.data()), values.size());
    case GgufType::kBF16:
      return encode_bf16(values.data(), reinterpret_cast<uint16_t*>(out.data()), values.size());
    case GgufType::kQ8_0:
      return encode_q8_0(values, out.data());
  }
  throw InternalError("GGUF: found {} to be encoded, expected F32, F16, BF16 or Q8_0",
                      gguf_type_name(type));
}

}  // namespace strata::hf
