// Bayes' rule for linear rewards that may be poisoned (agents/mixture_linear.py), one task at a time: what
// the pulled arm's reward says of its mean, which weights that speaks for, and the next arm.
#pragma once

#include "mixture.hpp"

namespace mithridate::MITHRIDATE_ISA {

// log2(1 + t) for 0 <= t <= 1, absolute error below 4e-7.
inline vf log2_above_one(vf t) {
  vf p = splat(-1.237062402e-2f);
  p = p * t + 6.378752546e-2f;
  p = p * t - 1.555998622e-1f;
  p = p * t + 2.561796237e-1f;
  p = p * t - 3.534546503e-1f;
  p = p * t + 4.800737422e-1f;
  p = p * t - 7.213107222e-1f;
  p = p * t + 1.442694767f;
  return p * t;
}

// log2(x) for normal x > 0.
inline vf log2_of(vf x) {
  const vi bits = (vi)x;
  const vi exponent = (bits >> 23) - 127;
  const vf mantissa = (vf)((bits & 0x007fffff) | 0x3f800000);
  const vf found = __builtin_convertvector(exponent, vf) + log2_above_one(mantissa - 1.0f);
  return x == x ? found : x;
}

// log2(2^a + 2^b).
inline vf log2_of_sum(vf a, vf b) {
  const vf apart = (vf)((vi)(a - b) | INT32_MIN);  // minus its absolute value
  return max(a, b) + log2_above_one(exp2(apart));
}

// An arm's table (O, C) learns of a reward. What it now says of each column, offsets summed out, less what
// it said before, is in `news`.
inline void learn_columns(const LinearGrid& m, int64_t arm, float reward, float* table,
                          float* marginal, float* news) {
  const int C = m.columns, O = m.offsets, first = m.first_column[arm];
  for (int c = first; c < first + m.column_count[arm]; c += VW) {
    const vf away = (reward - load(m.grid + c)) * m.scale, far = away * m.squeeze;
    const vf clean = m.log_clean - away * away;
    vf most = splat(-INFINITY);
    for (int o = 0; o < O; ++o) {
      const vf moved = far - m.moves[o];
      float* to = table + long(o) * C + c;
      const vf value = load(to) + log2_of_sum(clean, m.log_poisoned - moved * moved);
      store(to, value);
      most = max(most, value);
    }
    vf sum = vf{};
    for (int o = 0; o < O; ++o)
      sum += exp2_table(max(splat(-126.0f), load(table + long(o) * C + c) - most));
    const vf says = most + log2_of(sum);
    store(news + c, (says - load(marginal + c)) * LN2);
    store(marginal + c, says);
  }
}

// Between the entries of `news`, at the places of VW points.
inline vf between(const float* news, const int32_t* below, const float* beyond, int32_t first) {
  vf low, high;
#if MITHRIDATE_VW == 16
  if (first >= 0) {
    const vi place = (vi)_mm512_loadu_si512(below) - first;
    const __m512 near = (__m512)load(news + first);
    low = (vf)_mm512_permutexvar_ps((__m512i)place, near);
    high = (vf)_mm512_permutexvar_ps((__m512i)(place + 1), near);
    return low + load(beyond) * (high - low);
  }
#elif defined(__AVX2__) && MITHRIDATE_VW == 8
  if (first >= 0) {
    const vi place = (vi)_mm256_loadu_si256(reinterpret_cast<const __m256i*>(below)) - first;
    const __m256 near = (__m256)load(news + first), next = (__m256)load(news + first + VW);
    const auto look_up = [&](vi at) {
      const __m256 one = _mm256_permutevar8x32_ps(near, (__m256i)at);
      const __m256 other = _mm256_permutevar8x32_ps(next, (__m256i)at);
      return (vf)_mm256_blendv_ps(one, other, (__m256)(at << 28));  // from 8 on, the other
    };
    low = look_up(place), high = look_up(place + 1);
    return low + load(beyond) * (high - low);
  }
#endif
  (void)first;
  for (int i = 0; i < VW; ++i) low[i] = news[below[i]], high[i] = news[below[i] + 1];
  return low + load(beyond) * (high - low);
}

// Task b was paid a reward by an arm.
__attribute__((noinline)) inline void linear_learn(const LinearGrid& m, const LinearBeliefs& s,
                                                   long b, int64_t arm, float reward) {
  const long row = b * m.arms + arm, G = m.points;
  float* news = mixture_scratch(m.columns + PADDING);
  learn_columns(m, arm, reward, s.tables + row * m.offsets * m.columns,
                s.marginals + row * m.columns, news);
  const int32_t* below = m.below + arm * G;
  const float* beyond = m.beyond + arm * G;
  const int32_t* first = m.first + arm * (G / PADDING);
  float* known = s.logs + b * G;
  for (long g = 0; g < G; g += VW)
    store(known + g, load(known + g) + between(news, below + g, beyond + g, first[g / PADDING]));
}

constexpr float NEGLIGIBLE = 40.0f;  // 2^-40 of the largest

// Sums of R rows (G) times the shares of some vectors of points.
template <int R>
inline void add_rows(const float* rows, long G, long count, const long* where, const float* share,
                     float* found) {
  vf sums[R] = {};
  for (long i = 0; i < count; ++i) {
    const vf weight = load(share + i * VW);
    for (int r = 0; r < R; ++r) sums[r] += weight * load(rows + r * G + where[i]);
  }
  for (int r = 0; r < R; ++r) found[r] = hsum(sums[r]);
}

// What the rows (K, G) are on average. Points below 2^-floor of the largest count for nothing.
inline void averages(const LinearGrid& m, const float* known, float floor, float* found) {
  const long G = m.points;
  const int K = m.rows;
  float* share = mixture_scratch(G);
  thread_local std::vector<long> where;
  where.resize(G / VW);
  vf top = load(known);
  for (long g = VW; g < G; g += VW) top = max(top, load(known + g));
  const float most = hmax(top);
  long count = 0;
  vf sum = vf{};
  for (long g = 0; g < G; g += VW) {
    const vf power = (load(known + g) - most) * LOG2E;
    if (all_below(power, -floor)) continue;
    const vf weight = power < -126.0f ? vf{} : exp2(power);
    sum += weight;
    store(share + count * VW, weight);
    where[count++] = g;
  }
  const float* rows = m.row;
  int k = 0;
  for (; k + 6 <= K; k += 6) add_rows<6>(rows + k * G, G, count, where.data(), share, found + k);
  for (; k + 2 <= K; k += 2) add_rows<2>(rows + k * G, G, count, where.data(), share, found + k);
  if (k < K) add_rows<1>(rows + k * G, G, count, where.data(), share, found + k);
  const float total = hsum(sum);
  for (k = 0; k < K; ++k) found[k] /= total;
}

// The largest of A values; of equal ones, a uniform number picks.
inline int64_t largest(int A, const float* values, float uniform) {
  float most = values[0];
  for (int a = 1; a < A; ++a) most = values[a] > most ? values[a] : most;
  int ties = 0;
  for (int a = 0; a < A; ++a) ties += values[a] == most;
  int left = int(uniform * float(ties));
  for (int a = 0; a < A; ++a)
    if (values[a] == most && left-- == 0) return a;
  return 0;
}

// A draw from probabilities (A,), sharpened.
inline int64_t drawn(int A, float* shares, float uniform, float temperature) {
  float most = 0.0f, total = 0.0f;
  for (int a = 0; a < A; ++a) most = std::max(most, shares[a]);
  for (int a = 0; a < A; ++a) {
    if (temperature != 1.0f) shares[a] = std::pow(shares[a] / most, 1.0f / temperature);
    total += shares[a];
  }
  float below = 0.0f;
  int64_t action = 0;
  for (int a = 0; a < A - 1; ++a) {
    below += shares[a];
    action += uniform * total >= below;
  }
  return action;
}

// An arm for a task. `factor`: of the standard deviation, or the temperature.
__attribute__((noinline)) inline int64_t linear_choose(const LinearGrid& m, const float* known,
                                                       float uniform, float factor) {
  const int A = m.arms, D = m.features;
  float* found = workspace().logits.get(m.rows + A);
  if (!D) {
    averages(m, known, NEGLIGIBLE * std::max(1.0f, factor), found);
    return drawn(A, found, uniform, factor);
  }
  averages(m, known, NEGLIGIBLE, found);
  float* bounds = found + m.rows;
  for (int a = 0; a < A; ++a) {
    const float* x = m.arm + long(a) * m.rows;  // features, then their products
    float mean = 0.0f, square = 0.0f;
    for (int k = 0; k < D; ++k) mean += x[k] * found[k];
    for (int k = D; k < m.rows; ++k) square += x[k] * found[k];
    const float variance = square - mean * mean;
    bounds[a] = mean + factor * std::sqrt(variance < 0.0f ? 0.0f : variance);
  }
  return largest(A, bounds, uniform);
}

inline void linear_observe_all(const LinearGrid& m, const LinearBeliefs& s, long B,
                               const int64_t* actions, const float* rewards, int threads) {
  over_tasks(B, threads, [&](long b) { linear_learn(m, s, b, actions[b], rewards[b]); });
}

inline void linear_expected_all(const LinearGrid& m, long B, const float* logs, float* found,
                                int threads) {
  over_tasks(B, threads,
             [&](long b) { averages(m, logs + b * m.points, NEGLIGIBLE, found + b * m.rows); });
}

inline void linear_act_all(const LinearGrid& m, long B, const float* logs, const float* uniforms,
                           float factor, int64_t* actions, int threads) {
  over_tasks(B, threads, [&](long b) {
    actions[b] = linear_choose(m, logs + b * m.points, uniforms[b], factor);
  });
}

inline void linear_play_all(const LinearGrid& m, const LinearBeliefs& s, const World& world, long B,
                            const float* uniforms, float factor, int threads) {
  const int T = world.steps;
  parallel_for(threads, B, [&](long b) {
    int64_t state = 0;
    for (int t = 0; t < T; ++t) {
      int64_t action;
      {
        const FlushTiny guard;
        action = linear_choose(m, s.logs + b * m.points, uniforms[b * T + t], factor);
      }
      const float reward = world.step(b, t, action, state);
      const FlushTiny guard;
      linear_learn(m, s, b, action, reward);
    }
  });
}

}  // namespace mithridate::MITHRIDATE_ISA
