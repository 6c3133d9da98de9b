// Block products through the BLAS that libtorch carries. Never: threads.
#include "strata/ops/block_product.h"

extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc);
}

namespace strata::ops::cpu {

void block_product(const ProductShape& shape, Factor a, Factor b, bool add, float* c,
                   int64_t c_stride) {
  if (shape.rows == 0 || shape.columns == 0) return;
  // A row-major product is the column-major product of the transposes in the other order.
  const char transa = b.transposed ? 'T' : 'N';
  const char transb = a.transposed ? 'T' : 'N';
  const int m = static_cast<int>(shape.columns);
  const int n = static_cast<int>(shape.rows);
  const int k = static_cast<int>(shape.inner);
  const int lda = static_cast<int>(b.stride);
  const int ldb = static_cast<int>(a.stride);
  const int ldc = static_cast<int>(c_stride);
  const float one = 1.0f;
  const float beta = add ? 1.0f : 0.0f;
  sgemm_(&transa, &transb, &m, &n, &k, &one, b.data, &lda, a.data, &ldb, &beta, c, &ldc);
}

}  // namespace strata::ops::cpu
