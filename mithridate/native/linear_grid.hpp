// Bayes' rule for linear rewards that may be poisoned (agents/mixture_linear.py), one task at a time.
#pragma once

#include "mixture.hpp"

namespace mithridate::MITHRIDATE_ISA {

// log2(1 + t) for 0 <= t <= 1, by the series of the inverse hyperbolic tangent.
inline vf log2_above_one(vf t) {
  const vf s = t / (2.0f + t), q = s * s;
  vf p = splat(1.0f / 13);
  p = p * q + 1.0f / 11;
  p = p * q + 1.0f / 9;
  p = p * q + 1.0f / 7;
  p = p * q + 1.0f / 5;
  p = p * q + 1.0f / 3;
  p = p * q + 1.0f;
  return 2.0f * LOG2E * s * p;
}

// log2(x) for normal x > 0.
inline vf log2_of(vf x) {
  const vi bits = (vi)x;
  const vi exponent = (bits >> 23) - 127;
  const vf mantissa = (vf)((bits & 0x007fffff) | 0x3f800000);
  const vf found = __builtin_convertvector(exponent, vf) + log2_above_one(mantissa - 1.0f);
  return x == x ? found : x;
}

// Tables are (O, M), in powers of two.
inline void linear_learn(const LinearGrid& m, float* tables, float* said, float* logs, long b,
                         int64_t arm, float reward) {
  const int M = m.values, O = m.offsets;
  const long G = m.points, row = b * m.arms + arm;
  float* table = tables + row * O * M;
  float* marginal = mixture_scratch(2L * M + 2);
  float* slope = marginal + M + 1;
  const float squeeze = 1.0f / m.ratio;
  const vi all = vi{} == 0, late = lane_index() >= VW - M % VW;
  along(M, [&](int i) {
    const vi fresh = i % VW ? late : all;
    const vf away = (reward - load(m.grid + i)) / m.noise;
    const vf clean = away * away * (-0.5f * LOG2E) + m.log_clean;
    vf most = splat(-INFINITY);
    for (int o = 0; o < O; ++o) {
      const vf moved = (away - m.moves[o]) * squeeze;
      const vf poisoned = moved * moved * (-0.5f * LOG2E) + m.log_poisoned;
      const vf apart = clean - poisoned;
      const vf more = max(clean, poisoned), less = apart > 0.0f ? -apart : apart;
      const vf said_now = more + log2_above_one(exp2(less));
      const vf value = load(table + long(o) * M + i) + (fresh ? said_now : vf{});
      store(table + long(o) * M + i, value);
      most = max(most, value + m.log_share[o]);
    }
    vf sum = vf{};
    for (int o = 0; o < O; ++o)
      sum += exp2(load(table + long(o) * M + i) + m.log_share[o] - most);
    store(marginal + i, (most + log2_of(sum)) * LN2);
  });
  for (int i = 0; i + 1 < M; ++i) slope[i] = marginal[i + 1] - marginal[i];
  const int32_t* below = m.below + arm * G;
  const float* beyond = m.beyond + arm * G;
  float* before = said + row * G;
  float* known = logs + b * G;
  for (long g = 0; g < G; ++g) {
    const float says = marginal[below[g]] + beyond[g] * slope[below[g]];
    known[g] += says - before[g];
    before[g] = says;
  }
}

inline void linear_observe_all(const LinearGrid& m, float* tables, float* said, float* logs, long B,
                               const int64_t* actions, const float* rewards, int threads) {
  over_tasks(B, threads, [&](long b) {
    linear_learn(m, tables, said, logs, b, actions[b], rewards[b]);
  });
}

inline void expectations(long B, long G, int K, const float* logs, const float* rows, float* found,
                         int threads) {
  over_tasks(B, threads, [&](long b) {
    const float* known = logs + b * G;
    float* share = mixture_scratch(G);
    vf top = load(known);
    along(int(G), [&](int g) { top = max(top, load(known + g)); });
    const float most = hmax(top);
    along(int(G), [&](int g) { store(share + g, exp2((load(known + g) - most) * LOG2E)); });
    const long whole = G / VW * VW;
    const auto add_up = [&](const float* row) {
      vf sum = vf{};
      for (long g = 0; g < whole; g += VW) sum += load(share + g) * load(row + g);
      float rest = 0.0f;
      for (long g = whole; g < G; ++g) rest += share[g] * row[g];
      return hsum(sum) + rest;
    };
    vf sum = vf{};
    for (long g = 0; g < whole; g += VW) sum += load(share + g);
    float total = hsum(sum);
    for (long g = whole; g < G; ++g) total += share[g];
    for (int k = 0; k < K; ++k) found[b * K + k] = add_up(rows + k * G) / total;
  });
}

}  // namespace mithridate::MITHRIDATE_ISA
