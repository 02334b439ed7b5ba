// Loss and gradients: cross-entropy of a linear head, alone and behind a whole transformer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "pool.hpp"
#include "transformer.hpp"

namespace mithridate::MITHRIDATE_ISA {

// Where group g of `groups` begins among `count` things. The last groups have one each, if there are
// enough: whoever is late, for other work on its core, is then not waited for long.
inline long group_begin(long g, long groups, long count) {
  constexpr long SINGLES = GROUPS / 4;
  if (groups < GROUPS) return g;
  const long many = groups - SINGLES;
  return g <= many ? g * (count - SINGLES) / many : count - (groups - g);
}

// A sum of gradients over `count` things: each group has a part of them and a sum of its own, which
// `add(group, i, sum)` adds to. All sums have `size` floats, a multiple of VW.
template <class Add>
void sum_by_groups(int threads, long count, long size, float* total, Add add) {
  const int groups = int(std::min<long>(count, GROUPS));
  float* partial = workspace().partial.get(size * groups);
  parallel_for(threads, groups, [&](long g) {
    const FlushTiny guard;
    std::memset(partial + g * size, 0, sizeof(float) * size);
    const long end = group_begin(g + 1, groups, count);
    for (long i = group_begin(g, groups, count); i < end; ++i)
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

// A linear head's weights (A, D) and bias, and both as the products below take them: in units of log2,
// the weights transposed, (D, padded A), with zeros where there is no action.
struct Head {
  int D, A, padded;
  const float* weights;
  std::vector<float> transposed, bias;

  Head(int D, int A, const float* w, const float* b)
      : D(D), A(A), padded(round_up(A, PADDING)), weights(w), transposed(size_t(D) * padded),
        bias(padded) {
    for (int a = 0; a < A; ++a) {
      bias[a] = b[a] * LOG2E;
      for (int d = 0; d < D; ++d) transposed[size_t(d) * padded + a] = w[long(a) * D + d] * LOG2E;
    }
  }
};

// Of VW rows: logits (VW, padded A) become their gradients, of which each has the `share` given or, if
// there is no label for the row (-1), none. Returns the sum of the losses. A vector has one number for
// each row; `columns` has room for (padded A) of them.
inline double softmax_rows(const Head& head, const int32_t* label, float share, float* logits,
                           float* columns) {
  const int A = head.A, padded = head.padded;
  vi labels;
  std::memcpy(&labels, label, sizeof labels);
  for (int a = 0; a < A; a += 8) rows_to_columns(logits + a, padded, columns + a * VW, VW);
  vf largest = load(columns), total = vf{}, chosen = vf{};
  for (int a = 1; a < A; ++a) largest = max(largest, load(columns + a * VW));
  for (int a = 0; a < A; ++a) {
    const vf score = load(columns + a * VW) - largest, p = exp2(score);
    chosen = labels == a ? score : chosen;
    total += p;
    store(columns + a * VW, p);
  }
  const vf shares = labels >= 0 ? splat(share) : vf{}, factor = shares / total;
  for (int a = 0; a < A; ++a) {
    const vf p = load(columns + a * VW) * factor;
    store(columns + a * VW, labels == a ? p - shares : p);
  }
  for (int a = A; a % 8; ++a) store(columns + a * VW, vf{});
  for (int a = 0; a < A; a += 8) columns_to_rows(columns + a * VW, VW, logits + a, padded);
  store(columns, total), store(columns + VW, chosen);
  double loss = 0.0;
  for (int i = 0; i < VW; ++i)
    if (label[i] >= 0) loss += std::log(columns[i]) - columns[VW + i] * LN2;
  return loss;
}

// Of `rows` rows x (rows, D): their share in the mean over N rows, and dx; gw (A, D) and gb (padded A)
// accumulate.
inline double cross_entropy_rows(long N, const Head& head, int rows, const float* x,
                                 const int64_t* labels, float* dx, float* gw, float* gb,
                                 Scratch& scratch) {
  const int D = head.D, A = head.A, padded = head.padded, whole = round_up(rows, VW);
  float* logits = scratch.get(size_t(whole + VW) * padded);
  float* columns = logits + size_t(whole) * padded;
  gemm(rows, padded, D, x, head.transposed.data(), logits, Into::overwrite, head.bias.data());
  std::fill(logits + size_t(rows) * padded, columns, 0.0f);
  double loss = 0.0;
  for (int t = 0; t < rows; t += VW) {
    int32_t here[VW];
    for (int i = 0; i < VW; ++i) here[i] = t + i < rows ? int32_t(labels[t + i]) : -1;
    loss += softmax_rows(head, here, 1.0f / N, logits + size_t(t) * padded, columns);
  }
  add_column_sums(rows, padded, logits, gb);
  gemm_any<false>(rows, D, A, logits, padded, head.weights, D, dx, D, nullptr, nullptr);
  gemm_any<true>(A, D, rows, logits, padded, x, D, gw, D, gw, nullptr);
  return loss;
}

inline double mean(const std::vector<double>& losses, long N) {
  double sum = 0.0;
  for (double loss : losses) sum += loss;
  return sum / N;
}

inline double cross_entropy(long N, int D, int A, const float* x, const float* w, const float* b,
                            const int64_t* labels, float* dx, float* dw, float* db, int threads) {
  constexpr long ROWS = 64;  // at a time
  const Head head(D, A, w, b);
  const long size = long(A) * D;
  std::vector<double> losses(GROUPS, 0.0);
  std::vector<float> total(size + head.padded);  // dw, db
  sum_by_groups(threads, (N + ROWS - 1) / ROWS, size + head.padded, total.data(),
                [&](int group, long part, float* gradient) {
                  const long n = part * ROWS;
                  losses[group] += cross_entropy_rows(
                      N, head, int(std::min(ROWS, N - n)), x + n * D, labels + n, dx + n * D,
                      gradient, gradient + size, workspace().logits);
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
  const long all = s.layers * sequence, moments = 4L * s.layers * T * streams;
  float* p = work.kept.get(more + 10 * all + sequence + s.layers * stats + moments) + more;
  auto take = [&p](long n) { return (p += n) - n; };
  Kept kept{take(all + sequence), take(all), nullptr, sequence, stats};
  kept.qkv = take(3 * all), kept.middle = take(all), kept.u = take(4 * all);
  kept.statistics = take(s.layers * stats), kept.moments = take(moments);
  return kept;
}

inline double learn(const Shape& s, const float* weights, int B, int T, int streams,
                    const Tokens& tokens, int A, const float* head_weights,
                    const float* bias, const int64_t* labels, float* gradients, int threads) {
  const int D = s.width;
  const Head head(D, A, head_weights, bias);
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
    const long at = sequence - stream;  // the queries, if there are any
    losses[group] += cross_entropy_rows(N, head, T, y + at, labels + b * T, dy + at, g + head_at,
                                        g + bias_at, work.logits);
    sequence_backward(s, weights, transposed, T, streams, dy, kept, dx, g, work);
    if (tokens.rows) rows_backward(tokens, D, T, b, dx, g + rows_at);
  });
  return mean(losses, N);
}

}  // namespace mithridate::MITHRIDATE_ISA
