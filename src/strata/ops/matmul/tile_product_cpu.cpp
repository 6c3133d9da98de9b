// Block products of bf16 pairs in the tiles of Intel's matrix unit (AMX; Intel 64 and IA-32
// Architectures Software Developer's Manual, volume 1, chapter 18). Owns: the instructions. Never:
// the order of the tiles, packing.
#include "strata/ops/instruction_set.h"
#include "strata/ops/matmul/block_product.h"

#if defined(STRATA_X86_KERNELS) && defined(__linux__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cstdint>

#include "strata/ops/vectorize.h"

#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16")

namespace strata::ops::cpu {
namespace {

constexpr int64_t kColumnsOfTile = 16;

// What the unit is told of its eight tiles: the layout is the processor's.
struct alignas(64) Configuration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(Configuration) == 64);

// Tiles 0 to 3 hold c, 4 and 5 rows of a, 6 and 7 columns of b: each tile that is read is
// multiplied twice.
template <int kRowTiles, int kColumnTiles>
STRATA_INLINE void multiply_tiles(const BlockProduct& p) {
  const auto c_stride = static_cast<size_t>(p.c_stride) * sizeof(float);
  float* const below = p.c + kRowsOfTile * p.c_stride;
  if (p.add) {
    _tile_loadd(0, p.c, c_stride);
    if constexpr (kColumnTiles == 2) _tile_loadd(1, p.c + kColumnsOfTile, c_stride);
    if constexpr (kRowTiles == 2) _tile_loadd(2, below, c_stride);
    if constexpr (kRowTiles * kColumnTiles == 4) _tile_loadd(3, below + kColumnsOfTile, c_stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const auto a_stride = static_cast<size_t>(p.a_row_stride) * sizeof(float);
  const auto b_stride = static_cast<size_t>(p.b_stride) * sizeof(float);
  const float* a = p.a;
  const float* b = p.b;
  for (int64_t lane = 0; lane < p.inner; lane += kLanesOfTile) {
    _tile_loadd(4, a, a_stride);
    _tile_loadd(6, b, b_stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kColumnTiles == 2) {
      _tile_loadd(7, b + kColumnsOfTile, b_stride);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRowTiles == 2) {
      _tile_loadd(5, a + kRowsOfTile * p.a_row_stride, a_stride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kColumnTiles == 2) _tile_dpbf16ps(3, 5, 7);
    }
    a += p.a_inner_stride;
    b += kLanesOfTile * p.b_stride;
  }
  _tile_stored(0, p.c, c_stride);
  if constexpr (kColumnTiles == 2) _tile_stored(1, p.c + kColumnsOfTile, c_stride);
  if constexpr (kRowTiles == 2) _tile_stored(2, below, c_stride);
  if constexpr (kRowTiles * kColumnTiles == 4) _tile_stored(3, below + kColumnsOfTile, c_stride);
}

}  // namespace

void tile_product(const BlockProduct& p) {
  // gcc's loads of tiles do not say that they read memory.
  asm volatile("" : : : "memory");
  if (p.rows > kRowsOfTile) {
    p.columns > kColumnsOfTile ? multiply_tiles<2, 2>(p) : multiply_tiles<2, 1>(p);
  } else {
    p.columns > kColumnsOfTile ? multiply_tiles<1, 2>(p) : multiply_tiles<1, 1>(p);
  }
}

// Constructors do not get the target of the pragma.
static void configure_tiles() {
  static constexpr Configuration kConfiguration;
  _tile_loadconfig(&kConfiguration);
}
static void release_tiles() { _tile_release(); }

}  // namespace strata::ops::cpu
#pragma GCC pop_options

namespace strata::ops::cpu {

TileScope::TileScope(bool uses_tiles) : uses_tiles_(uses_tiles) {
  if (uses_tiles_) configure_tiles();
}
TileScope::~TileScope() {
  if (uses_tiles_) release_tiles();
}

namespace {

// Linux gives a process the tile registers when it asks for them
// (Documentation/arch/x86/xstate.rst); a container's filter or an old kernel may say no.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Small numbers, whose products and sums are exact.
constexpr int kSize = 16;
constexpr int left(int row, int k) { return row % 7 - 3 + k % 3; }
constexpr int right(int k, int column) { return column % 5 - k % 4; }

float pair_of(int first, int second) {
  const auto bits = [](int value) { return std::bit_cast<uint32_t>(static_cast<float>(value)); };
  return std::bit_cast<float>(bits(first) >> 16 | bits(second));
}

}  // namespace

bool tile_product_is_right() {
  const TileScope tiles(/*uses_tiles=*/true);
  float a[kSize * kSize], b[kSize * kSize], c[kSize * kSize];
  for (int i = 0; i < kSize; ++i) {
    for (int pair = 0; pair < kSize; ++pair) {
      a[i * kSize + pair] = pair_of(left(i, 2 * pair), left(i, 2 * pair + 1));
      b[pair * kSize + i] = pair_of(right(2 * pair, i), right(2 * pair + 1, i));
    }
  }
  tile_product({.rows = kSize,
                .columns = kSize,
                .inner = kSize,
                .a = a,
                .a_row_stride = kSize,
                .a_inner_stride = kSize * kSize,
                .b = b,
                .b_stride = kSize,
                .c = c,
                .c_stride = kSize});
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) {
      int sum = 0;
      for (int k = 0; k < 2 * kSize; ++k) sum += left(i, k) * right(k, j);
      if (c[i * kSize + j] != static_cast<float>(sum)) return false;
    }
  }
  return true;
}

bool has_tile_product() {
  static const bool has = has_pair_product() && __builtin_cpu_supports("amx-tile") != 0 &&
                          __builtin_cpu_supports("amx-bf16") != 0 && may_use_tiles() &&
                          tile_product_is_right();
  return has;
}

}  // namespace strata::ops::cpu

#else

#include "strata/base/error.h"

namespace strata::ops::cpu {

bool has_tile_product() { return false; }
bool tile_product_is_right() { return false; }

void tile_product(const BlockProduct&) {
  throw InternalError("tile_product: found a processor without it; report this as a bug");
}

TileScope::TileScope(bool uses_tiles) : uses_tiles_(uses_tiles) {}
TileScope::~TileScope() = default;

}  // namespace strata::ops::cpu

#endif
