// Posterior sampling of two weights that knows the attack (agents/posterior_oracle.py), one task at a time:
// a grid around where they may be, laid anew whenever there are twice as many rewards.
#pragma once

#include "linear_grid.hpp"

namespace mithridate::MITHRIDATE_ISA {

constexpr long FACTORS = 64;  // of at most 2 each, whose product is taken before its logarithm

// A reward, as a grid sees it: squares of what is linear in the place are what densities lose.
struct Sight {
  float clean, poisoned;       // logarithms at the peaks
  float near, by_row, by_column;
  float away, far_row, far_column;
};

// Evidence is (x0, x1, reward, clean, shift, scale, poisoned, 0); a place is a centre and a root of the
// covariance (c0, c1, r00, r10, r11).
inline Sight seen_from(const OracleGrid& m, const float* at, const float* e) {
  const float left = e[2] - (e[0] * at[0] + e[1] * at[1]);
  const float row = e[0] * at[2] + e[1] * at[3], column = e[1] * at[4];
  return {e[3],        e[6],
          left * m.scale, row * m.scale, column * m.scale,
          (left - e[4]) * e[5], row * e[5], column * e[5]};
}

// What so many rewards say is added to the logarithms (N, row).
inline void add_evidence(const OracleGrid& m, const float* at, const float* evidence, long count,
                         float* logs) {
  thread_local std::vector<Sight> sights;
  sights.resize(count);
  for (long r = 0; r < count; ++r) sights[r] = seen_from(m, at, evidence + r * EVIDENCE);
  float* near = mixture_scratch(2 * count);
  float* away = near + count;
  for (int i = 0; i < m.axis; ++i) {
    for (long r = 0; r < count; ++r) {
      near[r] = sights[r].near - sights[r].by_row * m.line[i];
      away[r] = sights[r].away - sights[r].far_row * m.line[i];
    }
    for (int j = 0; j < m.row; j += VW) {
      const vf place = load(m.line + j);
      vf sum = load(logs + i * m.row + j);
      for (long r = 0; r < count;) {
        vf product = splat(1.0f);
        for (const long stop = std::min(count, r + FACTORS); r < stop; ++r) {
          const vf one = near[r] - sights[r].by_column * place;
          const vf other = away[r] - sights[r].far_column * place;
          const vf clean = sights[r].clean - one * one;
          const vf poisoned = sights[r].poisoned - other * other;
          const vf apart = (vf)((vi)(clean - poisoned) | INT32_MIN);
          sum += max(clean, poisoned);
          product += product * exp2_table(max(splat(-126.0f), apart));
        }
        sum += log2_of(product);
      }
      store(logs + i * m.row + j, sum);
    }
  }
}

// Shares (N, row), up to a factor, and their sums along rows.
inline void oracle_shares(const OracleGrid& m, const float* logs, float* share, double* sums) {
  const long all = long(m.axis) * m.row;
  vf top = load(logs);
  for (long g = VW; g < all; g += VW) top = max(top, load(logs + g));
  const float most = hmax(top);
  for (int i = 0; i < m.axis; ++i) {
    vf sum = vf{};
    for (long g = long(i) * m.row; g < long(i + 1) * m.row; g += VW) {
      const vf found = exp2_table(max(splat(-126.0f), load(logs + g) - most));
      store(share + g, found);
      sum += found;
    }
    sums[i] = hsum(sum);
  }
}

inline void lay_prior(const OracleGrid& m, const float* at, float* logs) {
  for (int i = 0; i < m.axis; ++i)
    for (int j = 0; j < m.row; ++j) {
      const float a = at[0] + at[2] * m.line[i];
      const float b = at[1] + at[3] * m.line[i] + at[4] * m.line[j];
      logs[i * m.row + j] = j < m.axis ? -(a * a + b * b) * LOG2E : -INFINITY;
    }
}

// Moves a place to where the weights are, by their mean and covariance.
inline void lay_anew(const OracleGrid& m, const float* logs, float* at) {
  float* share = mixture_scratch(long(m.axis) * m.row);
  thread_local std::vector<double> sums;
  sums.resize(m.axis);
  oracle_shares(m, logs, share, sums.data());
  double total = 0, x = 0, y = 0, xx = 0, xy = 0, yy = 0;
  for (int i = 0; i < m.axis; ++i) {
    vf first = vf{}, second = vf{};
    for (int j = 0; j < m.row; j += VW) {
      const vf moment = load(share + long(i) * m.row + j) * load(m.line + j);
      first += moment;
      second += moment * load(m.line + j);
    }
    const double z = m.line[i], along = hsum(first);
    total += sums[i], x += z * sums[i], xx += z * z * sums[i];
    y += along, xy += z * along, yy += hsum(second);
  }
  x /= total, y /= total;
  const double cell = double(m.step) * m.step / 12;  // no narrower than what this grid can tell apart
  xx = xx / total - x * x + cell, xy = xy / total - x * y, yy = yy / total - y * y + cell;
  const double a = at[2], b = at[3], c = at[4];
  at[0] += float(a * x), at[1] += float(b * x + c * y);
  const double c00 = a * a * xx, c01 = a * b * xx + a * c * xy;
  const double c11 = b * b * xx + 2 * b * c * xy + c * c * yy;
  const double root = std::sqrt(c00), below = c01 / root;
  at[2] = float(root), at[3] = float(below), at[4] = float(std::sqrt(c11 - below * below));
}

// Reward number n of task b. The attack on an arm: (clean, shift, scale, poisoned).
__attribute__((noinline)) inline void oracle_learn(const OracleGrid& m, const OracleBeliefs& s,
                                                   long b, long n, int64_t arm, float reward,
                                                   const float* attack) {
  float* logs = s.logs + b * m.axis * m.row;
  float* at = s.places + b * PLACE;
  float* seen = s.seen + b * s.room * EVIDENCE;
  const float* x = m.features + arm * 2;
  const float evidence[EVIDENCE] = {x[0],      x[1],      reward,    attack[0],
                                    attack[1], attack[2], attack[3], 0.0f};
  std::copy(evidence, evidence + EVIDENCE, seen + n * EVIDENCE);
  add_evidence(m, at, seen + n * EVIDENCE, 1, logs);
  const long number = n + 1;
  if (number < 4 || number & (number - 1)) return;
  lay_anew(m, logs, at);
  lay_prior(m, at, logs);
  add_evidence(m, at, seen, number, logs);
}

// An arm for task b, by three uniform numbers: which point, and where around it.
__attribute__((noinline)) inline int64_t oracle_choose(const OracleGrid& m, const OracleBeliefs& s,
                                                       long b, const float* uniforms) {
  float* share = mixture_scratch(long(m.axis) * m.row);
  thread_local std::vector<double> sums;
  sums.resize(m.axis);
  oracle_shares(m, s.logs + b * m.axis * m.row, share, sums.data());
  double left = 0;
  for (int i = 0; i < m.axis; ++i) left += sums[i];
  left *= uniforms[0];
  int i = 0, j = 0;
  while (i < m.axis - 1 && left > sums[i]) left -= sums[i++];
  const float* row = share + long(i) * m.row;
  while (j < m.axis - 1 && left > row[j]) left -= row[j++];
  const float* at = s.places + b * PLACE;
  const float x = m.line[i] + m.step * (uniforms[1] - 0.5f);
  const float y = m.line[j] + m.step * (uniforms[2] - 0.5f);
  const float one = at[0] + at[2] * x, other = at[1] + at[3] * x + at[4] * y;
  int64_t best = 0;
  float most = -INFINITY;
  for (int a = 0; a < m.arms; ++a) {
    const float worth = m.features[2 * a] * one + m.features[2 * a + 1] * other;
    if (worth > most) most = worth, best = a;
  }
  return best;
}

inline void oracle_observe_all(const OracleGrid& m, const OracleBeliefs& s, long B, long n,
                               const int64_t* actions, const float* rewards, const float* attack,
                               int threads) {
  over_tasks(B, threads, [&](long b) {
    oracle_learn(m, s, b, n, actions[b], rewards[b], attack + (b * m.arms + actions[b]) * ATTACK);
  });
}

inline void oracle_act_all(const OracleGrid& m, const OracleBeliefs& s, long B,
                           const float* uniforms, int64_t* actions, int threads) {
  over_tasks(B, threads,
             [&](long b) { actions[b] = oracle_choose(m, s, b, uniforms + b * LUCK); });
}

inline void oracle_play_all(const OracleGrid& m, const OracleBeliefs& s, const World& world, long B,
                            long n, const float* uniforms, const float* attack, int threads) {
  const int T = world.steps;
  parallel_for(threads, B, [&](long b) {
    int64_t state = 0;
    for (int t = 0; t < T; ++t) {
      int64_t action;
      {
        const FlushTiny guard;
        action = oracle_choose(m, s, b, uniforms + (b * T + t) * LUCK);
      }
      const float reward = world.step(b, t, action, state);
      const FlushTiny guard;
      oracle_learn(m, s, b, n + t, action, reward, attack + (b * m.arms + action) * ATTACK);
    }
  });
}

}  // namespace mithridate::MITHRIDATE_ISA
