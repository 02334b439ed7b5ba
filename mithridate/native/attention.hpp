// Causal attention of one head of one sequence, forward and backward, and its decode step.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "simd.hpp"

namespace mithridate::MITHRIDATE_ISA {

constexpr float MINUS_INFINITY = -1e30f;

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

// Scratch memory of one thread, grown on demand.
struct Scratch {
  std::vector<float> memory;
  float* get(size_t n) {
    if (memory.size() < n + 16) memory.resize(n + 16);
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    return memory.data() + (64 - address % 64) % 64 / 4;
  }
};

// Where |score| <= SAFE_SCORE (in units of log2) is certain, 2^score can neither overflow nor lose
// precision, and the usual subtraction of the largest score is not needed.
constexpr float SAFE_SCORE = 60.0f;
constexpr float SAFE_M = 0.0f;         // what is then subtracted; other queries never have this m …
constexpr float ALMOST_ZERO = 1e-30f;  // … but this one in its place

// Squared lengths of VW vectors, the columns of D rows.
template <int D>
inline vf squares(const float* columns, long stride) {
  vf sum = vf{};
  for (int d = 0; d < D; ++d) sum += load(columns + d * stride) * load(columns + d * stride);
  return sum;
}

// Sizes of the register tiles: a group of queries against a group of keys.
constexpr int QUERY_VECTORS = 2;              // forward: vectors of queries …
constexpr int KEY_ROWS = VW == 16 ? 8 : 4;    // … against single keys
constexpr int ADD_ROWS = VW == 16 ? 2 : 1;    // numbers of a value at a time: chains side by side
constexpr int KEY_VECTORS = 2;                // backward: vectors of keys …
constexpr int QUERY_ROWS = VW == 16 ? 6 : 3;  // … against single queries

// Softmax of a group of queries in the making, one number per query in each vector: the score m
// that is subtracted, the sum of 2^(score - m), and the values weighted by the same. Where keys come
// after all queries of the first vectors, only those FROM a later one take part.
template <int D>
struct RunningSoftmax {
  static constexpr int N = QUERY_VECTORS, GROUP = N * VW;
  alignas(64) float q[D][GROUP], acc[D][GROUP] = {}, m[GROUP] = {}, sum[GROUP] = {};

  // Scores of KEYS keys (rows of D floats).
  template <int KEYS, int FROM>
  inline void scores(const float* k, vf (&s)[KEYS][N]) const {
    for (int j = 0; j < KEYS; ++j)
      for (int c = FROM; c < N; ++c) s[j][c] = vf{};
    for (int d = 0; d < D; ++d)
      for (int j = 0; j < KEYS; ++j)
        for (int c = FROM; c < N; ++c) s[j][c] += k[j * D + d] * load(q[d] + c * VW);
  }

  // Query `lane` of vector c is number c * VW + lane + shift, counted from the first key here;
  // keys after it weigh nothing.
  template <int KEYS, int FROM>
  static inline void mask(vf (&s)[KEYS][N], int shift, float hidden) {
    const vi lanes = lane_index();
    for (int j = 0; j < KEYS; ++j)
      for (int c = FROM; c < N; ++c) s[j][c] = lanes + (c * VW + shift) >= j ? s[j][c] : splat(hidden);
  }

  template <int KEYS, int FROM>
  inline void add(const vf (&p)[KEYS][N], const float* v) {
    for (int c = FROM; c < N; ++c) {
      vf total = load(sum + c * VW);
      for (int j = 0; j < KEYS; ++j) total += p[j][c];
      store(sum + c * VW, total);
    }
    for (int d = 0; d < D; d += ADD_ROWS) {
      vf a[ADD_ROWS][N];
      for (int e = 0; e < ADD_ROWS; ++e)
        for (int c = FROM; c < N; ++c) a[e][c] = load(acc[d + e] + c * VW);
      for (int j = 0; j < KEYS; ++j)
        for (int e = 0; e < ADD_ROWS; ++e)
          for (int c = FROM; c < N; ++c) a[e][c] += v[j * D + d + e] * p[j][c];
      for (int e = 0; e < ADD_ROWS; ++e)
        for (int c = FROM; c < N; ++c) store(acc[d + e] + c * VW, a[e][c]);
    }
  }

  // Take in keys and values from j on, KEYS at a time, until it is `end` or more, when all scores are
  // known to be safe: m stays 0. Returns the next. Not inlined: the compiler would lack registers.
  template <int KEYS, bool MASKED, int FROM>
  __attribute__((noinline)) int take_safe(const float* k, const float* v, int i0, int j, int end) {
    for (; j < end; j += KEYS) {
      vf p[KEYS][N];
      scores<KEYS, FROM>(k + j * D, p);
      for (int i = 0; i < KEYS; ++i)
        for (int c = FROM; c < N; ++c) p[i][c] = exp2_table(p[i][c]);
      if (MASKED) mask<KEYS, FROM>(p, i0 - j, 0.0f);
      add<KEYS, FROM>(p, v + j * D);
    }
    return j;
  }

  // The same for any scores, with a running maximum.
  template <int KEYS>
  inline void take_any(const float* k, const float* v, int shift) {
    vf p[KEYS][N];
    scores<KEYS, 0>(k, p);
    mask<KEYS, 0>(p, shift, MINUS_INFINITY);
    for (int c = 0; c < N; ++c) {
      const vf before = load(m + c * VW);
      vf largest = before;
      for (int j = 0; j < KEYS; ++j) largest = max(largest, p[j][c]);
      const vf correction = exp2(before - largest);
      store(m + c * VW, largest);
      store(sum + c * VW, load(sum + c * VW) * correction);
      for (int d = 0; d < D; ++d) store(acc[d] + c * VW, load(acc[d] + c * VW) * correction);
      for (int j = 0; j < KEYS; ++j) p[j][c] = exp2(p[j][c] - largest);
    }
    mask<KEYS, 0>(p, shift, 0.0f);
    add<KEYS, 0>(p, v);
  }

  // All keys up to the last query's; the group's first query is number i0, which may be negative.
  void take_all(const float* k, const float* v, int i0, bool safe) {
    const int keys = i0 + GROUP;
    int j = 0;
    if (safe) {
      j = take_safe<1, true, 0>(k, v, i0, j, keys % KEY_ROWS);
      j = take_safe<KEY_ROWS, false, 0>(k, v, i0, j, i0 - KEY_ROWS + 1);
      j = take_safe<KEY_ROWS, true, 0>(k, v, i0, j, i0 + GROUP - VW);
      take_safe<KEY_ROWS, true, N - 1>(k, v, i0, j, keys);
    } else {
      for (float& x : m) x = MINUS_INFINITY;
      for (; j < keys; j += KEY_ROWS) take_any<KEY_ROWS>(k + j * D, v + j * D, i0 - j);
    }
  }
};

// o = softmax(q k^T / sqrt(D)) v under the causal mask. Rows of q, k, v are ld floats apart, rows
// of o ldo. For the backward pass it keeps, per query, the subtracted score m (in units of log2)
// and the inverse of the sum of 2^(score - m). Nothing is ever summed across a vector.
template <int D>
void attention_forward(int T, const float* q, const float* k, const float* v, long ld, float* o,
                       long ldo, float* m, float* inverse, Scratch& scratch) {
  using Softmax = RunningSoftmax<D>;
  const int padded = round_up(T, VW);              // a multiple of KEY_ROWS
  float* kc = scratch.get(2 * size_t(padded) * D);  // compact copies: (padded, D) each
  float* vc = kc + size_t(padded) * D;
  for (int t = 0; t < T; ++t)
    for (int d = 0; d < D; ++d) {
      kc[t * D + d] = k[t * ld + d];
      vc[t * D + d] = v[t * ld + d];
    }
  for (int i = T * D; i < padded * D; ++i) kc[i] = vc[i] = 0.0f;
  vf longest_keys = vf{};  // squared
  for (int t = 0; t < padded; t += VW) {
    alignas(64) float columns[D][VW];
    transpose_rows<D>(VW, kc + t * D, D, columns[0], VW);
    longest_keys = max(longest_keys, squares<D>(columns[0], VW));
  }
  const float longest_key = hmax(longest_keys);
  const float scale = LOG2E / std::sqrt(float(D));

  // The first group, which has the fewest keys, has what does not make a whole one: its first query
  // then has a negative number, and so many are missing.
  constexpr int GROUP = Softmax::GROUP;
  for (int i0 = (T - 1) % GROUP + 1 - GROUP; i0 < T; i0 += GROUP) {
    const int missing = i0 < 0 ? -i0 : 0, n = GROUP - missing;
    const long first = i0 + missing;
    Softmax softmax;
    if (missing) std::memset(softmax.q, 0, sizeof softmax.q);
    transpose_rows<D>(n, q + first * ld, ld, softmax.q[0] + missing, GROUP);
    vf longest_queries = vf{};  // squared
    for (int i = 0; i < GROUP; i += VW) {
      for (auto& column : softmax.q) store(column + i, load(column + i) * scale);
      longest_queries = max(longest_queries, squares<D>(softmax.q[0] + i, GROUP));
    }
    const float longest_query = hmax(longest_queries);
    // Cauchy-Schwarz bounds every score of this group. (NaN compares false: not safe.)
    const bool safe = longest_query * longest_key <= SAFE_SCORE * SAFE_SCORE;
    softmax.take_all(kc, vc, i0, safe);
    for (int i = 0; i < GROUP; i += VW) {
      const vf share = 1.0f / load(softmax.sum + i);
      store(softmax.sum + i, share);
      for (auto& column : softmax.acc) store(column + i, load(column + i) * share);
    }
    transpose_columns<D>(n, softmax.acc[0] + missing, GROUP, o + first * ldo, ldo);
    for (int i = missing; i < GROUP; ++i) {
      m[i0 + i] = safe || softmax.m[i] != SAFE_M ? softmax.m[i] : ALMOST_ZERO;
      inverse[i0 + i] = softmax.sum[i];
    }
  }
}

// What the backward pass needs of one query: q in units of log2, g = d_out / sum, m, g·o.
template <int D>
struct QueryGradient {
  float q[D], g[D], m, delta;
};

// Gradients of N vectors of keys and values from ROWS queries, the first of which is number i0; the
// first key is number j0. dq (ROWS, D, VW) is still to be summed over its last axis.
// Not inlined: the compiler would keep the queries' numbers as vectors from tile to tile, in memory.
template <int D, int ROWS, int N, bool DIAGONAL, bool SAFE>
__attribute__((noinline)) void backward_tile(const QueryGradient<D>* queries, int i0, int j0, const float* kt,
                          const float* vt, float* dkt, float* dvt, long padded, float* dq) {
  vf p[ROWS][N], ds[ROWS][N];
  for (int i = 0; i < ROWS; ++i)
    for (int c = 0; c < N; ++c) {
      p[i][c] = vf{};
      ds[i][c] = splat(-queries[i].delta);
    }
  for (int d = 0; d < D; ++d)
    for (int i = 0; i < ROWS; ++i)
      for (int c = 0; c < N; ++c) {
        p[i][c] += queries[i].q[d] * load(kt + d * padded + c * VW);
        ds[i][c] += queries[i].g[d] * load(vt + d * padded + c * VW);
      }
  const vi lanes = lane_index();
  for (int i = 0; i < ROWS; ++i)
    for (int c = 0; c < N; ++c) {
      // The score is summed as in the forward pass, so that score - m is exact where it is zero.
      p[i][c] = SAFE ? exp2_table(p[i][c]) : exp2(p[i][c] - queries[i].m);
      if (DIAGONAL) p[i][c] = lanes + (j0 + c * VW) <= i0 + i ? p[i][c] : vf{};
      ds[i][c] *= p[i][c];
    }
  // First what needs p, then what needs ds, so that fewer vectors are alive at a time.
  for (int d = 0; d < D; ++d) {
    vf dv[N];
    for (int c = 0; c < N; ++c) dv[c] = load(dvt + d * padded + c * VW);
    for (int i = 0; i < ROWS; ++i)
      for (int c = 0; c < N; ++c) dv[c] += queries[i].g[d] * p[i][c];
    for (int c = 0; c < N; ++c) store(dvt + d * padded + c * VW, dv[c]);
  }
  for (int d = 0; d < D; ++d) {
    vf k[N], dk[N];
    for (int c = 0; c < N; ++c) {
      k[c] = load(kt + d * padded + c * VW);
      dk[c] = load(dkt + d * padded + c * VW);
    }
    for (int i = 0; i < ROWS; ++i) {
      float* sum = dq + (i * D + d) * VW;
      vf a = load(sum);
      for (int c = 0; c < N; ++c) {
        dk[c] += queries[i].q[d] * ds[i][c];
        a += ds[i][c] * k[c];
      }
      store(sum, a);
    }
    for (int c = 0; c < N; ++c) store(dkt + d * padded + c * VW, dk[c]);
  }
}

// Gradients of attention_forward. Rows of dq, dk, dv are ldg floats apart, rows of o and d_out ldo.
//
// With g = d_out / sum, delta = g·o and p = 2^(s - m): dv += p g, ds = p (g·v - delta),
// dk += ds q, dq += ds k. A vector holds one number for each of VW keys; only dq is a sum across
// vectors, taken once at the end.
template <int D>
void attention_backward(int T, const float* q, const float* k, const float* v, long ld,
                        const float* o, const float* d_out, long ldo, const float* m,
                        const float* inverse, float* dq, float* dk, float* dv, long ldg,
                        Scratch& scratch) {
  constexpr int GROUP = KEY_VECTORS * VW;
  constexpr int FEWER_ROWS = QUERY_ROWS / 2;    // a query alone would wait for itself
  constexpr int QUERIES = 4 * QUERY_ROWS;       // meet a group of keys while it is in the L1 cache
  const long padded = round_up(T, GROUP) + VW;  // not a power of two: rows would share cache sets
  float* kt = scratch.get(4 * padded * D + QUERIES * D * VW);
  float* vt = kt + padded * D;  // (D, padded) each
  float* dkt = vt + padded * D;
  float* dvt = dkt + padded * D;
  float* dqs = dvt + padded * D;  // (QUERIES, D, VW)
  for (int d = 0; d < 2 * D; ++d)  // what follows the last key and value
    for (int t = T / VW * VW; t < padded; t += VW) store(kt + d * padded + t, vf{});
  transpose_rows<D>(T, k, ld, kt, padded);
  transpose_rows<D>(T, v, ld, vt, padded);

  const float root = std::sqrt(float(D));
  // As in the forward pass, the first queries are those that do not make a whole group.
  for (int i0 = 0, n = (T - 1) % QUERIES + 1; i0 < T; i0 += n, n = QUERIES) {
    QueryGradient<D> queries[QUERIES];
    bool safe = true;
    for (int i = 0; i < n; ++i) {
      const long row = i0 + i;
      safe = safe && m[row] == SAFE_M;
      v8 products = v8{};
      for (int d = 0; d < D; d += 8) {
        const v8 g = load8(d_out + row * ldo + d) * inverse[row];
        store8(queries[i].q + d, load8(q + row * ld + d) * (LOG2E / root));
        store8(queries[i].g + d, g);
        products += g * load8(o + row * ldo + d);
      }
      queries[i].m = m[row];
      queries[i].delta = sum_of_eight(products);
    }
    for (int i = 0; i < n * D; ++i) store(dqs + i * VW, vf{});
    for (int j = 0; j < i0 + n; j += GROUP) {
      if (j >= i0)  // keys that no query has met
        for (int d = 0; d < 2 * D; ++d)
          for (int c = 0; c < GROUP; c += VW) store(dkt + d * padded + j + c, vf{});
      auto tile = [&](int i, auto rows) {
        constexpr int ROWS = decltype(rows)::value;
        const int first = i0 + i, last = first + ROWS - 1;
        auto run = [&](int at, auto* kernel) {
          kernel(queries + i, first, at, kt + at, vt + at, dkt + at, dvt + at, padded,
                 dqs + i * D * VW);
        };
        auto run_all = [&](auto safe) {
          constexpr bool SAFE = decltype(safe)::value;
          if (j + GROUP <= first + 1)
            return run(j, backward_tile<D, ROWS, KEY_VECTORS, false, SAFE>);
          if (j + GROUP - VW <= last)
            run(j, backward_tile<D, ROWS, KEY_VECTORS, true, SAFE>);
          else if (j <= last)
            run(j, backward_tile<D, ROWS, 1, true, SAFE>);
        };
        if (safe)
          run_all(std::true_type{});
        else
          run_all(std::false_type{});
      };
      int i = 0;
      for (; i + QUERY_ROWS <= n; i += QUERY_ROWS)
        tile(i, std::integral_constant<int, QUERY_ROWS>{});
      for (; i + FEWER_ROWS <= n; i += FEWER_ROWS)
        tile(i, std::integral_constant<int, FEWER_ROWS>{});
      for (; i < n; ++i) tile(i, std::integral_constant<int, 1>{});
    }
    for (int i = 0; i < n; ++i) {
      float sums[D];
      for (int d = 0; d < D; d += 8) hsum8(dqs + (i * D + d) * VW, sums + d);
      for (int d = 0; d < D; d += 8) store8(dq + (i0 + i) * ldg + d, load8(sums + d) * (1.0f / root));
    }
  }
  for (int d = 0; d < D; ++d)  // undo LOG2E in q
    for (float* x = dkt + d * padded; x < dkt + d * padded + T; x += VW) store(x, load(x) * LN2);
  transpose_columns<D>(T, dkt, padded, dk, ldg);
  transpose_columns<D>(T, dvt, padded, dv, ldg);
}

// Keys and values of a head are cached in blocks of BLOCK positions, (capacity / BLOCK, D, BLOCK) each:
// one stream of memory, read in vectors of any width up to BLOCK.
constexpr int BLOCK = 16;

template <int D>
inline long cache_offset(int position) {
  return long(position / BLOCK) * BLOCK * D + position % BLOCK;
}

// Tells the processor that a block is needed soon.
template <int D>
inline void fetch(const float* cached, int position) {
  if (position % BLOCK == 0)
    for (int d = 0; d < D; ++d) __builtin_prefetch(cached + cache_offset<D>(position) + d * BLOCK);
}

constexpr int DECODE_SUMS = VW == 16 ? 16 : 8;  // vectors that are summed up at a time

// Softmax of Q queries (D floats each, in units of log2) against n cached positions, and the weighted
// sums of the values. `scratch` has room for Q times n rounded up to BLOCK. What the last block holds
// at or after position n is loaded but never used. If the cache is FAR from the core, it is fetched a
// stretch ahead: values while keys are read, and then the `next` head's keys.
template <int D, int Q, bool FAR>
void attention_decode(int n, const float* const (&q)[Q], const float* keys, const float* values,
                      const float* next, float* const (&out)[Q], float* scratch) {
  const vi lanes = lane_index();
  const int whole = n / VW * VW, padded = round_up(n, BLOCK);

  vf largest[Q];
  for (vf& x : largest) x = splat(MINUS_INFINITY);
  auto score = [&](int t, auto count) {
    constexpr int N = decltype(count)::value;
    vf even[N][Q], odd[N][Q];  // sums over even and odd d: a shorter chain, and less rounding
    for (int i = 0; i < N; ++i)
      for (int a = 0; a < Q; ++a) even[i][a] = odd[i][a] = vf{};
    const float* k[N];
    for (int i = 0; i < N; ++i) k[i] = keys + cache_offset<D>(t + i * VW);
    if (FAR)
      for (int i = 0; i < N; ++i) fetch<D>(values, t + i * VW);
    for (int d = 0; d < D; d += 2)
      for (int i = 0; i < N; ++i) {
        const vf x = load(k[i] + d * BLOCK), y = load(k[i] + (d + 1) * BLOCK);
        for (int a = 0; a < Q; ++a) even[i][a] += x * q[a][d], odd[i][a] += y * q[a][d + 1];
      }
    for (int i = 0; i < N; ++i)
      for (int a = 0; a < Q; ++a) {
        vf s = even[i][a] + odd[i][a];
        if (N == 1 && t == whole) s = lanes < n - whole ? s : splat(MINUS_INFINITY);
        store(scratch + a * padded + t + i * VW, s);
        largest[a] = max(largest[a], s);
      }
  };
  constexpr int TOGETHER = DECODE_SUMS / (4 * Q);
  int done = 0;
  for (; done + TOGETHER * VW <= whole; done += TOGETHER * VW)
    score(done, std::integral_constant<int, TOGETHER>{});
  for (; done < n; done += VW) score(done, std::integral_constant<int, 1>{});

  float share[Q];
  for (int a = 0; a < Q; ++a) {
    const float m = hmax(largest[a]);
    vf sum = vf{};
    for (int t = 0; t < n; t += VW) {
      float* s = scratch + a * padded + t;
      const vf p = exp2(load(s) - m);
      store(s, p);
      sum += p;
    }
    share[a] = 1.0f / hsum(sum);
  }

  constexpr int ROWS = D < DECODE_SUMS / Q ? D : DECODE_SUMS / Q;  // numbers of a value at a time …
  constexpr int SETS = DECODE_SUMS / (Q * ROWS);  // … and vectors of positions
  for (int d0 = 0; d0 < D; d0 += ROWS) {
    vf acc[Q][SETS][ROWS];
    for (auto& sets : acc)
      for (auto& set : sets)
        for (vf& x : set) x = vf{};
    auto take = [&](int t, int set, auto all) {
      const float* v = values + cache_offset<D>(t) + d0 * BLOCK;
      if (FAR && d0 == 0) fetch<D>(next, t);
      for (int d = 0; d < ROWS; ++d) {
        vf x = load(v + d * BLOCK);
        if (!decltype(all)::value) x = lanes < n - whole ? x : vf{};
        for (int a = 0; a < Q; ++a) acc[a][set][d] += x * load(scratch + a * padded + t);
      }
    };
    int t = 0;
    for (; t + SETS * VW <= whole; t += SETS * VW)
      for (int set = 0; set < SETS; ++set) take(t + set * VW, set, std::true_type{});
    for (; t + VW <= whole; t += VW) take(t, 0, std::true_type{});
    if (whole < n) take(whole, 0, std::false_type{});
    for (int a = 0; a < Q; ++a) {
      alignas(64) float rows[ROWS * VW], sums[ROWS];
      for (int d = 0; d < ROWS; ++d) {
        vf x = acc[a][0][d];
        for (int set = 1; set < SETS; ++set) x += acc[a][set][d];
        store(rows + d * VW, x);
      }
      if constexpr (ROWS % 8 == 0)
        for (int d = 0; d < ROWS; d += 8) hsum8(rows + d * VW, sums + d);
      else
        for (int d = 0; d < ROWS; ++d) sums[d] = hsum(load(rows + d * VW));
      for (int d = 0; d < ROWS; ++d) out[a][d0 + d] = sums[d] * share[a];
    }
  }
}

}  // namespace mithridate::MITHRIDATE_ISA
