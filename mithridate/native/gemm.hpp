// Small matrix products. B and C are row-major; A is addressed by two strides, so that the same
// kernel serves A and its transpose. N must be a multiple of VW.
#pragma once

#include "simd.hpp"

namespace mithridate::MITHRIDATE_ISA {

enum class Into { overwrite, add };  // C = …, or C += …

// Accumulators that fit the register file: 32 vector registers with AVX-512, 16 otherwise.
constexpr int ACCUMULATORS = VW == 16 ? 24 : 12;
constexpr int MAX_COLUMNS = VW == 16 ? 4 : 2;  // in vectors

template <int ROWS, int COLS>
inline void gemm_tile(int K, const float* A, long row_stride, long col_stride, const float* B,
                      long ldb, float* C, long ldc, Into into, const float* bias) {
  vf acc[ROWS][COLS];
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLS; ++c) {
      acc[r][c] = bias ? load(bias + c * VW) : vf{};
      if (into == Into::add) acc[r][c] += load(C + r * ldc + c * VW);
    }
  for (int k = 0; k < K; ++k) {
    vf b[COLS];
    for (int c = 0; c < COLS; ++c) b[c] = load(B + k * ldb + c * VW);
    for (int r = 0; r < ROWS; ++r) {
      const float a = A[r * row_stride + k * col_stride];
      for (int c = 0; c < COLS; ++c) acc[r][c] += a * b[c];
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLS; ++c) store(C + r * ldc + c * VW, acc[r][c]);
}

template <int COLS>
inline void gemm_panel(int M, int K, const float* A, long row_stride, long col_stride,
                       const float* B, long ldb, float* C, long ldc, Into into,
                       const float* bias) {
  constexpr int ROWS = ACCUMULATORS / COLS;
  int m = 0;
  for (; m + ROWS <= M; m += ROWS)
    gemm_tile<ROWS, COLS>(K, A + m * row_stride, row_stride, col_stride, B, ldb, C + m * ldc, ldc,
                          into, bias);
  constexpr int HALF = ROWS / 2;
  for (; m + HALF <= M; m += HALF)
    gemm_tile<HALF, COLS>(K, A + m * row_stride, row_stride, col_stride, B, ldb, C + m * ldc, ldc,
                          into, bias);
  for (; m < M; ++m)
    gemm_tile<1, COLS>(K, A + m * row_stride, row_stride, col_stride, B, ldb, C + m * ldc, ldc,
                       into, bias);
}

// C (M x N) = or += A (M x K) B (K x N) + bias, with A(m, k) = A[m * row_stride + k * col_stride].
inline void gemm(int M, int N, int K, const float* A, long row_stride, long col_stride,
                 const float* B, long ldb, float* C, long ldc, Into into = Into::overwrite,
                 const float* bias = nullptr) {
  for (int n = 0; n < N;) {
    const int left = (N - n) / VW;
    // Three vectors at a time divide 96 = 3 * 32 columns better than four and two.
    const int cols = left % 4 == 0 || left > 6 || left == 5 ? MAX_COLUMNS
                     : left >= 3                            ? (MAX_COLUMNS < 3 ? MAX_COLUMNS : 3)
                                                            : left;
    const float* b = bias ? bias + n : nullptr;
    switch (cols) {
      case 4: gemm_panel<MAX_COLUMNS>(M, K, A, row_stride, col_stride, B + n, ldb, C + n, ldc, into, b); break;
      case 3: gemm_panel<(MAX_COLUMNS < 3 ? MAX_COLUMNS : 3)>(M, K, A, row_stride, col_stride, B + n, ldb, C + n, ldc, into, b); break;
      case 2: gemm_panel<2>(M, K, A, row_stride, col_stride, B + n, ldb, C + n, ldc, into, b); break;
      default: gemm_panel<1>(M, K, A, row_stride, col_stride, B + n, ldb, C + n, ldc, into, b); break;
    }
    n += cols * VW;
  }
}

}  // namespace mithridate::MITHRIDATE_ISA
