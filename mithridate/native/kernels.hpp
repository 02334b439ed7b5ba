// What a variant (one instruction set) offers. All arrays are float32 and C-contiguous.
#pragma once

#include <cstdint>

#include "world.hpp"

namespace mithridate {

struct Shape {
  int layers, heads, width, positions;

  int head_width() const { return width / heads; }
  // Floats of one block: two norms, qkv, out, up, down.
  long block_size() const { return 12L * width * width + 13L * width; }
  // Floats of all parameters, in the order of Transformer.parameters().
  long size() const { return long(positions) * width + layers * block_size() + 2L * width; }
};

// A model that plays: a transformer, what its tokens are sums of, and a head. Without states (0) there
// are no queries: what is said of states is then null.
struct Player {
  Shape shape;
  const float *weights, *transposed;
  int states, actions, padded;  // the last: actions, rounded up to PADDING
  const float *start, *reward;  // (D,): the first token, and what a reward of 1 adds
  const float* pairs;           // (S, A, D): of a state (or none) and an action
  const float *reached, *asked;  // (S, D): where a transition ends, and whole queries
  const float *head, *head_bias;  // (D, padded), (padded)
};

constexpr int PADDING = 16;

// Bayes' rule for arms that may be poisoned, on a grid: what is the same for all tasks. A row of a
// belief has the G points, and zeros up to a multiple of PADDING. `points` is at least PADDING.
struct Mixture {
  int arms, shares, spreads, scales, points, offsets, every;  // A, E, R, W, G, O
  float noise;
  const float *eps, *widths;    // (E,), (R,)
  const float *means, *places;  // (G,), (G + every · (O - 1),): all means, and all means + offsets
  const float* share;           // (W, O, G): how probable an offset is, of an arm with such a mean
  const float* rivals;          // the same of arms that are not the best one; null if it is no other

  // Floats of an arm's table, and of its beliefs.
  long table() const { return long(shares) * spreads * points * offsets; }
  long belief() const { return long(shares) * scales * padded(); }
  int padded() const { return (points + PADDING - 1) / PADDING * PADDING; }
};

// What is known of B tasks.
struct Beliefs {
  float* tables;    // (B, A, E, O, R, G): likelihoods, up to a factor for each task and arm …
  float* most;      // (B, A): … and the largest of them
  float* beliefs;   // (B, A, E · W, padded): of an arm's mean
  float* below;     // the same, added up: how probable it is that the mean is less
  float* evidence;  // (B, A, E · W)
  float* lead;      // (B, A, E · W): what is to be added to the evidence of the best arm; null without rivals
};

// The same for arms with features: G weights, in tiles of PADDING neighbours; the values of an arm's mean
// that are told apart, rounded up to C columns; O offsets. Logarithms in tables are to base 2.
struct LinearGrid {
  int arms, columns, offsets, rows, features;  // A, C, O, K, D: without features it draws its arms
  long points;                                 // G, a multiple of PADDING
  float log_clean, log_poisoned;
  float scale, squeeze;  // a density is 2^-(scale · distance)²; for poisoned rewards times `squeeze`
  const float* grid;   // (C,)
  const float* moves;  // (O,): offsets, so scaled
  const int32_t* below;            // (A, G): between which values an arm's mean is, this and the next, …
  const float* beyond;             // (A, G): … and how far from the first, 0 to 1
  const int32_t* first;            // (A, G / PADDING): the least `below` of a tile; -1 if its values are
                                   // more than PADDING
  const int *first_column, *column_count;  // (A,): what an arm's means need; a multiple of PADDING
  const float* row;  // (K, G): moments of the weights, or where each arm is the best
  const float* arm;  // (A, K): features, and their products
};

// What is known of B tasks.
struct LinearBeliefs {
  float* tables;     // (B, A, O, C): likelihoods, times how probable offsets are
  float* marginals;  // (B, A, C): offsets summed out
  float* logs;       // (B, G): of the weights; natural logarithms
};

// Two weights, on a grid of `axis` × `axis` points around where they may be; a row has room for `row`.
struct OracleGrid {
  int arms, axis, row;  // the last: axis, rounded up to PADDING
  float step, scale;    // between points; a clean density is 2^-(scale · distance)²
  const float* line;      // (row,): the points along an axis; the same all over beyond the last
  const float* features;  // (A, 2)
};

constexpr int PLACE = 5, EVIDENCE = 8, ATTACK = 4, LUCK = 3;

// What is known of B tasks.
struct OracleBeliefs {
  float* logs;    // (B, axis, row): to base 2; minus infinity beyond the axis
  float* places;  // (B, PLACE): centres, and roots of covariances
  float* seen;    // (B, room, EVIDENCE)
  long room;
};

// What sequences consist of: x (B, N, D), with as much room for its gradient; or, if there are rows,
// a first token and one for each transition. Rows (A + 2, D): the first token, what a reward of 1 adds,
// and each action; actions and rewards (B, T - 1).
struct Tokens {
  const float* x;
  float* dx;
  const float* rows;
  const int64_t* actions;
  const float* rewards;

  // Floats of all gradients: transformer, head (A, D), rows, and the head's bias, padded.
  long size(const Shape& s, int A) const {
    const long of_rows = rows ? A + 2 : 0;
    return s.size() + (A + of_rows) * s.width + (A + PADDING - 1) / PADDING * PADDING;
  }
};

struct Kernels {
  const char* name;

  // Causal attention; q, k, v, o (count, T, d), m and inverse (count, T).
  void (*attention_forward)(int d, int count, int T, const float* q, const float* k, const float* v,
                            float* o, float* m, float* inverse, int threads);
  void (*attention_backward)(int d, int count, int T, const float* q, const float* k,
                             const float* v, const float* o, const float* d_out, const float* m,
                             const float* inverse, float* dq, float* dk, float* dv, int threads);

  // The whole transformer on x (B, N, D), where N = streams T: T tokens of context and, in a second
  // stream, T queries, of which number t sees context tokens 0 … t and which nobody sees. Saved for
  // backward: the inputs of every block and of the last norm (layers + 1, B, N, D), the heads'
  // outputs (layers, B, N, D), and the softmax statistics (layers, B, streams, 2, heads, T).
  void (*forward)(const Shape&, const float* weights, int B, int T, int streams, const float* x,
                  float* y, float* inputs, float* mixed, float* statistics, int threads);
  void (*backward)(const Shape&, const float* weights, int B, int T, int streams, const float* dy,
                   float* inputs, float* mixed, float* statistics, float* dx, float* d_weights,
                   int threads);

  // One new position n of B sequences: x (B, D) is embedded without its position. The cache of keys and
  // values is (B, layers, 2, heads, capacity / 16, D / heads, 16), and position n is written. If queries
  // is not null, as many query tokens (B, D), at the same position, see positions 0 … n and are seen by
  // nobody; y (B, D) is then theirs.
  void (*decode)(const Shape&, const float* weights, const float* transposed, int B, int n,
                 long capacity, const float* x, const float* queries, float* cache, float* y,
                 int threads);

  // The same for a player, given the transitions (B,) that position n is about (nothing at position 0)
  // and the states that are asked about: logits (B, A).
  void (*player_step)(const Player&, int B, int n, long capacity, const int64_t* states,
                      const int64_t* actions, const float* rewards, const int64_t* reached,
                      const int64_t* asked, float* cache, float* logits, int threads);

  // Actions (B,) drawn from logits (B, A) by uniforms (B,); with temperature 0 the best, and no uniforms.
  void (*choose)(int B, int A, const float* logits, const float* uniforms, float temperature,
                 int64_t* actions);

  // Whole episodes of B tasks, at most so many of them together, with uniforms (B, T). False if a
  // prediction was not finite.
  bool (*play)(const Player&, const World&, int B, const float* uniforms, float temperature,
               int together, int threads);

  // Mean cross-entropy of softmax(x w^T + b) to labels in 0 … A - 1, and all its gradients;
  // x, dx (N, D), w, dw (A, D), b, db (A).
  double (*cross_entropy)(long N, int D, int A, const float* x, const float* w, const float* b,
                          const int64_t* labels, float* dx, float* dw, float* db, int threads);

  // Both together, from tokens to the gradients of all weights, sequence by sequence: what the forward
  // pass leaves for the backward pass never leaves the cache of its core. Labels (B, T); in two streams,
  // of the queries. Gradients: Tokens::size floats.
  double (*learn)(const Shape&, const float* weights, int B, int T, int streams, const Tokens&, int A,
                  const float* head, const float* bias, const int64_t* labels, float* gradients,
                  int threads);

  // Keeps the multiply-add units of every thread busy, to measure the machine's peak. Returns the
  // number of floating-point operations.
  double (*multiply_add)(long rounds, int threads);

  // Weights laid out for the products of `forward` and `decode`: Shape::size() floats.
  void (*transpose)(const Shape&, const float* weights, float* transposed);

  // One reward (B,) of one arm (B,) of each task; how probable each arm is the best one, (B, A); and arms
  // (B,) drawn with these probabilities, sharpened, by uniforms (B,).
  void (*mixture_observe)(const Mixture&, const Beliefs&, long B, const int64_t* actions,
                          const float* rewards, int threads);
  void (*mixture_best)(const Mixture&, const Beliefs&, long B, float* best, int threads);
  void (*mixture_act)(const Mixture&, const Beliefs&, long B, const float* uniforms,
                      float temperature, int64_t* actions, int threads);

  // Whole episodes of B tasks of which nothing is known, with uniforms (B, T).
  void (*mixture_play)(const Mixture&, const World&, long B, const float* uniforms,
                       float temperature, int threads);

  // The same with features; what rows (K, G) are on average, (B, K); arms (B,) by uniforms (B,), where the
  // factor is that of the standard deviation, or a temperature; and whole episodes from where they are.
  void (*linear_observe)(const LinearGrid&, const LinearBeliefs&, long B, const int64_t* actions,
                         const float* rewards, int threads);
  void (*linear_expected)(const LinearGrid&, long B, const float* logs, float* found, int threads);
  void (*linear_act)(const LinearGrid&, long B, const float* logs, const float* uniforms,
                     float factor, int64_t* actions, int threads);
  void (*linear_play)(const LinearGrid&, const LinearBeliefs&, const World&, long B,
                      const float* uniforms, float factor, int threads);

  // The oracle's, after n rewards; attacks (B, A, ATTACK) on each arm: logarithm of a clean reward's peak,
  // offset, scale and logarithm of the peak of a poisoned one's. Uniforms (B, LUCK), or (B, T, LUCK).
  void (*oracle_observe)(const OracleGrid&, const OracleBeliefs&, long B, long n,
                         const int64_t* actions, const float* rewards, const float* attack,
                         int threads);
  void (*oracle_act)(const OracleGrid&, const OracleBeliefs&, long B, const float* uniforms,
                     int64_t* actions, int threads);
  void (*oracle_play)(const OracleGrid&, const OracleBeliefs&, const World&, long B, long n,
                      const float* uniforms, const float* attack, int threads);
};

const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

}  // namespace mithridate
