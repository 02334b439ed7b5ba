// Loss and gradients: cross-entropy of a linear head, alone and behind a whole transformer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "pool.hpp"
#include "transformer.hpp"

namespace mithridate::MITHRIDATE_ISA {

// A sum of gradients over `count` things: each group has a part of them and a sum of its own, which
// `add(group, i, sum)` adds to. All sums have `size` floats, a multiple of VW.
template <class Add>
void sum_by_groups(int threads, long count, long size, float* total, Add add) {
  const int groups = int(std::min<long>(count, GROUPS));
  float* partial = workspace().partial.get(size * groups);
  parallel_for(threads, groups, [&](long g) {
    const FlushTiny guard;
    std::memset(partial + g * size, 0, sizeof(float) * size);
    for (long i = g * count / groups; i < (g + 1) * count / groups; ++i)
      add(int(g), i, partial + g * size);
  });
  constexpr long STRETCH = 8192;
  parallel_for(threads, (size + STRETCH - 1) / STRETCH, [&](long stretch) {
    const long end = std::min(size, (stretch + 1) * STRETCH);
    for (long i = stretch * STRETCH; i < end; i += VW) {
      vf sum = vf{};
      for (int g = 0; g < groups; ++g) sum += load(partial + g * size + i);
      store(total + i, sum);
    }
  });
}

// Of one row x (D): its share in the mean over N rows, and dx; gw (A, D) and gb (padded A) accumulate.
inline double cross_entropy_row(long N, int D, int A, const float* x, const float* w, const float* b,
                                int64_t label, float* dx, float* gw, float* gb, float* logits) {
  const int padded = round_up(A, VW);
  const vi lanes = lane_index();
  for (int a = 0; a < A; ++a) {
    vf sum = vf{};
    for (int d = 0; d < D; d += VW) sum += load(x + d) * load(w + long(a) * D + d);
    logits[a] = (hsum(sum) + b[a]) * LOG2E;
  }
  for (int a = A; a < padded; ++a) logits[a] = MINUS_INFINITY;
  vf largest = load(logits);
  for (int a = VW; a < padded; a += VW) largest = max(largest, load(logits + a));
  const float m = hmax(largest), chosen = logits[label];
  vf sum = vf{};
  for (int a = 0; a < padded; a += VW) {
    // Exact zeros in the padding: tiny numbers would become subnormal below, which is slow.
    const vf p = lanes + a < A ? exp2(load(logits + a) - m) : vf{};
    store(logits + a, p);
    sum += p;
  }
  const float total = hsum(sum), share = 1.0f / (total * N);
  for (int a = 0; a < padded; a += VW) store(logits + a, load(logits + a) * share);
  logits[label] -= 1.0f / N;
  for (int a = 0; a < padded; a += VW) store(gb + a, load(gb + a) + load(logits + a));
  for (int d = 0; d < D; d += VW) {
    const vf value = load(x + d);
    vf gradient = vf{};
    for (int a = 0; a < A; ++a) {
      float* to = gw + long(a) * D + d;
      store(to, load(to) + logits[a] * value);
      gradient += logits[a] * load(w + long(a) * D + d);
    }
    store(dx + d, gradient);
  }
  return std::log(total) + (m - chosen) * LN2;
}

inline double mean(const std::vector<double>& losses, long N) {
  double sum = 0.0;
  for (double loss : losses) sum += loss;
  return sum / N;
}

inline double cross_entropy(long N, int D, int A, const float* x, const float* w, const float* b,
                            const int64_t* labels, float* dx, float* dw, float* db, int threads) {
  const long size = long(A) * D, padded = round_up(A, PADDING);
  std::vector<double> losses(GROUPS, 0.0);
  std::vector<float> total(size + padded);  // dw, db
  sum_by_groups(threads, N, size + padded, total.data(), [&](int group, long n, float* gradient) {
    float* logits = workspace().logits.get(padded);
    losses[group] += cross_entropy_row(N, D, A, x + n * D, w, b, labels[n], dx + n * D, gradient,
                                       gradient + size, logits);
  });
  std::copy_n(total.data(), size, dw);
  std::copy_n(total.data() + size, A, db);
  return mean(losses, N);
}

// The tokens (T, D) of sequence b, without positions, and what their gradients are to the rows.
inline void tokens_of_rows(const Tokens& tokens, int D, int T, long b, float* x) {
  const float *reward = tokens.rows + D, *actions = reward + D;
  const long first = b * (T - 1);
  std::copy_n(tokens.rows, D, x);
  for (int t = 0; t < T - 1; ++t) {
    const float* row = actions + tokens.actions[first + t] * D;
    x += D;
    for (int d = 0; d < D; d += VW)
      store(x + d, load(row + d) + tokens.rewards[first + t] * load(reward + d));
  }
}

inline void rows_backward(const Tokens& tokens, int D, int T, long b, const float* dx,
                          float* d_rows) {
  float *d_reward = d_rows + D, *d_actions = d_reward + D;
  const long first = b * (T - 1);
  auto add = [D](float factor, const float* from, float* to) {
    for (int d = 0; d < D; d += VW) store(to + d, load(to + d) + factor * load(from + d));
  };
  add(1.0f, dx, d_rows);
  for (int t = 0; t < T - 1; ++t) {
    dx += D;
    add(1.0f, dx, d_actions + tokens.actions[first + t] * D);
    add(tokens.rewards[first + t], dx, d_reward);
  }
}

// Room for all that a sequence keeps, after `more` floats for something else.
inline Kept keep_all(const Shape& s, int T, int streams, long more, Workspace& work) {
  const long sequence = long(T) * streams * s.width, stats = 2L * s.heads * T * streams;
  const long all = s.layers * sequence;
  float* p = work.kept.get(more + 10 * all + sequence + s.layers * stats) + more;
  auto take = [&p](long n) { return (p += n) - n; };
  Kept kept{take(all + sequence), take(all), nullptr, sequence, stats};
  kept.qkv = take(3 * all), kept.middle = take(all), kept.u = take(4 * all);
  kept.statistics = take(s.layers * stats);
  return kept;
}

inline double learn(const Shape& s, const float* weights, int B, int T, int streams,
                    const Tokens& tokens, int A, const float* head, const float* bias,
                    const int64_t* labels, float* gradients, int threads) {
  const int D = s.width;
  const long stream = long(T) * D, sequence = streams * stream, N = long(B) * T;
  const long head_at = s.size(), rows_at = head_at + long(A) * D;
  const long bias_at = rows_at + (tokens.rows ? long(A + 2) * D : 0);
  float* transposed = workspace().transposed.get(s.size());
  transpose_weights(s, weights, transposed);
  std::vector<double> losses(GROUPS, 0.0);
  sum_by_groups(threads, B, tokens.size(s, A), gradients, [&](int group, long b, float* g) {
    Workspace& work = workspace();
    const Kept kept = keep_all(s, T, streams, 3 * sequence, work);
    float* y = kept.inputs - 3 * sequence;
    float *dy = y + sequence, *dx = dy + sequence;
    const float* x = dx;
    if (tokens.rows)
      tokens_of_rows(tokens, D, T, b, dx);
    else
      x = tokens.x + b * sequence, dx = tokens.dx + b * sequence;
    sequence_forward(s, weights, transposed, T, streams, x, y, kept, work);
    if (streams == 2) std::fill_n(dy, stream, 0.0f);
    float* logits = work.logits.get(round_up(A, PADDING));
    double loss = 0.0;
    for (int t = 0; t < T; ++t) {
      const long at = sequence - stream + long(t) * D;
      loss += cross_entropy_row(N, D, A, y + at, head, bias, labels[b * T + t], dy + at, g + head_at,
                                g + bias_at, logits);
    }
    losses[group] += loss;
    sequence_backward(s, weights, transposed, T, streams, dy, kept, dx, g, work);
    if (tokens.rows) rows_backward(tokens, D, T, b, dx, g + rows_at);
  });
  return mean(losses, N);
}

}  // namespace mithridate::MITHRIDATE_ISA
