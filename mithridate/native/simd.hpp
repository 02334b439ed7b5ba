// Vectors of VW floats, by compiler extension: the same source serves every instruction set.
// MITHRIDATE_VW (16, 8 or 4) is set by CMake for each variant.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace mithridate::MITHRIDATE_ISA {

constexpr int VW = MITHRIDATE_VW;

typedef float vf __attribute__((vector_size(4 * MITHRIDATE_VW)));
typedef int32_t vi __attribute__((vector_size(4 * MITHRIDATE_VW)));
typedef float vf_unaligned __attribute__((vector_size(4 * MITHRIDATE_VW), aligned(4), may_alias));

inline vf load(const float* p) { return *reinterpret_cast<const vf_unaligned*>(p); }
inline void store(float* p, vf v) { *reinterpret_cast<vf_unaligned*>(p) = v; }
inline vf splat(float s) { return vf{} + s; }
// a > b ? a : b, so a NaN in b is kept. GCC 12 does not always make one instruction of that.
inline vf max(vf a, vf b) {
#if defined(__AVX512F__) && MITHRIDATE_VW == 16
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__) && MITHRIDATE_VW == 8
  return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

inline vf min(vf a, vf b) {
#if defined(__AVX512F__) && MITHRIDATE_VW == 16
  return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__) && MITHRIDATE_VW == 8
  return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}

inline vi lane_index() {
  vi r;
  for (int i = 0; i < VW; ++i) r[i] = i;
  return r;
}

inline float hsum(vf v) {
#if MITHRIDATE_VW == 16
  v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
#elif MITHRIDATE_VW == 8
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
#else
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1);
#endif
  return v[0] + v[1];
}

// Eight floats, whatever the instruction set: heads have a multiple of eight.
typedef float v8 __attribute__((vector_size(32)));
typedef float v8_unaligned __attribute__((vector_size(32), aligned(4), may_alias));

inline v8 load8(const float* p) { return *reinterpret_cast<const v8_unaligned*>(p); }
inline void store8(float* p, v8 v) { *reinterpret_cast<v8_unaligned*>(p) = v; }
inline float sum_of_eight(v8 v) {
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
  return v[0] + v[1];
}

// Sums of eight consecutive vectors in memory, cheaper together than one by one.
inline void hsum8(const float* rows, float* sums) {
#if MITHRIDATE_VW == 16
  vf a[8];
  for (int i = 0; i < 8; ++i) a[i] = load(rows + i * VW);
  for (int i = 0; i < 4; ++i)  // eight partial sums of row i, then eight of row i + 4
    a[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21,
                                   22, 23) +
           __builtin_shufflevector(a[i], a[i + 4], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28,
                                   29, 30, 31);
  for (int i = 0; i < 2; ++i)  // four each of rows i, i + 4, i + 2, i + 6
    a[i] = __builtin_shufflevector(a[i], a[i + 2], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25,
                                   26, 27) +
           __builtin_shufflevector(a[i], a[i + 2], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28,
                                   29, 30, 31);
  // two each of rows 0, 4, 2, 6, 1, 5, 3, 7
  vf b = __builtin_shufflevector(a[0], a[1], 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28,
                                 29) +
         __builtin_shufflevector(a[0], a[1], 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30,
                                 31);
  b += __builtin_shufflevector(b, b, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  constexpr int row_of[8] = {0, 4, 2, 6, 1, 5, 3, 7};
  for (int i = 0; i < 8; ++i) sums[row_of[i]] = b[2 * i];
#else
  for (int i = 0; i < 8; ++i) sums[i] = hsum(load(rows + i * VW));
#endif
}

// Sums of `rows` consecutive vectors, at most eight.
inline void hsums(int rows, const float* vectors, float* sums) {
  if (rows == 8) return hsum8(vectors, sums);
  for (int i = 0; i < rows; ++i) sums[i] = hsum(load(vectors + i * VW));
}

inline float hmax(vf v) {
#if MITHRIDATE_VW == 16
  v = max(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
#endif
#if MITHRIDATE_VW >= 8
  float r = v[0];
  for (int i = 1; i < 8; ++i) r = v[i] > r ? v[i] : r;
#else
  float r = v[0];
  for (int i = 1; i < VW; ++i) r = v[i] > r ? v[i] : r;
#endif
  return r;
}

// Whether all are; what is not a number is not.
inline bool all_below(vf v, float limit) {
#if defined(__AVX512F__) && MITHRIDATE_VW == 16
  return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(limit), _CMP_LT_OQ) == 0xffff;
#elif defined(__AVX__) && MITHRIDATE_VW == 8
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v, _mm256_set1_ps(limit), _CMP_LT_OQ)) == 0xff;
#elif defined(__SSE__) && MITHRIDATE_VW == 4
  return _mm_movemask_ps(_mm_cmplt_ps((__m128)v, _mm_set1_ps(limit))) == 0xf;
#else
  bool all = true;
  for (int i = 0; i < VW; ++i) all = all && v[i] < limit;
  return all;
#endif
}

// 1 / x, for finite x, to within two units in the last place: an estimate and a Newton step.
inline vf reciprocal(vf x) {
#if defined(__AVX512F__) && MITHRIDATE_VW == 16
  const vf y = (vf)_mm512_rcp14_ps((__m512)x);
  return y * (2.0f - x * y);
#else
  return 1.0f / x;
#endif
}

// Between rows and columns: VW rows of eight floats, `ld` apart, and eight rows of VW floats.
inline void rows_to_columns(const float* rows, long ld, float* columns, long stride) {
#if MITHRIDATE_VW == 16
  vf v[8];
  for (int i = 0; i < 8; ++i)  // two rows to a vector
    v[i] = (vf)_mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(rows + 2 * i * ld)),
                                  _mm256_loadu_ps(rows + (2 * i + 1) * ld), 1);
  // Each step exchanges one bit of the row number with one of the column number.
  for (int i = 0; i < 4; ++i) {
    const vf a = v[i], b = v[i + 4];
    v[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    v[i + 4] =
        __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
  for (int i : {0, 1, 4, 5}) {
    const vf a = v[i], b = v[i + 2];
    v[i] = __builtin_shufflevector(a, b, 0, 1, 4, 5, 16, 17, 20, 21, 8, 9, 12, 13, 24, 25, 28, 29);
    v[i + 2] =
        __builtin_shufflevector(a, b, 2, 3, 6, 7, 18, 19, 22, 23, 10, 11, 14, 15, 26, 27, 30, 31);
  }
  for (int i : {0, 2, 4, 6}) {
    const vf a = v[i], b = v[i + 1];
    v[i] = __builtin_shufflevector(a, b, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30);
    v[i + 1] =
        __builtin_shufflevector(a, b, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
  }
  for (int d = 0; d < 8; ++d) store(columns + d * stride, v[d]);
#else
  for (int i = 0; i < VW; ++i)
    for (int d = 0; d < 8; ++d) columns[d * stride + i] = rows[i * ld + d];
#endif
}

inline void columns_to_rows(const float* columns, long stride, float* rows, long ld) {
#if MITHRIDATE_VW == 16
  vf v[8];
  for (int d = 0; d < 8; ++d) v[d] = load(columns + d * stride);
  for (int i : {0, 2, 4, 6}) {
    const vf a = v[i], b = v[i + 1];
    v[i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    v[i + 1] =
        __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
  for (int i : {0, 1, 4, 5}) {
    const vf a = v[i], b = v[i + 2];
    v[i] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 2, 3, 18, 19, 8, 9, 24, 25, 10, 11, 26, 27);
    v[i + 2] =
        __builtin_shufflevector(a, b, 4, 5, 20, 21, 6, 7, 22, 23, 12, 13, 28, 29, 14, 15, 30, 31);
  }
  for (int i = 0; i < 4; ++i) {
    const vf a = v[i], b = v[i + 4];
    v[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    v[i + 4] =
        __builtin_shufflevector(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  }
  for (int i = 0; i < 8; ++i) {
    _mm256_storeu_ps(rows + 2 * i * ld, _mm512_castps512_ps256((__m512)v[i]));
    _mm256_storeu_ps(rows + (2 * i + 1) * ld, _mm512_extractf32x8_ps((__m512)v[i], 1));
  }
#else
  for (int i = 0; i < VW; ++i)
    for (int d = 0; d < 8; ++d) rows[i * ld + d] = columns[d * stride + i];
#endif
}

// The same for T rows of D floats, and D rows of at least T.
template <int D>
void transpose_rows(int T, const float* rows, long ld, float* columns, long stride) {
  int t = 0;
  for (; t + VW <= T; t += VW)
    for (int d = 0; d < D; d += 8)
      rows_to_columns(rows + t * ld + d, ld, columns + d * stride + t, stride);
  for (; t < T; ++t)
    for (int d = 0; d < D; ++d) columns[d * stride + t] = rows[t * ld + d];
}

template <int D>
void transpose_columns(int T, const float* columns, long stride, float* rows, long ld) {
  int t = 0;
  for (; t + VW <= T; t += VW)
    for (int d = 0; d < D; d += 8)
      columns_to_rows(columns + d * stride + t, stride, rows + t * ld + d, ld);
  for (; t < T; ++t)
    for (int d = 0; d < D; ++d) rows[t * ld + d] = columns[d * stride + t];
}

// 2^x for |x| <= 126, relative error below 2.5e-7: x = n + r with |r| <= 1/2, 2^r by a degree-5
// minimax polynomial, 2^n by adding n to the exponent bits.
inline vf exp2_bounded(vf x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const vf shifted = x + magic;
  const vf r = x - (shifted - magic);
  vf p = splat(1.33908634e-3f);
  p = p * r + 9.67603192e-3f;
  p = p * r + 5.55035711e-2f;
  p = p * r + 2.40221075e-1f;
  p = p * r + 6.93147188e-1f;
  p = p * r + 1.00000008f;
  return (vf)((vi)p + ((vi)shifted << 23));
}

#if MITHRIDATE_VW == 16
// 2^(i / 32) for i = 0 … 31, less i in the five bits below the exponent.
alignas(64) constexpr int32_t EXP2_TABLE[32] = {
    0x3f800000, 0x3f7ecd87, 0x3f7daac3, 0x3f7c980f, 0x3f7b95c2, 0x3f7aa43a, 0x3f79c3d3, 0x3f78f4f0,
    0x3f7837f0, 0x3f778d3a, 0x3f76f532, 0x3f767043, 0x3f75fed7, 0x3f75a15b, 0x3f75583f, 0x3f7523f6,
    0x3f7504f3, 0x3f74fbaf, 0x3f7508a4, 0x3f752c4d, 0x3f75672a, 0x3f75b9be, 0x3f76248c, 0x3f76a81e,
    0x3f7744fd, 0x3f77fbb8, 0x3f78ccdf, 0x3f79b907, 0x3f7ac0c7, 0x3f7be4ba, 0x3f7d257d, 0x3f7e83b3,
};
#endif

// 2^x for |x| <= 126 where many are needed: with 32 powers in two registers, x = n / 32 + r, a polynomial
// of degree 2 is good enough for 2^r (relative error below 1.7e-7 in all), and it is the multiply-adds
// that are scarce.
inline vf exp2_table(vf x) {
#if MITHRIDATE_VW == 16
  const float magic = 393216.0f;  // 1.5 * 2^18: adding it rounds to a multiple of 1 / 32
  const vf shifted = x + magic;
  const vf r = (vf)_mm512_reduce_ps((__m512)x, 5 << 4);  // x less its nearest multiple of 2^-5
  const __m512i low = _mm512_load_si512(EXP2_TABLE);
  const __m512i high = _mm512_load_si512(EXP2_TABLE + 16);
  const vi root = (vi)_mm512_permutex2var_epi32(low, (__m512i)shifted, high);
  const vf power = (vf)(root + ((vi)shifted << 18));
  const vf rest = (2.40226880e-1f * r + 6.93157315e-1f) * r;
  return power * rest + power;
#else
  return exp2_bounded(x);
#endif
}

// The same as exp2_bounded for any x <= 126; below -126 it stays at 2^-126.
inline vf exp2(vf x) { return exp2_bounded(max(splat(-126.0f), x)); }

// While it lives, numbers below 2^-126 count as zero in this thread. Attention that has become sure of
// itself makes many of them (2^-126 is the least weight, and it is multiplied), and processors are a
// hundred times slower with them.
struct FlushTiny {
#if defined(__SSE__)
  const unsigned before = _mm_getcsr();
  FlushTiny() { _mm_setcsr(before | 0x8040); }
  ~FlushTiny() { _mm_setcsr(before); }
#elif defined(__aarch64__)
  uint64_t before;
  FlushTiny() {
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(before));
    __asm__ __volatile__("msr fpcr, %0" : : "r"(before | (uint64_t(1) << 24)));
  }
  ~FlushTiny() { __asm__ __volatile__("msr fpcr, %0" : : "r"(before)); }
#endif
  FlushTiny(const FlushTiny&) = delete;
};

constexpr float LOG2E = 1.44269504088896340736f;
constexpr float LN2 = 0.69314718055994530942f;

}  // namespace mithridate::MITHRIDATE_ISA
