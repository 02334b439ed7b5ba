// One variant of the kernels: compiled once for each instruction set, with MITHRIDATE_ISA and
// MITHRIDATE_VW set accordingly.
#include <algorithm>

#include "learning.hpp"
#include "linear_grid.hpp"
#include "mixture.hpp"
#include "oracle.hpp"
#include "player.hpp"

namespace mithridate::MITHRIDATE_ISA {

void attention_forward_all(int d, int count, int T, const float* q, const float* k, const float* v,
                           float* o, float* m, float* inverse, int threads) {
  parallel_for(threads, count, [&](long i) {
    const FlushTiny guard;
    const long at = i * T * d, row = i * T;
    with_head_width(d, [&](auto width) {
      attention_forward<width>(T, q + at, k + at, v + at, d, o + at, d, m + row, inverse + row,
                               workspace().attention);
    });
  });
}

void attention_backward_all(int d, int count, int T, const float* q, const float* k, const float* v,
                            const float* o, const float* d_out, const float* m,
                            const float* inverse, float* dq, float* dk, float* dv, int threads) {
  parallel_for(threads, count, [&](long i) {
    const FlushTiny guard;
    const long at = i * T * d, row = i * T;
    with_head_width(d, [&](auto width) {
      attention_backward<width>(T, q + at, k + at, v + at, d, o + at, d_out + at, d, m + row,
                                inverse + row, dq + at, dk + at, dv + at, d, workspace().attention);
    });
  });
}

void forward(const Shape& s, const float* weights, int B, int T, int streams, const float* x,
             float* y, float* inputs, float* mixed, float* statistics, int threads) {
  const long sequence = long(T) * streams * s.width, stats = 2L * s.heads * T * streams;
  float* transposed = workspace().transposed.get(s.size());
  transpose_weights(s, weights, transposed);
  parallel_for(threads, B, [&](long b) {
    const FlushTiny guard;
    sequence_forward(s, weights, transposed, T, streams, x + b * sequence, y + b * sequence,
                     {inputs + b * sequence, mixed + b * sequence, statistics + b * stats,
                      B * sequence, B * stats},
                     workspace());
  });
}

void backward(const Shape& s, const float* weights, int B, int T, int streams, const float* dy,
              float* inputs, float* mixed, float* statistics, float* dx, float* d_weights,
              int threads) {
  const long sequence = long(T) * streams * s.width, stats = 2L * s.heads * T * streams;
  float* transposed = workspace().transposed.get(s.size());
  transpose_weights(s, weights, transposed);
  sum_by_groups(threads, B, s.size(), d_weights, [&](int, long b, float* gradient) {
    sequence_backward(s, weights, transposed, T, streams, dy + b * sequence,
                      {inputs + b * sequence, mixed + b * sequence, statistics + b * stats,
                       B * sequence, B * stats},
                      dx + b * sequence, gradient, workspace());
  });
}

void decode(const Shape& s, const float* weights, const float* transposed, int B, int n,
            long capacity, const float* x, const float* queries, float* cache, float* y,
            int threads) {
  if (B == 0) return;
  const int D = s.width, ROWS = together(B, queries ? 6 : 12, threads);
  const long sequence = cache_size(s, capacity);
  const float* position = weights + long(n) * D;
  const float* norm = last_norm(s, weights);
  parallel_for(threads, (B + ROWS - 1) / ROWS, [&](long group) {
    const FlushTiny guard;
    Workspace& work = workspace();
    const long first = group * ROWS;
    const int rows = int(std::min<long>(ROWS, B - first));
    float* tokens = work.sequence.get(2L * rows * D);
    float* asked = tokens + rows * D;
    auto place = [&](const float* from, float* to) {
      for (int r = 0; r < rows; ++r)
        for (int i = 0; i < D; ++i) to[r * D + i] = from[(first + r) * D + i] + position[i];
    };
    place(x, tokens);
    if (queries) place(queries, asked);
    for (int l = 0; l < s.layers; ++l)
      tokens_forward<true>(s, weights, transposed, rows, queries, n, capacity, tokens,
                     cache + first * sequence, l, work);
    norm_forward(rows, D, queries ? asked : tokens, norm, norm + D, y + first * D);
  });
}

constexpr int CHAINS = VW == 16 ? 24 : 12;  // enough to hide the latency of a multiply-add

__attribute__((noinline)) float run_chains(long rounds) {
  vf a[CHAINS];
  for (int i = 0; i < CHAINS; ++i) a[i] = splat(float(i));  // distinct, or they would be merged
  volatile float factor = 0.999f, term = 1e-3f;             // unknown to the compiler
  const vf x = splat(factor), y = splat(term);
  for (long r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < CHAINS; ++i) a[i] = a[i] * x + y;
  }
  vf sum = vf{};
#pragma GCC unroll 24
  for (int i = 0; i < CHAINS; ++i) sum += a[i];
  return hsum(sum);
}

double multiply_add(long rounds, int threads) {
  parallel_for(threads, threads, [&](long) {
    volatile float kept = run_chains(rounds);
    (void)kept;
  });
  return 2.0 * rounds * CHAINS * VW * threads;
}

#define MITHRIDATE_STRING_(x) #x
#define MITHRIDATE_STRING(x) MITHRIDATE_STRING_(x)
const Kernels table = {MITHRIDATE_STRING(MITHRIDATE_ISA),
                       attention_forward_all,
                       attention_backward_all,
                       forward,
                       backward,
                       decode,
                       player_step,
                       choose_all,
                       play,
                       cross_entropy,
                       learn,
                       multiply_add,
                       transpose_weights,
                       mixture_observe_all,
                       mixture_best_all,
                       mixture_act_all,
                       mixture_play_all,
                       linear_observe_all,
                       linear_expected_all,
                       linear_act_all,
                       linear_play_all,
                       oracle_observe_all,
                       oracle_act_all,
                       oracle_play_all};

}  // namespace mithridate::MITHRIDATE_ISA

#define MITHRIDATE_JOIN_(a, b) a##b
#define MITHRIDATE_JOIN(a, b) MITHRIDATE_JOIN_(a, b)
namespace mithridate {
const Kernels* MITHRIDATE_JOIN(MITHRIDATE_ISA, _kernels)() { return &MITHRIDATE_ISA::table; }
}  // namespace mithridate
