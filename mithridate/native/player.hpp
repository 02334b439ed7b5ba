// A model that plays: from transitions to actions, one step of many sequences at a time, or whole
// episodes of a few sequences at a time, which stay near their core. Both do the same arithmetic.
#pragma once

#include <algorithm>
#include <atomic>

#include "pool.hpp"
#include "transformer.hpp"

namespace mithridate::MITHRIDATE_ISA {

// The token at position n of `count` sequences, (count, D); queries, if there are any, after them. The
// first token is the start; all others are made of the transition before.
inline void embed(const Player& p, int n, int count, const int64_t* states, const int64_t* actions,
                  const float* rewards, const int64_t* reached, const int64_t* asked, float* x) {
  const int D = p.shape.width;
  const float* position = p.weights + long(n) * D;
  for (int r = 0; r < count; ++r, x += D) {
    if (n == 0) {
      for (int i = 0; i < D; i += VW) store(x + i, load(p.start + i) + load(position + i));
      continue;
    }
    const long pair = (p.states ? states[r] * p.actions : 0) + actions[r];
    for (int i = 0; i < D; i += VW) {
      vf token = load(p.pairs + pair * D + i) + load(position + i) + rewards[r] * load(p.reward + i);
      if (p.states) token += load(p.reached + reached[r] * D + i);
      store(x + i, token);
    }
  }
  if (p.states)
    for (int r = 0; r < count; ++r, x += D)
      for (int i = 0; i < D; i += VW)
        store(x + i, load(p.asked + asked[r] * D + i) + load(position + i));
}

// From embedded tokens (or tokens and queries) to logits (count, padded). FAR: see attention_decode.
template <bool FAR>
void predict(const Player& p, int n, int count, long capacity, float* x, float* cache,
             float* logits, Workspace& work) {
  const Shape& s = p.shape;
  const int D = s.width;
  for (int l = 0; l < s.layers; ++l)
    tokens_forward<FAR>(s, p.weights, p.transposed, count, p.states, n, capacity, x, cache, l, work);
  const float* norm = last_norm(s, p.weights);
  float* y = work.tile.get(long(count) * D);
  norm_forward(count, D, p.states ? x + long(count) * D : x, norm, norm + D, y);
  gemm_any<false>(count, p.padded, D, y, D, p.head, p.padded, logits, p.padded, nullptr,
                  p.head_bias);
}

// A draw from softmax(logits / temperature) by inverse CDF; with temperature 0 the first of the largest.
// -1 if a logit is not finite. The padding of the logits is overwritten.
inline int64_t choose(int A, int padded, float* logits, float uniform, float temperature) {
  int64_t best = 0;
  for (int a = 0; a < A; ++a) {
    if (!std::isfinite(logits[a])) return -1;
    if (logits[a] > logits[best]) best = a;
  }
  if (temperature == 0.0f) return best;
  const float largest = logits[best], scale = LOG2E / temperature;
  for (int a = A; a < padded; ++a) logits[a] = MINUS_INFINITY;
  for (int a = 0; a < padded; a += VW)
    store(logits + a, exp2(max(splat(MINUS_INFINITY), (load(logits + a) - largest) * scale)));
  float total = 0.0f;
  for (int a = 0; a < A; ++a) total += logits[a];
  float below = 0.0f;
  int64_t action = 0;
  for (int a = 0; a < A - 1; ++a) {
    below += logits[a];
    action += uniform * total >= below;
  }
  return action;
}

// Sequences that share a pass over the weights: at most so many, and as many groups for each thread. The
// result does not depend on it.
inline int together(int count, int most, int threads) {
  const int groups = round_up((count + most - 1) / most, threads);
  return std::max(1, (count + groups - 1) / groups);
}

inline void player_step(const Player& p, int B, int n, long capacity, const int64_t* states,
                        const int64_t* actions, const float* rewards, const int64_t* reached,
                        const int64_t* asked, float* cache, float* logits, int threads) {
  if (B == 0) return;
  const int D = p.shape.width, A = p.actions, rows = together(B, p.states ? 6 : 12, threads);
  const long sequence = cache_size(p.shape, capacity);
  parallel_for(threads, (B + rows - 1) / rows, [&](long group) {
    const FlushTiny guard;
    Workspace& work = workspace();
    const long first = group * rows;
    const int count = int(std::min<long>(rows, B - first));
    float* x = work.sequence.get(2L * count * D);
    float* found = work.logits.get(long(count) * p.padded);
    auto from = [first](auto* array) { return array ? array + first : nullptr; };
    embed(p, n, count, from(states), from(actions), from(rewards), from(reached), from(asked), x);
    predict<true>(p, n, count, capacity, x, cache + first * sequence, found, work);
    for (int r = 0; r < count; ++r)
      std::memcpy(logits + (first + r) * A, found + long(r) * p.padded, sizeof(float) * A);
  });
}

// A group's episodes, from beginning to end. False if a prediction was not finite.
inline bool play_group(const Player& p, const World& world, long first, int count,
                       const float* uniforms, float temperature, Workspace& work) {
  const int T = world.steps;
  const long capacity = round_up(T, BLOCK);
  float* cache = work.cache.get(count * cache_size(p.shape, capacity));
  float* x = work.sequence.get(2L * count * p.shape.width);
  float* logits = work.logits.get(long(count) * p.padded);
  std::vector<int64_t> before(count, 0), now(count, 0), actions(count, 0);
  std::vector<float> rewards(count, 0.0f);
  for (int t = 0; t < T; ++t) {
    {
      const FlushTiny guard;
      embed(p, t, count, before.data(), actions.data(), rewards.data(), now.data(), now.data(), x);
      predict<false>(p, t, count, capacity, x, cache, logits, work);
      for (int r = 0; r < count; ++r) {
        const float uniform = uniforms ? uniforms[(first + r) * T + t] : 0.0f;
        actions[r] = choose(p.actions, p.padded, logits + long(r) * p.padded, uniform, temperature);
        if (actions[r] < 0) return false;
      }
    }
    before = now;
    for (int r = 0; r < count; ++r) rewards[r] = world.step(first + r, t, actions[r], now[r]);
  }
  return true;
}

inline bool play(const Player& p, const World& world, int B, const float* uniforms,
                 float temperature, int most, int threads) {
  if (B == 0) return true;
  const int rows = together(B, most, threads);
  std::atomic<bool> finite{true};
  parallel_for(threads, (B + rows - 1) / rows, [&](long group) {
    const long first = group * rows;
    const int count = int(std::min<long>(rows, B - first));
    if (!play_group(p, world, first, count, uniforms, temperature, workspace())) finite = false;
  });
  return finite;
}

inline void choose_all(int B, int A, const float* logits, const float* uniforms, float temperature,
                       int64_t* actions) {
  const FlushTiny guard;
  const int padded = round_up(A, VW);
  float* row = workspace().logits.get(padded);
  for (int b = 0; b < B; ++b) {
    std::memcpy(row, logits + long(b) * A, sizeof(float) * A);
    actions[b] = choose(A, padded, row, uniforms ? uniforms[b] : 0.0f, temperature);
  }
}

}  // namespace mithridate::MITHRIDATE_ISA
