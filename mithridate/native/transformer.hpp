// The whole transformer, one sequence at a time so that it stays in the cache of its core, and
// one token at a time for rollouts. The arithmetic is that of mithridate/model/transformer.py.
#pragma once

#include <cstring>

#include "attention.hpp"
#include "gemm.hpp"
#include "kernels.hpp"

namespace mithridate::MITHRIDATE_ISA {

constexpr int TILE = 168;          // tokens handled together where tokens are independent
constexpr float NORM_EPS = 1e-5f;  // of torch.nn.LayerNorm
constexpr int GROUPS = 32;         // partial sums of the gradient; fixed, so that the result does
                                   // not depend on the number of threads

// Pointers into a flat array of parameters (or of their gradients).
template <class F>
struct BlockView {
  F *norm1_w, *norm1_b, *qkv_w, *qkv_b, *out_w, *out_b, *norm2_w, *norm2_b, *up_w, *up_b, *down_w,
      *down_b;

  BlockView(F* p, int D) {
    auto take = [&p](long n) {
      F* here = p;
      p += n;
      return here;
    };
    norm1_w = take(D), norm1_b = take(D);
    qkv_w = take(3L * D * D), qkv_b = take(3L * D);
    out_w = take(1L * D * D), out_b = take(D);
    norm2_w = take(D), norm2_b = take(D);
    up_w = take(4L * D * D), up_b = take(4L * D);
    down_w = take(4L * D * D), down_b = take(D);
  }
};

template <class F>
BlockView<F> block_at(const Shape& s, F* weights, int layer) {
  return BlockView<F>(weights + long(s.positions) * s.width + layer * s.block_size(), s.width);
}

template <class F>
F* last_norm(const Shape& s, F* weights) {
  return weights + s.size() - 2L * s.width;
}

inline void transpose_matrix(int rows, int cols, const float* from, float* to) {
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < cols; ++c) to[long(c) * rows + r] = from[long(r) * cols + c];
}

inline void transpose_weights(const Shape& s, const float* weights, float* transposed) {
  std::memcpy(transposed, weights, sizeof(float) * s.size());
  const int D = s.width;
  for (int l = 0; l < s.layers; ++l) {
    const auto w = block_at(s, weights, l);
    const auto t = block_at(s, transposed, l);
    transpose_matrix(3 * D, D, w.qkv_w, t.qkv_w);
    transpose_matrix(D, D, w.out_w, t.out_w);
    transpose_matrix(4 * D, D, w.up_w, t.up_w);
    transpose_matrix(D, 4 * D, w.down_w, t.down_w);
  }
}

// ---- Norms ------------------------------------------------------------------------------------

constexpr int NORM_ROWS = 8;  // rows whose sums are taken together, as hsum8 does

// Means and inverse standard deviations of up to NORM_ROWS rows. VECTORS: D / VW, or 0 for any D.
template <int VECTORS>
inline void moments(int rows, int D, const float* x, float* mean, float* rstd) {
  if (VECTORS) D = VECTORS * VW;
  alignas(64) float sums[NORM_ROWS * VW];
  for (int r = 0; r < rows; ++r) {
    vf sum = vf{};
    for (int d = 0; d < D; d += VW) sum += load(x + r * D + d);
    store(sums + r * VW, sum);
  }
  hsums(rows, sums, mean);
  for (int r = 0; r < rows; ++r) mean[r] /= D;
  for (int r = 0; r < rows; ++r) {
    vf squares = vf{};
    for (int d = 0; d < D; d += VW) {
      const vf c = load(x + r * D + d) - mean[r];
      squares += c * c;
    }
    store(sums + r * VW, squares);
  }
  hsums(rows, sums, rstd);
  for (int r = 0; r < rows; ++r) rstd[r] = 1.0f / std::sqrt(rstd[r] / D + NORM_EPS);
}

template <int VECTORS>
inline void norm_rows(int rows, int D, const float* x, const float* mean, const float* rstd,
                      const float* w, const float* b, float* y) {
  if (VECTORS) D = VECTORS * VW;
  for (int r = 0; r < rows; ++r)
    for (int d = 0; d < D; d += VW)
      store(y + r * D + d, (load(x + r * D + d) - mean[r]) * rstd[r] * load(w + d) + load(b + d));
}

template <int VECTORS>
inline void norm_rows_backward(int rows, int D, const float* x, const float* mean,
                               const float* rstd, const float* w, const float* dy, float* dx,
                               float* dw, float* db, Into into) {
  if (VECTORS) D = VECTORS * VW;
  float mean_g[NORM_ROWS], mean_hat[NORM_ROWS];
  alignas(64) float sums[NORM_ROWS * VW], sums_hat[NORM_ROWS * VW];
  for (int r = 0; r < rows; ++r) {
    vf sum = vf{}, sum_hat = vf{};
    for (int d = 0; d < D; d += VW) {
      const vf hat = (load(x + r * D + d) - mean[r]) * rstd[r];
      const vf gw = load(dy + r * D + d) * load(w + d);
      sum += gw;
      sum_hat += gw * hat;
    }
    store(sums + r * VW, sum);
    store(sums_hat + r * VW, sum_hat);
  }
  hsums(rows, sums, mean_g);
  hsums(rows, sums_hat, mean_hat);
  for (int r = 0; r < rows; ++r) mean_g[r] /= D, mean_hat[r] /= D;
  for (int d = 0; d < D; d += VW) {
    vf sum_w = load(dw + d), sum_b = load(db + d);
    for (int r = 0; r < rows; ++r) {
      const long at = r * D + d;
      const vf hat = (load(x + at) - mean[r]) * rstd[r], g = load(dy + at);
      sum_w += g * hat;
      sum_b += g;
      vf back = (g * load(w + d) - mean_g[r] - hat * mean_hat[r]) * rstd[r];
      if (into == Into::add) back += load(dx + at);
      store(dx + at, back);
    }
    store(dw + d, sum_w);
    store(db + d, sum_b);
  }
}

// Calls with NORM_ROWS rows at a time, of a width that the compiler knows where it is the usual one.
template <class Call>
inline void by_rows(int rows, int D, Call call) {
  auto all = [&](auto vectors) {
    int t = 0;
    for (; t + NORM_ROWS <= rows; t += NORM_ROWS)
      call(vectors, std::integral_constant<int, NORM_ROWS>{}, t);
    for (; t < rows; ++t) call(vectors, std::integral_constant<int, 1>{}, t);
  };
  if (D == 32)
    all(std::integral_constant<int, 32 / VW>{});
  else
    all(std::integral_constant<int, 0>{});
}

// `keep`: null, or room for two numbers per row, the moments, which the backward pass takes.
inline void norm_forward(int rows, int D, const float* x, const float* w, const float* b, float* y,
                         float* keep = nullptr) {
  by_rows(rows, D, [&](auto vectors, auto n, int t) {
    constexpr int VECTORS = decltype(vectors)::value;
    float own[2 * NORM_ROWS];
    float* here = keep ? keep + 2 * t : own;
    const long at = long(t) * D;
    moments<VECTORS>(n, D, x + at, here, here + n);
    norm_rows<VECTORS>(n, D, x + at, here, here + n, w, b, y + at);
  });
}

// The same where the moments are known.
inline void norm_again(int rows, int D, const float* x, const float* known, const float* w,
                       const float* b, float* y) {
  by_rows(rows, D, [&](auto vectors, auto n, int t) {
    const float* here = known + 2 * t;
    const long at = long(t) * D;
    norm_rows<decltype(vectors)::value>(n, D, x + at, here, here + n, w, b, y + at);
  });
}

// Adds the gradient to dx (into = add) or writes it; dw and db accumulate. `known`: the moments, or null.
inline void norm_backward(int rows, int D, const float* x, const float* known, const float* w,
                          const float* dy, float* dx, float* dw, float* db, Into into) {
  by_rows(rows, D, [&](auto vectors, auto n, int t) {
    constexpr int VECTORS = decltype(vectors)::value;
    float own[2 * NORM_ROWS];
    const float* here = known ? known + 2 * t : own;
    const long at = long(t) * D;
    if (!known) moments<VECTORS>(n, D, x + at, own, own + n);
    norm_rows_backward<VECTORS>(n, D, x + at, here, here + n, w, dy + at, dx + at, dw, db, into);
  });
}

// ---- GELU, tanh form: u * sigmoid(2 c (u + a u^3)) ---------------------------------------------

constexpr float GELU_A = 0.044715f;
constexpr float GELU_C2 = 2.0f * 0.79788456080286535588f;  // 2 sqrt(2 / pi)

inline vf gelu_sigmoid(vf u) {
  const vf z = u * (1.0f + GELU_A * u * u) * (-GELU_C2 * LOG2E);
  return reciprocal(1.0f + exp2_table(max(splat(-126.0f), min(splat(126.0f), z))));
}

inline vf gelu(vf u) { return u * gelu_sigmoid(u); }

// Value and derivative.
inline void gelu_both(vf u, vf& value, vf& slope) {
  const vf s = gelu_sigmoid(u);
  value = u * s;
  slope = s + value * (1.0f - s) * (GELU_C2 + 3.0f * GELU_C2 * GELU_A * (u * u));
}

inline void add_column_sums(int rows, int N, const float* x, float* sums) {
  for (int n = 0; n < N; n += VW, x += VW) {
    vf a[4] = {load(sums + n)};  // four sums: one alone would wait for itself
    int r = 0;
    for (; r + 4 <= rows; r += 4)
      for (int i = 0; i < 4; ++i) a[i] += load(x + long(r + i) * N);
    for (; r < rows; ++r) a[0] += load(x + long(r) * N);
    store(sums + n, (a[0] + a[1]) + (a[2] + a[3]));
  }
}

// ---- One sequence -----------------------------------------------------------------------------

template <class Call>
void with_head_width(int d, Call call) {
  switch (d) {
    case 8:
      call(std::integral_constant<int, 8>{});
      break;
    case 16:
      call(std::integral_constant<int, 16>{});
      break;
    case 32:
      call(std::integral_constant<int, 32>{});
      break;
  }
}

struct Workspace {
  Scratch sequence, tile, attention, transposed, partial, cache, logits, kept;
};

// Each thread keeps its scratch memory from call to call: fresh pages are dear.
inline Workspace& workspace() {
  static thread_local Workspace work;
  return work;
}

inline void qkv_forward(int T, int D, const BlockView<const float>& w,
                        const BlockView<const float>& wt, const float* x, float* qkv, float* tile,
                        float* moments = nullptr) {
  for (int t = 0; t < T; t += TILE) {
    const int rows = T - t < TILE ? T - t : TILE;
    norm_forward(rows, D, x + long(t) * D, w.norm1_w, w.norm1_b, tile,
                 moments ? moments + 2 * t : nullptr);
    gemm(rows, 3 * D, D, tile, wt.qkv_w, qkv + 3L * t * D, Into::overwrite, w.qkv_b);
  }
}

// From the heads' outputs to the input of the GELU: x = in + out(mixed), h = norm(x), u = up(h). May
// be in place, x = in.
inline void up_forward(int rows, int D, const BlockView<const float>& w,
                       const BlockView<const float>& wt, const float* mixed, const float* in,
                       float* x, float* h, float* u, float* moments = nullptr) {
  gemm_any<false>(rows, D, D, mixed, D, wt.out_w, D, x, D, in, w.out_b);
  norm_forward(rows, D, x, w.norm2_w, w.norm2_b, h, moments);
  gemm(rows, 4 * D, D, h, wt.up_w, u, Into::overwrite, w.up_b);
}

// What a sequence's forward pass leaves for its backward pass. What is null is computed again there.
struct Kept {
  float *inputs, *mixed, *statistics;  // of each block: see Kernels::forward
  long layer_stride, stats_stride;
  float *qkv = nullptr, *middle = nullptr, *u = nullptr;  // (layers, N, 3 D), (…, D), (…, 4 D)
  float* moments = nullptr;                               // (layers, 2, N, 2), of the norms

  // Those of a norm from token t on.
  float* moments_at(int layer, int norm, int N, int t) const {
    return moments ? moments + 2 * ((2L * layer + norm) * N + t) : nullptr;
  }
};

// A sequence is one stream of T tokens, or two: then the second T are queries, of which number t sees
// context tokens 0 … t and which nobody sees. N tokens in all; only attention tells them apart.
inline void sequence_forward(const Shape& s, const float* weights, const float* transposed, int T,
                             int streams, const float* x, float* y, const Kept& kept,
                             Workspace& work) {
  const int D = s.width, H = s.heads, d = s.head_width(), N = T * streams;
  const long stream = long(T) * D, all = streams * stream;
  float* scratch = kept.qkv ? nullptr : work.sequence.get(3 * all);
  float* tile = work.tile.get(5L * TILE * D);
  float *h = tile, *value = tile + TILE * D;
  for (long from = 0; from < all; from += stream)
    for (long i = 0; i < stream; i += VW)
      store(kept.inputs + from + i, load(x + from + i) + load(weights + i));

  for (int l = 0; l < s.layers; ++l) {
    const auto w = block_at(s, weights, l);
    const auto wt = block_at(s, transposed, l);
    const float* in = kept.inputs + l * kept.layer_stride;
    float* out = kept.inputs + (l + 1) * kept.layer_stride;
    float* mix = kept.mixed + l * kept.layer_stride;
    float* stats = kept.statistics + l * kept.stats_stride;
    float* qkv = kept.qkv ? kept.qkv + 3 * l * all : scratch;
    qkv_forward(N, D, w, wt, in, qkv, tile, kept.moments_at(l, 0, N, 0));
    with_head_width(d, [&](auto width) {
      for (int head = 0; head < H; ++head)
        for (int a = 0; a < streams; ++a) {
          float* of_head = stats + (2L * H * a + head) * T;
          attention_forward<width>(T, qkv + 3 * a * stream + head * d, qkv + D + head * d,
                                   qkv + 2 * D + head * d, 3 * D, mix + a * stream + head * d, D,
                                   of_head, of_head + long(H) * T, work.attention);
        }
    });
    for (int t = 0; t < N; t += TILE) {
      const int rows = N - t < TILE ? N - t : TILE;
      const long at = long(t) * D;
      float* middle = kept.middle ? kept.middle + l * all + at : out + at;
      float* u = kept.u ? kept.u + 4 * (l * all + at) : value;
      up_forward(rows, D, w, wt, mix + at, in + at, middle, h, u, kept.moments_at(l, 1, N, t));
      for (int i = 0; i < rows * 4 * D; i += VW) store(value + i, gelu(load(u + i)));
      gemm_any<false>(rows, D, 4 * D, value, 4 * D, wt.down_w, D, out + at, D, middle, w.down_b);
    }
  }
  const float* norm = last_norm(s, weights);
  norm_forward(N, D, kept.inputs + s.layers * kept.layer_stride, norm, norm + D, y);
}

// Queries have no keys and values; what is in their place belongs to those of the context.
inline void give_to_context(int T, int D, float* d_qkv) {
  for (int t = 0; t < T; ++t) {
    float* context = d_qkv + 3L * t * D;
    float* query = context + 3L * T * D;
    for (int i = D; i < 3 * D; i += VW) {
      store(context + i, load(context + i) + load(query + i));
      store(query + i, vf{});
    }
  }
}

inline void sequence_backward(const Shape& s, const float* weights, const float* transposed, int T,
                              int streams, const float* dy, const Kept& kept, float* dx,
                              float* d_weights, Workspace& work) {
  const int D = s.width, H = s.heads, d = s.head_width(), N = T * streams;
  const long stream = long(T) * D, all = streams * stream;
  float* d_qkv = work.sequence.get((kept.qkv ? 4 : 7) * all);
  float* d_mix = d_qkv + 3 * all;
  float* scratch = d_mix + all;
  float* tile = work.tile.get(11L * TILE * D);
  float *h = tile, *dh = h + TILE * D, *again = dh + TILE * D, *du = again + 5L * TILE * D;
  const float* norm = last_norm(s, weights);
  float* d_norm = last_norm(s, d_weights);
  norm_backward(N, D, kept.inputs + s.layers * kept.layer_stride, nullptr, norm, dy, dx, d_norm,
                d_norm + D, Into::overwrite);
  float own[2 * TILE];  // moments, if they were not kept

  for (int l = s.layers - 1; l >= 0; --l) {
    const auto w = block_at(s, weights, l);
    const auto wt = block_at(s, transposed, l);
    const auto g = block_at(s, d_weights, l);
    const float* in = kept.inputs + l * kept.layer_stride;
    const float* mix = kept.mixed + l * kept.layer_stride;
    const float* stats = kept.statistics + l * kept.stats_stride;
    float* qkv = kept.qkv ? kept.qkv + 3 * l * all : scratch;
    // The MLP and the output projection.
    for (int t = 0; t < N; t += TILE) {
      const int rows = N - t < TILE ? N - t : TILE;
      const long at = long(t) * D;
      float* x1 = kept.middle ? kept.middle + l * all + at : again;
      float* u = kept.u ? kept.u + 4 * (l * all + at) : again + TILE * D;
      float* moments = kept.moments ? kept.moments_at(l, 1, N, t) : own;
      if (kept.u)
        norm_again(rows, D, x1, moments, w.norm2_w, w.norm2_b, h);
      else
        up_forward(rows, D, w, wt, mix + at, in + at, x1, h, u, moments);
      gemm(rows, 4 * D, D, dx + at, w.down_w, du);
      for (int i = 0; i < rows * 4 * D; i += VW) {
        vf value, slope;
        gelu_both(load(u + i), value, slope);
        store(u + i, value);
        store(du + i, load(du + i) * slope);
      }
      gemm_transposed(D, 4 * D, rows, dx + at, u, g.down_w);
      add_column_sums(rows, D, dx + at, g.down_b);
      gemm_transposed(4 * D, D, rows, du, h, g.up_w);
      add_column_sums(rows, 4 * D, du, g.up_b);
      gemm(rows, D, 4 * D, du, w.up_w, dh);
      norm_backward(rows, D, x1, moments, w.norm2_w, dh, dx + at, g.norm2_w, g.norm2_b,
                    Into::add);
      gemm_transposed(D, D, rows, dx + at, mix + at, g.out_w);
      add_column_sums(rows, D, dx + at, g.out_b);
      gemm(rows, D, D, dx + at, w.out_w, d_mix + at);
    }
    if (!kept.qkv) qkv_forward(N, D, w, wt, in, qkv, tile);
    with_head_width(d, [&](auto width) {
      for (int head = 0; head < H; ++head)
        for (int a = 0; a < streams; ++a) {
          const int q = head * d, k = D + head * d, v = 2 * D + head * d;
          const float* of_head = stats + (2L * H * a + head) * T;
          float* to = d_qkv + 3 * a * stream;
          attention_backward<width>(T, qkv + 3 * a * stream + q, qkv + k, qkv + v, 3 * D,
                                    mix + a * stream + q, d_mix + a * stream + q, D, of_head,
                                    of_head + long(H) * T, to + q, to + k, to + v, 3 * D,
                                    work.attention);
        }
    });
    if (streams == 2) give_to_context(T, D, d_qkv);
    for (int t = 0; t < N; t += TILE) {
      const int rows = N - t < TILE ? N - t : TILE;
      const long at = long(t) * D;
      float* moments = kept.moments ? kept.moments_at(l, 0, N, t) : own;
      if (kept.moments)
        norm_again(rows, D, in + at, moments, w.norm1_w, w.norm1_b, h);
      else
        norm_forward(rows, D, in + at, w.norm1_w, w.norm1_b, h, moments);
      gemm_transposed(3 * D, D, rows, d_qkv + 3 * at, h, g.qkv_w);
      add_column_sums(rows, 3 * D, d_qkv + 3 * at, g.qkv_b);
      gemm(rows, D, 3 * D, d_qkv + 3 * at, w.qkv_w, dh);
      norm_backward(rows, D, in + at, moments, w.norm1_w, dh, dx + at, g.norm1_w, g.norm1_b,
                    Into::add);
    }
  }
  for (long from = 0; from < streams * stream; from += stream)  // positions
    for (long i = 0; i < stream; i += VW)
      store(d_weights + i, load(d_weights + i) + load(dx + from + i));
}

// ---- One token of several sequences ------------------------------------------------------------

// Floats of a sequence's cache: (layers, 2, heads, capacity / BLOCK, head width, BLOCK), of which the 2
// are keys and values.
inline long cache_size(const Shape& s, long capacity) { return 2L * s.layers * s.width * capacity; }

// Keys and values (2, D) of a sequence's position n into a layer's cache.
template <int d>
void remember(int n, int H, long capacity, const float* kv, float* cache) {
  for (int head = 0; head < 2 * H; ++head, kv += d, cache += d * capacity)
    for (int i = 0; i < d; ++i) cache[cache_offset<d>(n) + i * BLOCK] = kv[i];
}

// One layer, for the next token of `rows` sequences and, if `asked`, a query to each: x is (rows, D) or
// (2 rows, D), overwritten. The context's tokens enter the cache, which points to the first sequence;
// queries do not. In the last layer that is all that tokens with a query beside them are good for. FAR:
// see attention_decode.
template <bool FAR>
void tokens_forward(const Shape& s, const float* weights, const float* transposed, int rows,
                    bool asked, int n, long capacity, float* x, float* cache, int layer,
                    Workspace& work) {
  const int D = s.width, H = s.heads, all = asked ? 2 * rows : rows;
  const auto w = block_at(s, weights, layer);
  const auto wt = block_at(s, transposed, layer);
  float* h = work.tile.get(9L * all * D);
  float *q = h + all * D, *kv = q + all * D, *mix = kv + 2L * all * D, *u = mix + all * D;
  float* scratch = work.attention.get(2L * capacity);
  norm_forward(all, D, x, w.norm1_w, w.norm1_b, h);
  const int done = asked && layer == s.layers - 1 ? rows : 0, tokens = all - done;
  gemm_any<false>(rows, 2 * D, D, h, D, wt.qkv_w + D, 3 * D, kv, 2 * D, nullptr,
                  w.qkv_b + D);
  x += done * D, h += done * D;
  gemm_any<false>(tokens, D, D, h, D, wt.qkv_w, 3 * D, q, D, nullptr, w.qkv_b);
  const long sequence = cache_size(s, capacity), half = long(D) * capacity;
  cache += 2 * layer * half;
  with_head_width(s.head_width(), [&](auto width) {
    constexpr int d = decltype(width)::value;
    const float scale = LOG2E / std::sqrt(float(d));
    for (int i = 0; i < tokens * D; i += VW) store(q + i, load(q + i) * scale);
    for (int r = 0; r < rows; ++r, cache += sequence) {
      remember<d>(n, H, capacity, kv + 2L * r * D, cache);
      for (int head = 0; head < H; ++head) {
        const float *keys = cache + head * d * capacity, *values = keys + half;
        const float* next = head + 1 < H ? keys + d * capacity : cache + (r + 1 < rows ? sequence : 0);
        const int one = r * D + head * d, other = (rows + r) * D + head * d;
        if (tokens > rows)
          attention_decode<d, 2, FAR>(n + 1, {q + one, q + other}, keys, values, next,
                                      {mix + one, mix + other}, scratch);
        else
          attention_decode<d, 1, FAR>(n + 1, {q + one}, keys, values, next, {mix + one}, scratch);
      }
    }
  });
  up_forward(tokens, D, w, wt, mix, x, x, h, u);
  for (int i = 0; i < tokens * 4 * D; i += VW) store(u + i, gelu(load(u + i)));
  gemm(tokens, D, 4 * D, u, wt.down_w, x, Into::add, w.down_b);
}

}  // namespace mithridate::MITHRIDATE_ISA
