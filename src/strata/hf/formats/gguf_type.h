// Element types of GGUF tensors and their encoding. Owns: names, sizes of blocks, rounding. Never:
// files. Source: ggml.h, and the arithmetic of gguf.quants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace strata::hf {

// The numbers are the format's. The types that this program writes; others are read as numbers.
enum class GgufType : uint32_t { kF32 = 0, kF16 = 1, kQ8_0 = 8, kBF16 = 30 };

// Elements that share a block, and its bytes. A row is a whole number of blocks.
struct GgufBlock {
  uint64_t elements;
  uint64_t bytes;
};
// Nothing for a number that is no type of a tensor.
std::optional<GgufBlock> gguf_block(GgufType type);
// "F32", "Q8_0", "Q4_K", ...; the number where it has no name here.
std::string gguf_type_name(GgufType type);

inline constexpr size_t kQ8Elements = 32;

// Appends nothing, overwrites `out`: the row's bytes in the type, rounded to nearest even; of Q8_0
// blocks of 32 with a scale in fp16, codes rounded to nearest with halves away from zero.
// Requires: a type that is written, values of whole blocks, and out of their size.
void encode_gguf(GgufType type, std::span<const float> values, std::span<std::byte> out);

}  // namespace strata::hf
