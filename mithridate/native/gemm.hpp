// Small matrix products. All matrices are row-major; A may be taken as its transpose. N must be a
// multiple of VW.
#pragma once

#include "simd.hpp"

namespace mithridate::MITHRIDATE_ISA {

enum class Into { overwrite, add };  // C = …, or C += …

// Accumulators that fit the register file: 32 vector registers with AVX-512, 16 otherwise.
constexpr int ACCUMULATORS = VW == 16 ? 24 : 12;
constexpr int MAX_COLUMNS = VW == 16 ? 4 : 2;  // in vectors

// What a product is added to: a matrix whose rows are ld apart. Rows of zeros, all the same (ld = 0),
// cost less than the question whether there is a matrix: its answers would meet in memory.
struct Onto {
  const float* first;
  long ld;
  Onto from(long row) const { return {first + row * ld, ld}; }
};
alignas(64) constexpr float ZEROS[MAX_COLUMNS * VW] = {};

// lda: floats from one row of the stored matrix to the next.
template <int ROWS, int COLS, bool TRANSPOSED>
inline void gemm_tile(int K, const float* A, long lda, const float* B, long ldb, float* C, long ldc,
                      Onto onto, const float* bias) {
  vf acc[ROWS][COLS];
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLS; ++c)
      acc[r][c] = load(bias + c * VW) + load(onto.first + r * onto.ld + c * VW);
  // Four rows to a pointer: x86 adds 0, 1, 2 or (kept in a register) 3 strides for free.
  const float* rows[(ROWS + 3) / 4];
  for (int r = 0; r < ROWS; r += 4) rows[r / 4] = A + (TRANSPOSED ? r : r * lda);
  for (int k = 0; k < K; ++k) {
    vf b[COLS];
    for (int c = 0; c < COLS; ++c) b[c] = load(B + c * VW);
    B += ldb;
    for (int r = 0; r < ROWS; ++r) {
      const float a = TRANSPOSED ? rows[0][r] : rows[r / 4][(r % 4) * lda];
      for (int c = 0; c < COLS; ++c) acc[r][c] += a * b[c];
    }
    if (TRANSPOSED)
      rows[0] += lda;
    else
      for (auto& row : rows) ++row;
  }
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLS; ++c) store(C + r * ldc + c * VW, acc[r][c]);
}

// As many tiles of ROWS rows as fit, and smaller ones for the rest: a row alone would wait for itself.
template <int ROWS, int COLS, bool TRANSPOSED>
inline void gemm_panel(int M, int K, const float* A, long lda, const float* B, long ldb, float* C,
                       long ldc, Onto onto, const float* bias) {
  const long step = TRANSPOSED ? 1 : lda;
  int m = 0;
  for (; m + ROWS <= M; m += ROWS)
    gemm_tile<ROWS, COLS, TRANSPOSED>(K, A + m * step, lda, B, ldb, C + m * ldc, ldc,
                                      onto.from(m), bias);
  if constexpr (ROWS > 1) {
    constexpr int FEWER = ROWS > 8 ? 8 : ROWS > 4 ? 4 : ROWS > 2 ? 2 : 1;
    if (m < M)
      gemm_panel<FEWER, COLS, TRANSPOSED>(M - m, K, A + m * step, lda, B, ldb, C + m * ldc, ldc,
                                          onto.from(m), bias);
  }
}

template <bool TRANSPOSED>
void gemm_any(int M, int N, int K, const float* A, long lda, const float* B, long ldb, float* C,
              long ldc, const float* onto, const float* bias) {
  for (int n = 0; n < N;) {
    const int left = (N - n) / VW;
    // Three vectors at a time divide 96 = 3 * 32 columns better than four and two.
    int cols = left % 4 == 0 || left > 6 || left == 5 ? 4 : left >= 3 ? 3 : left;
    if (cols > MAX_COLUMNS) cols = MAX_COLUMNS;
    const float* b = bias ? bias + n : ZEROS;
    const Onto o = onto ? Onto{onto + n, ldc} : Onto{ZEROS, 0};
    auto run = [&](auto panel) { panel(M, K, A, lda, B + n, ldb, C + n, ldc, o, b); };
    switch (cols) {
#if MITHRIDATE_VW == 16
      case 4:
        run(gemm_panel<ACCUMULATORS / 4, 4, TRANSPOSED>);
        break;
      case 3:
        run(gemm_panel<ACCUMULATORS / 3, 3, TRANSPOSED>);
        break;
#endif
      case 2:
        run(gemm_panel<ACCUMULATORS / 2, 2, TRANSPOSED>);
        break;
      default:
        run(gemm_panel<ACCUMULATORS, 1, TRANSPOSED>);
        break;
    }
    n += cols * VW;
  }
}

// C (M x N) = or += A (M x K) B (K x N) + bias.
inline void gemm(int M, int N, int K, const float* A, const float* B, float* C,
                 Into into = Into::overwrite, const float* bias = nullptr) {
  gemm_any<false>(M, N, K, A, K, B, N, C, N, into == Into::add ? C : nullptr, bias);
}

// C (M x N) += A^T B with A (K x M) and B (K x N).
inline void gemm_transposed(int M, int N, int K, const float* A, const float* B, float* C) {
  gemm_any<true>(M, N, K, A, M, B, N, C, N, C, nullptr);
}

}  // namespace mithridate::MITHRIDATE_ISA
