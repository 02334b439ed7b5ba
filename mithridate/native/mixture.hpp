// Bayes' rule for arms whose rewards may be poisoned (agents/mixture_arms.py): one task at a time. Only
// what the pulled arm's reward changes is computed anew.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "player.hpp"

namespace mithridate::MITHRIDATE_ISA {

constexpr float LEAST = 1e-20f;

// For i = 0, VW, … up to n, which is at least VW. The last ones may come twice.
template <class Each>
inline void along(int n, const Each& each) {
  for (int i = 0; i + VW <= n; i += VW) each(i);
  if (n % VW) each(n - VW);
}

inline vf density(const float* values, float reward, float width) {
  const vf away = (reward - load(values)) / width;
  return exp2(away * away * (-0.5f * LOG2E)) / width;
}

inline float* mixture_scratch(size_t size) {
  thread_local std::vector<float> room;
  if (room.size() < size) room.resize(size);
  return room.data();
}

// One row of a table, for all R spreads: (R, G) times what a reward says, and the sums over R.
inline void multiply_rows(int G, int R, int places, float* table, const float* clean,
                          const float* moved, float* sums, vf& most) {
  const auto times = [&](int g, vi fresh) {
    vf sum = vf{};
    const vf base = load(clean + g);
    for (int r = 0; r < R; ++r) {
      float* to = table + r * G + g;
      const vf factor = base + load(moved + long(r) * places + g);
      const vf value = load(to) * (fresh ? factor : splat(1.0f));
      store(to, value);
      most = max(most, value);
      sum += value;
    }
    store(sums + g, sum);
  };
  for (int g = 0; g + VW <= G; g += VW) times(g, vi{} == 0);
  if (G % VW) times(G - VW, lane_index() >= VW - G % VW);  // the others have had their turn
}

// Task b was paid a reward by an arm.
inline void mixture_learn(const Mixture& m, const Beliefs& s, long b, int64_t arm, float reward) {
  const int G = m.points, E = m.shares, R = m.spreads, W = m.scales, O = m.offsets;
  const int P = G + m.every * (O - 1), padded = m.padded();
  const long row = b * m.arms + arm;
  float* clean = mixture_scratch(2 * padded + 2L * R * P + long(O) * padded);
  float* moved = clean + padded;           // (R, P)
  float* base = moved + long(R) * P;       // (G): `clean` for one share
  float* shifted = base + padded;          // (R, P): `moved` for one share
  float* sums = shifted + long(R) * P;     // (O, G)
  vf top = vf{}, peak = vf{};
  along(G, [&](int g) {
    const vf found = density(m.means + g, reward, m.noise);
    store(clean + g, found), top = max(top, found);
  });
  for (int r = 0; r < R; ++r)
    along(P, [&](int p) {
      const vf found = density(m.places + p, reward, m.widths[r]);
      store(moved + long(r) * P + p, found), peak = max(peak, found);
    });
  const float highest = hmax(top), farthest = hmax(peak);
  float limit = 0.0f;  // no factor is above it
  for (int e = 0; e < E; ++e)
    limit = std::max(limit, (1 - m.eps[e]) * highest + m.eps[e] * farthest + LEAST);
  const float first = 1.0f / limit, second = 1.0f / s.most[row];
  vf most = vf{};
  float* beliefs = s.beliefs + row * E * W * padded;
  float* below = s.below + row * E * W * padded;
  for (int e = 0; e < E; ++e) {
    const float untouched = 1 - m.eps[e], share = m.eps[e];
    along(G, [&](int g) { store(base + g, load(clean + g) * untouched * first * second); });
    along(R * P, [&](int p) {
      store(shifted + p, (load(moved + p) * share + LEAST) * first * second);
    });
    float* table = s.tables + (row * E + e) * O * R * G;
    for (int o = 0; o < O; ++o)
      multiply_rows(G, R, P, table + long(o) * R * G, base, shifted + m.every * o,
                    sums + long(o) * padded, most);
    for (int w = 0; w < W; ++w) {
      const auto expect = [&](const float* prior, float* to) {
        along(G, [&](int g) {
          vf sum = vf{};
          for (int o = 0; o < O; ++o)
            sum += load(prior + long(o) * G + g) * load(sums + long(o) * padded + g);
          store(to + g, sum);
        });
      };
      const long kind = e * W + w;
      expect(m.share + long(w) * O * G, beliefs + kind * padded);
      if (m.rivals) expect(m.rivals + long(w) * O * G, below + kind * padded);
    }
  }
  const float largest = hmax(most);
  s.most[row] = largest;
  const auto normalise = [&](float* belief) {
    vf sum = vf{};
    for (int g = 0; g < padded; g += VW) sum += load(belief + g);
    float total = hsum(sum) / largest;
    if (total < LEAST) total = LEAST;
    const float scale = 1.0f / (total * largest);
    for (int g = 0; g < padded; g += VW) store(belief + g, load(belief + g) * scale);
    return std::log(total);
  };
  for (int i = 0; i < E * W; ++i) {
    float* belief = beliefs + i * padded;
    float* under = below + i * padded;
    float& evidence = s.evidence[row * E * W + i];
    evidence = normalise(belief);
    const float* rival = belief;
    if (m.rivals) {
      const float log_total = normalise(under);
      s.lead[row * E * W + i] = evidence - log_total;
      evidence = log_total;
      rival = under;
    }
    float reached = 0.0f;
    for (int g = 0; g < G; ++g) {
      const float here = rival[g];
      reached += here;
      const float half = reached - 0.5f * here;
      under[g] = half < LEAST ? LEAST : half;
    }
  }
}

// How probable it is that each arm of task b is the best one, (A,).
inline void mixture_best(const Mixture& m, const Beliefs& s, long b, float* best) {
  const int A = m.arms, N = m.shares * m.scales, padded = m.padded();
  const long first = b * A * N;
  float* weights = mixture_scratch(N + A + 2L * A * VW + long(N) * A);
  float* wins = weights + N;        // (A,)
  float* after = wins + A;          // (A, VW): products over the arms after each
  float* won = after + long(A) * VW;  // (A, VW)
  float* logs = won + long(A) * VW;   // (N, A), with rivals
  float largest = -INFINITY, total = 0.0f;
  for (int i = 0; i < N; ++i) {
    weights[i] = 0.0f;
    for (int a = 0; a < A; ++a) weights[i] += s.evidence[first + a * N + i];
    largest = std::max(largest, weights[i]);
  }
  const float* kinds = weights;
  if (!m.rivals)
    for (int i = 0; i < N; ++i) total += weights[i] = std::exp(weights[i] - largest);
  std::fill(best, best + A, 0.0f);
  for (int i = 0; i < N; ++i) {
    const float* beliefs = s.beliefs + (first + i) * padded;  // of arm a: a · N · padded further
    const float* below = s.below + (first + i) * padded;
    const long arm = long(N) * padded;
    std::memset(won, 0, sizeof(float) * A * VW);
    for (int g = 0; g < padded; g += VW) {
      vf product = splat(1.0f);
      for (int a = A - 1; a >= 0; --a) {
        store(after + a * VW, product);
        product *= load(below + a * arm + g);
      }
      product = splat(1.0f);
      for (int a = 0; a < A; ++a) {
        float* to = won + a * VW;
        store(to, load(to) + load(beliefs + a * arm + g) * product * load(after + a * VW));
        product *= load(below + a * arm + g);
      }
    }
    float sum = 0.0f;
    for (int a = 0; a < A; ++a) sum += wins[a] = hsum(load(won + a * VW));
    if (m.rivals) {
      for (int a = 0; a < A; ++a)
        logs[i * A + a] = kinds[i] + s.lead[first + a * N + i] + std::log(wins[a] + LEAST);
      continue;
    }
    const float scale = weights[i] / (total * (sum < LEAST ? LEAST : sum));
    for (int a = 0; a < A; ++a) best[a] += wins[a] * scale;
  }
  if (!m.rivals) return;
  const float most = *std::max_element(logs, logs + long(N) * A);
  for (long i = 0; i < long(N) * A; ++i) best[i % A] += std::exp(logs[i] - most);
  for (int a = 0; a < A; ++a) total += best[a];
  for (int a = 0; a < A; ++a) best[a] /= total;
}

// An arm of task b, drawn by a uniform number; `room` for its logits has `row` floats.
inline int64_t mixture_choose(const Mixture& m, const Beliefs& s, long b, float uniform,
                              float temperature, float* room, int row) {
  mixture_best(m, s, b, room);
  for (int a = 0; a < m.arms; ++a) room[a] = std::log(room[a] < LEAST ? LEAST : room[a]);
  return std::max<int64_t>(0, choose(m.arms, row, room, uniform, temperature));
}

// Nothing is known of one task.
inline void mixture_begin(const Mixture& m, const Beliefs& s) {
  std::fill(s.tables, s.tables + m.arms * m.table(), 1.0f);
  std::fill(s.most, s.most + m.arms, 1.0f);
  std::fill(s.evidence, s.evidence + m.arms * m.shares * m.scales, 0.0f);
  if (m.rivals) std::fill(s.lead, s.lead + m.arms * m.shares * m.scales, 0.0f);
  std::fill(s.beliefs, s.beliefs + m.arms * m.belief(), 0.0f);
  std::fill(s.below, s.below + m.arms * m.belief(), 0.0f);
  for (long row = 0; row < m.arms * m.belief(); row += m.padded())
    for (int g = 0; g < m.points; ++g) {
      s.beliefs[row + g] = 1.0f / m.points;
      s.below[row + g] = (g + 0.5f) / m.points;
    }
}

// One task's episode, from beginning to end: what it knows stays near its core.
inline void mixture_episode(const Mixture& m, const World& world, long b, const float* uniforms,
                            float temperature, Workspace& work) {
  const int T = world.steps, row = round_up(m.arms, VW), kinds = m.shares * m.scales;
  float* tables = work.cache.get(m.arms * (m.table() + 2 * m.belief() + 1 + 2 * kinds));
  float* beliefs = tables + m.arms * m.table();
  float* below = beliefs + m.arms * m.belief();
  float* most = below + m.arms * m.belief();
  const Beliefs s{tables, most, beliefs, below, most + m.arms, most + m.arms * (1 + kinds)};
  float* room = work.logits.get(row);
  mixture_begin(m, s);
  int64_t state = 0;
  for (int t = 0; t < T; ++t) {
    int64_t action;
    {
      const FlushTiny guard;
      action = mixture_choose(m, s, 0, uniforms[b * T + t], temperature, room, row);
    }
    const float reward = world.step(b, t, action, state);
    const FlushTiny guard;
    mixture_learn(m, s, 0, action, reward);
  }
}

inline void mixture_play_all(const Mixture& m, const World& world, long B, const float* uniforms,
                             float temperature, int threads) {
  parallel_for(threads, B, [&](long b) {
    mixture_episode(m, world, b, uniforms, temperature, workspace());
  });
}

constexpr long TASKS = 4;  // at a time

template <class Each>
inline void over_tasks(long B, int threads, const Each& each) {
  parallel_for(threads, (B + TASKS - 1) / TASKS, [&](long i) {
    const FlushTiny guard;
    for (long b = i * TASKS; b < std::min(B, (i + 1) * TASKS); ++b) each(b);
  });
}

inline void mixture_observe_all(const Mixture& m, const Beliefs& s, long B, const int64_t* actions,
                                const float* rewards, int threads) {
  over_tasks(B, threads, [&](long b) { mixture_learn(m, s, b, actions[b], rewards[b]); });
}

inline void mixture_best_all(const Mixture& m, const Beliefs& s, long B, float* best, int threads) {
  over_tasks(B, threads, [&](long b) { mixture_best(m, s, b, best + b * m.arms); });
}

inline void mixture_act_all(const Mixture& m, const Beliefs& s, long B, const float* uniforms,
                            float temperature, int64_t* actions, int threads) {
  const int row = round_up(m.arms, VW);
  over_tasks(B, threads, [&](long b) {
    float* room = workspace().logits.get(row);
    actions[b] = mixture_choose(m, s, b, uniforms[b], temperature, room, row);
  });
}

}  // namespace mithridate::MITHRIDATE_ISA
