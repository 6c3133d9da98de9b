// Positions that are waves of many lengths in place of rows that are learned. Owns: those rows.
// Never: which position a token has.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace strata::models {

// fp32 [T, width] for int64 positions [T]: the sines, then the cosines, of position / 10000^e. In
// M2M-100 e runs from 0 to 1, both counted, and a last column of 0 makes an odd width; in Marian
// and Pegasus e is 2 * i / width of the i-th pair of columns, and of an odd width the last sine has
// no cosine.
at::Tensor m2m_100_sinusoids(const at::Tensor& positions, int64_t width);
at::Tensor marian_sinusoids(const at::Tensor& positions, int64_t width);

}  // namespace strata::models
