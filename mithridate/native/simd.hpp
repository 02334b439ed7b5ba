// Vectors of VW floats, by compiler extension: the same source serves every instruction set.
// MITHRIDATE_VW (16, 8 or 4) is set by CMake for each variant.
#pragma once

#include <cstdint>

namespace mithridate::MITHRIDATE_ISA {

constexpr int VW = MITHRIDATE_VW;

typedef float vf __attribute__((vector_size(4 * MITHRIDATE_VW)));
typedef int32_t vi __attribute__((vector_size(4 * MITHRIDATE_VW)));
typedef float vf_unaligned __attribute__((vector_size(4 * MITHRIDATE_VW), aligned(4), may_alias));

inline vf load(const float* p) { return *reinterpret_cast<const vf_unaligned*>(p); }
inline void store(float* p, vf v) { *reinterpret_cast<vf_unaligned*>(p) = v; }
inline vf splat(float s) { return vf{} + s; }
inline vf max(vf a, vf b) { return a > b ? a : b; }

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

// Sums of eight consecutive vectors in memory, cheaper together than one by one.
inline void hsum8(const float* rows, float* sums) {
#if MITHRIDATE_VW == 16
  vf a[8];
  for (int i = 0; i < 8; ++i) a[i] = load(rows + i * VW);
  for (int i = 0; i < 4; ++i)  // eight partial sums of row i, then eight of row i + 4
    a[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(a[i], a[i + 4], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  for (int i = 0; i < 2; ++i)  // four each of rows i, i + 4, i + 2, i + 6
    a[i] = __builtin_shufflevector(a[i], a[i + 2], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           __builtin_shufflevector(a[i], a[i + 2], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  // two each of rows 0, 4, 2, 6, 1, 5, 3, 7
  vf b = __builtin_shufflevector(a[0], a[1], 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
         __builtin_shufflevector(a[0], a[1], 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
  b += __builtin_shufflevector(b, b, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  constexpr int row_of[8] = {0, 4, 2, 6, 1, 5, 3, 7};
  for (int i = 0; i < 8; ++i) sums[row_of[i]] = b[2 * i];
#else
  for (int i = 0; i < 8; ++i) sums[i] = hsum(load(rows + i * VW));
#endif
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

// The same for any x <= 126; below -126 it stays at 2^-126.
inline vf exp2(vf x) { return exp2_bounded(max(x, splat(-126.0f))); }

constexpr float LOG2E = 1.44269504088896340736f;
constexpr float LN2 = 0.69314718055994530942f;

}  // namespace mithridate::MITHRIDATE_ISA
