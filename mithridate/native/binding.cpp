// Thin binding: checks sizes, chooses the instruction set, releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "pool.hpp"
#include "raycast.hpp"
#include "trimmed.hpp"

namespace nb = nanobind;
using mithridate::Beliefs;
using mithridate::Kernels;
using mithridate::LinearBeliefs;
using mithridate::LinearGrid;
using mithridate::Mixture;
using mithridate::OracleBeliefs;
using mithridate::OracleGrid;
using mithridate::Shape;
using mithridate::PADDING;
using mithridate::Player;
using mithridate::Tokens;
using mithridate::World;
using Array = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<int64_t, nb::c_contig, nb::device::cpu>;
using Places = nb::ndarray<int32_t, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<bool, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<double, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::c_contig, nb::device::cpu>;

namespace {

std::vector<const Kernels*> supported() {
  std::vector<const Kernels*> found;
#if defined(MITHRIDATE_AVX512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    found.push_back(mithridate::avx512_kernels());
#endif
#if defined(MITHRIDATE_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    found.push_back(mithridate::avx2_kernels());
#endif
  found.push_back(mithridate::portable_kernels());
  return found;
}

const Kernels* active = supported().front();

void use(const std::string& name) {
  for (const Kernels* kernels : supported())
    if (name == kernels->name) {
      active = kernels;
      return;
    }
  throw std::invalid_argument("instruction set '" + name + "' is not available here");
}

template <class Any>
void expect(const Any& a, size_t size, const char* name) {
  if (a.size() != size)
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(a.size()) +
                                " elements, not " + std::to_string(size));
}

// Optional arrays: their data, or null.
template <class Any>
auto data(const std::optional<Any>& a, size_t size, const char* name) -> decltype(a->data()) {
  if (!a) return nullptr;
  expect(*a, size, name);
  return a->data();
}

void expect_below(const int64_t* numbers, size_t count, int64_t limit, const char* name) {
  for (size_t i = 0; i < count; ++i)
    if (numbers[i] < 0 || numbers[i] >= limit)
      throw std::invalid_argument(std::string(name) + " are out of range");
}

void expect_head_width(int d) {
  if (d != 8 && d != 16 && d != 32)
    throw std::invalid_argument("head width " + std::to_string(d) + " is not 8, 16 or 32");
}

Shape shape_of(int layers, int heads, int width, int positions) {
  const Shape shape{layers, heads, width, positions};
  if (width % 16 || width % heads)
    throw std::invalid_argument("width must be a multiple of 16 and of heads");
  expect_head_width(shape.head_width());
  return shape;
}

void insert_sorted(const Array& sorted, const Numbers& actions, const Array& rewards,
                   const Numbers& counts, const Numbers& drop, const Array& totals, long arms,
                   long room, int threads) {
  const size_t batch = rewards.size();
  expect(sorted, batch * arms * room, "sorted"), expect(actions, batch, "actions");
  expect(counts, batch, "counts"), expect(drop, batch, "drop"), expect(totals, batch, "totals");
  for (size_t b = 0; b < batch; ++b)
    if (actions.data()[b] < 0 || actions.data()[b] >= arms || counts.data()[b] < 1 ||
        drop.data()[b] < 0)
      throw std::invalid_argument("no such arm, or counts that make no sense");
  const mithridate::Trimmed trimmed{arms, room, sorted.data(), actions.data(), rewards.data(),
                                    counts.data(), drop.data(), totals.data()};
  nb::gil_scoped_release release;
  constexpr long BLOCK = 64;  // tasks at a time: one is soon done
  const long blocks = (long(batch) + BLOCK - 1) / BLOCK;
  mithridate::parallel_for(threads, blocks, [&](long i) {
    for (long b = i * BLOCK; b < std::min(long(batch), (i + 1) * BLOCK); ++b) trimmed.insert(b);
  });
}

void room_frames(const Doubles& cameras, const Doubles& boxes, const std::vector<Array>& textures,
                 const std::vector<long>& sizes, const Array& rows, const Array& columns,
                 const Bytes& out, int threads) {
  using mithridate::Raycast;
  const size_t count = cameras.size() / 4;
  expect(cameras, count * 4, "cameras"), expect(boxes, count * 8, "boxes");
  expect(rows, Raycast::SIDE * Raycast::HEIGHT, "rows");
  expect(columns, Raycast::SIDE * Raycast::WIDTH, "columns");
  expect(out, count * Raycast::SIDE * Raycast::SIDE * 3, "out");
  if (textures.size() != 3 || sizes.size() != 3)
    throw std::invalid_argument("there must be three textures");
  Raycast raycast{cameras.data(), boxes.data(), {}, {}, rows.data(), columns.data(), out.data()};
  for (int k = 0; k < 3; ++k) {
    if (sizes[k] < 1 || sizes[k] > 4096) throw std::invalid_argument("no such size of a texture");
    expect(textures[k], 4 * Raycast::texels(sizes[k]), "a texture");
    raycast.textures[k] = textures[k].data(), raycast.sizes[k] = sizes[k];
  }
  for (size_t i = 0; i < 4 * count; ++i)
    if (!(std::abs(cameras.data()[i]) < 1e3)) throw std::invalid_argument("no such place");
  nb::gil_scoped_release release;
  constexpr long BLOCK = 16;
  const long blocks = (long(count) + BLOCK - 1) / BLOCK;
  mithridate::parallel_for(threads, blocks, [&](long i) {
    for (long n = i * BLOCK; n < std::min(long(count), (i + 1) * BLOCK); ++n) raycast.frame(n);
  });
}

void attention_forward(const Array& q, const Array& k, const Array& v, const Array& o,
                       const Array& m, const Array& inverse, int count, int T, int d, int threads) {
  const size_t size = size_t(count) * T * d;
  expect_head_width(d);
  expect(q, size, "q"), expect(k, size, "k"), expect(v, size, "v"), expect(o, size, "o");
  expect(m, size / d, "m"), expect(inverse, size / d, "inverse");
  nb::gil_scoped_release release;
  active->attention_forward(d, count, T, q.data(), k.data(), v.data(), o.data(), m.data(),
                            inverse.data(), threads);
}

void attention_backward(const Array& q, const Array& k, const Array& v, const Array& o,
                        const Array& d_out, const Array& m, const Array& inverse, const Array& dq,
                        const Array& dk, const Array& dv, int count, int T, int d, int threads) {
  const size_t size = size_t(count) * T * d;
  expect_head_width(d);
  expect(q, size, "q"), expect(k, size, "k"), expect(v, size, "v"), expect(o, size, "o");
  expect(d_out, size, "d_out"), expect(dq, size, "dq"), expect(dk, size, "dk");
  expect(dv, size, "dv"), expect(m, size / d, "m"), expect(inverse, size / d, "inverse");
  nb::gil_scoped_release release;
  active->attention_backward(d, count, T, q.data(), k.data(), v.data(), o.data(), d_out.data(),
                             m.data(), inverse.data(), dq.data(), dk.data(), dv.data(), threads);
}

struct Sizes {
  size_t x, statistics;
  Sizes(const Shape& s, int B, int T, int streams)
      : x(size_t(B) * streams * T * s.width),
        statistics(size_t(s.layers) * B * streams * 2 * s.heads * T) {
    if (streams != 1 && streams != 2) throw std::invalid_argument("streams are one or two");
    if (T > s.positions) throw std::invalid_argument("sequence longer than the positions");
  }
};

void forward(const Array& weights, const Array& x, const Array& y, const Array& inputs,
             const Array& mixed, const Array& statistics, int layers, int heads, int width,
             int positions, int B, int T, int streams, int threads) {
  const Shape s = shape_of(layers, heads, width, positions);
  const Sizes sizes(s, B, T, streams);
  expect(weights, s.size(), "weights"), expect(x, sizes.x, "x"), expect(y, sizes.x, "y");
  expect(inputs, sizes.x * (layers + 1), "inputs"), expect(mixed, sizes.x * layers, "mixed");
  expect(statistics, sizes.statistics, "statistics");
  nb::gil_scoped_release release;
  active->forward(s, weights.data(), B, T, streams, x.data(), y.data(), inputs.data(), mixed.data(),
                  statistics.data(), threads);
}

void backward(const Array& weights, const Array& dy, const Array& inputs, const Array& mixed,
              const Array& statistics, const Array& dx, const Array& d_weights, int layers,
              int heads, int width, int positions, int B, int T, int streams, int threads) {
  const Shape s = shape_of(layers, heads, width, positions);
  const Sizes sizes(s, B, T, streams);
  expect(weights, s.size(), "weights"), expect(d_weights, s.size(), "d_weights");
  expect(dy, sizes.x, "dy"), expect(dx, sizes.x, "dx");
  expect(inputs, sizes.x * (layers + 1), "inputs"), expect(mixed, sizes.x * layers, "mixed");
  expect(statistics, sizes.statistics, "statistics");
  nb::gil_scoped_release release;
  active->backward(s, weights.data(), B, T, streams, dy.data(), inputs.data(), mixed.data(),
                   statistics.data(), dx.data(), d_weights.data(), threads);
}

double cross_entropy(const Array& x, const Array& w, const Array& b,
                     const Numbers& labels,
                     const Array& dx, const Array& dw, const Array& db, int threads) {
  const size_t A = b.size(), N = labels.size(), D = N ? x.size() / N : 0;
  if (!A || !N || D % 16) throw std::invalid_argument("width must be a multiple of 16");
  expect(x, N * D, "x"), expect(dx, N * D, "dx"), expect(w, A * D, "w"), expect(dw, A * D, "dw");
  expect(db, A, "db");
  for (size_t n = 0; n < N; ++n)
    if (labels.data()[n] < 0 || labels.data()[n] >= int64_t(A))
      throw std::invalid_argument("label " + std::to_string(labels.data()[n]) + " is out of range");
  nb::gil_scoped_release release;
  return active->cross_entropy(long(N), int(D), int(A), x.data(), w.data(), b.data(), labels.data(),
                               dx.data(), dw.data(), db.data(), threads);
}

// Tokens: x and dx, or rows, actions and rewards.
double learn(const Array& weights, const std::optional<Array>& x, const std::optional<Array>& dx,
             const std::optional<Array>& rows, const std::optional<Numbers>& actions,
             const std::optional<Array>& rewards, const Array& head, const Array& bias,
             const Numbers& labels, const Array& gradients, int layers, int heads, int width,
             int positions, int B, int T, int streams, int threads) {
  const Shape s = shape_of(layers, heads, width, positions);
  const Sizes sizes(s, B, T, streams);
  const size_t A = bias.size(), D = width, transitions = size_t(B) * (T - 1);
  if (B < 1 || T < 1 || A < 1) throw std::invalid_argument("there is nothing to learn from");
  if (bool(x) == bool(rows) || bool(x) != bool(dx) || (rows && (!actions || !rewards || streams != 1)))
    throw std::invalid_argument("these are not the parts of tokens");
  expect(weights, s.size(), "weights"), expect(head, A * D, "head");
  expect(labels, size_t(B) * T, "labels");
  expect_below(labels.data(), labels.size(), int64_t(A), "labels");
  Tokens tokens{data(x, sizes.x, "x"), data(dx, sizes.x, "dx"), data(rows, (A + 2) * D, "rows"),
                data(actions, transitions, "actions"), data(rewards, transitions, "rewards")};
  if (rows) expect_below(tokens.actions, transitions, int64_t(A), "actions");
  expect(gradients, tokens.size(s, int(A)), "gradients");
  nb::gil_scoped_release release;
  return active->learn(s, weights.data(), B, T, streams, tokens, int(A), head.data(), bias.data(),
                       labels.data(), gradients.data(), threads);
}

// A model's weights, copied and laid out for decoding.
class Decoder {
 public:
  Decoder(const Array& weights, int layers, int heads, int width, int positions)
      : shape_(shape_of(layers, heads, width, positions)) {
    expect(weights, shape_.size(), "weights");
    weights_.assign(weights.data(), weights.data() + shape_.size());
    transposed_.resize(shape_.size());
    active->transpose(shape_, weights_.data(), transposed_.data());
  }

  // y: of the queries, if there are any, and otherwise of the tokens.
  void step(const Array& x, const std::optional<Array>& queries, const Array& cache,
            const Array& y, int n, int capacity, int threads) const {
    const int D = shape_.width;
    const size_t B = x.size() / D;
    expect(x, B * D, "x"), expect(y, B * D, "y");
    expect(cache, 2 * B * shape_.layers * D * capacity, "cache");
    if (capacity % 16) throw std::invalid_argument("capacity must be a multiple of 16");
    if (n < 0 || n >= capacity || n >= shape_.positions)
      throw std::invalid_argument("position " + std::to_string(n) + " is out of range");
    if (queries) expect(*queries, B * D, "queries");
    nb::gil_scoped_release release;
    active->decode(shape_, weights_.data(), transposed_.data(), int(B), n, capacity, x.data(),
                   queries ? queries->data() : nullptr, cache.data(), y.data(), threads);
  }

 private:
  Shape shape_;
  std::vector<float> weights_, transposed_;
};

// See World: of as many tasks as have rewards.
World world_of(int states, int actions, int steps, const Array& rewards,
               const std::optional<Numbers>& after, const std::optional<Array>& noise,
               const Flags& hit, const std::optional<Array>& shifts,
               const std::optional<Array>& edges, const std::optional<Array>& uniforms,
               const std::optional<Array>& spreads, const std::optional<Array>& normals,
               const Numbers& taken, const Numbers& visited, const Array& paid,
               const Array& proposed, const Array& observed) {
  if (steps < 1) throw std::invalid_argument("there are no steps");
  const size_t pairs = size_t(states) * actions, B = rewards.size() / pairs;
  const size_t all = B * steps, entries = B * pairs;
  expect(rewards, entries, "rewards"), expect(hit, all, "hit");
  expect(taken, all, "taken"), expect(visited, all, "visited"), expect(paid, all, "paid");
  expect(proposed, all, "proposed"), expect(observed, all, "observed");
  const size_t choices = shifts && entries ? shifts->size() / entries : 1;
  if (bool(edges) != bool(uniforms) || bool(spreads) != bool(normals) || (edges && !shifts) ||
      (spreads && !shifts) || (!edges && choices != 1))
    throw std::invalid_argument("an attack's tables do not go together");
  World world{steps, states, actions, int(choices)};
  world.rewards = rewards.data();
  world.after = data(after, pairs, "after");
  if (world.after) expect_below(world.after, pairs, states, "states that are led to");
  world.noise = data(noise, all, "noise");
  world.hit = hit.data();
  world.shifts = data(shifts, entries * choices, "shifts");
  world.edges = data(edges, entries * (choices - 1), "edges");
  world.uniforms = data(uniforms, all, "uniforms");
  world.spreads = data(spreads, entries, "spreads");
  world.normals = data(normals, all, "normals");
  world.taken = taken.data(), world.visited = visited.data(), world.paid = paid.data();
  world.proposed = proposed.data(), world.observed = observed.data();
  return world;
}

// A model that plays, copied as it is now.
class NativePlayer {
 public:
  NativePlayer(const Array& weights, int layers, int heads, int width, int positions,
               const Array& start, const Array& reward, const Array& pairs,
               const std::optional<Array>& reached, const std::optional<Array>& asked,
               const Array& head, const Array& bias) {
    const Shape s = shape_of(layers, heads, width, positions);
    const int D = width, A = int(bias.size());
    const int states = reached ? int(reached->size() / D) : 0;
    const size_t rows = size_t(D) * std::max(states, 1);
    expect(weights, s.size(), "weights"), expect(start, D, "start"), expect(reward, D, "reward");
    expect(pairs, rows * A, "pairs"), expect(head, size_t(A) * D, "head");
    if (bool(reached) != bool(asked)) throw std::invalid_argument("states are reached and asked");
    player_ = {s, copy(weights), nullptr, states, A, (A + PADDING - 1) / PADDING * PADDING};
    transposed_.resize(s.size());
    active->transpose(s, player_.weights, transposed_.data());
    player_.transposed = transposed_.data();
    player_.start = copy(start), player_.reward = copy(reward), player_.pairs = copy(pairs);
    if (reached) {
      expect(*reached, size_t(states) * D, "reached"), expect(*asked, size_t(states) * D, "asked");
      player_.reached = copy(*reached), player_.asked = copy(*asked);
    }
    head_.assign(size_t(D) * player_.padded, 0.0f), bias_.assign(player_.padded, 0.0f);
    for (int a = 0; a < A; ++a) {
      bias_[a] = bias.data()[a];
      for (int i = 0; i < D; ++i) head_[size_t(i) * player_.padded + a] = head.data()[a * D + i];
    }
    player_.head = head_.data(), player_.head_bias = bias_.data();
  }
  NativePlayer(const NativePlayer&) = delete;

  // At position 0 there is no transition; without states nothing is asked.
  void step(const std::optional<Numbers>& states, const std::optional<Numbers>& actions,
            const std::optional<Array>& rewards, const std::optional<Numbers>& reached,
            const std::optional<Numbers>& asked, const Array& cache, const Array& logits, int n,
            int capacity, int threads) const {
    const Player& p = player_;
    const size_t B = logits.size() / p.actions;
    expect(logits, B * p.actions, "logits");
    expect(cache, 2 * B * p.shape.layers * p.shape.width * capacity, "cache");
    if (capacity % 16) throw std::invalid_argument("capacity must be a multiple of 16");
    if (n < 0 || n >= capacity || n >= p.shape.positions)
      throw std::invalid_argument("position " + std::to_string(n) + " is out of range");
    const bool first = n == 0;
    if (!first && (!actions || !rewards)) throw std::invalid_argument("there is no transition");
    if (p.states && (!asked || (!first && (!states || !reached))))
      throw std::invalid_argument("there are no states");
    auto numbers = [B](const std::optional<Numbers>& a, int64_t limit, const char* name) {
      int64_t* found = data(a, B, name);
      if (found) expect_below(found, B, limit, name);
      return found;
    };
    int64_t* s = numbers(states, p.states, "states");
    int64_t* a = numbers(actions, p.actions, "actions");
    int64_t* r = numbers(reached, p.states, "states reached");
    int64_t* q = numbers(asked, p.states, "states asked about");
    float* paid = data(rewards, B, "rewards");
    nb::gil_scoped_release release;
    active->player_step(p, int(B), n, capacity, s, a, paid, r, q, cache.data(), logits.data(),
                        threads);
  }

  // See World. Fills taken, visited, paid, proposed and observed, (B, T) each.
  bool play(const Array& rewards, const std::optional<Numbers>& after,
            const std::optional<Array>& noise, const Flags& hit,
            const std::optional<Array>& shifts, const std::optional<Array>& edges,
            const std::optional<Array>& uniforms, const std::optional<Array>& spreads,
            const std::optional<Array>& normals, const std::optional<Array>& luck,
            float temperature, const Numbers& taken, const Numbers& visited, const Array& paid,
            const Array& proposed, const Array& observed, int steps, int together,
            int threads) const {
    if (steps > player_.shape.positions || together < 1)
      throw std::invalid_argument("more steps than the model has positions");
    if (player_.states && !after) throw std::invalid_argument("states lead nowhere");
    if (!luck && temperature != 0.0f) throw std::invalid_argument("there is nothing to draw by");
    const World world = world_of(std::max(player_.states, 1), player_.actions, steps, rewards, after,
                                 noise, hit, shifts, edges, uniforms, spreads, normals, taken,
                                 visited, paid, proposed, observed);
    const size_t B = hit.size() / steps;
    const float* drawn = data(luck, B * steps, "luck");
    nb::gil_scoped_release release;
    return active->play(player_, world, int(B), drawn, temperature, together, threads);
  }

 private:
  const float* copy(const Array& a) {
    kept_.emplace_back(a.data(), a.data() + a.size());
    return kept_.back().data();
  }

  Player player_{};
  std::list<std::vector<float>> kept_;
  std::vector<float> transposed_, head_, bias_;
};

// The grid of a mixture, copied; see Mixture.
class ArmMixture {
 public:
  ArmMixture(int arms, int every, float noise, const Array& eps, const Array& widths,
             const Array& means, const Array& places, const Array& share,
             const std::optional<Array>& rivals) {
    if (arms < 1 || every < 1 || means.size() < PADDING || places.size() < means.size())
      throw std::invalid_argument("this is no grid");
    const int offsets = int(places.size() - means.size()) / every + 1;
    m_ = {arms, int(eps.size()), int(widths.size()), int(share.size() / (offsets * means.size())),
          int(means.size()), offsets, every, noise};
    expect(places, size_t(m_.points) + size_t(every) * (offsets - 1), "places");
    expect(share, size_t(m_.scales) * offsets * m_.points, "share");
    if (rivals) expect(*rivals, share.size(), "rivals");
    m_.eps = copy(eps), m_.widths = copy(widths), m_.means = copy(means);
    m_.places = copy(places), m_.share = copy(share);
    m_.rivals = rivals ? copy(*rivals) : nullptr;
  }
  ArmMixture(const ArmMixture&) = delete;

  void observe(const Array& tables, const Array& most, const Array& beliefs, const Array& below,
               const Array& evidence, const std::optional<Array>& lead, const Numbers& actions, const Array& rewards,
               int threads) const {
    const size_t B = actions.size();
    const Beliefs s = known(B, &tables, most, beliefs, below, evidence, lead);
    expect(rewards, B, "rewards");
    expect_below(actions.data(), B, m_.arms, "actions");
    nb::gil_scoped_release release;
    active->mixture_observe(m_, s, long(B), actions.data(), rewards.data(), threads);
  }

  void best(const Array& most, const Array& beliefs, const Array& below, const Array& evidence,
            const std::optional<Array>& lead, const Array& found, int threads) const {
    const size_t B = found.size() / m_.arms;
    const Beliefs s = known(B, nullptr, most, beliefs, below, evidence, lead);
    expect(found, B * m_.arms, "found");
    nb::gil_scoped_release release;
    active->mixture_best(m_, s, long(B), found.data(), threads);
  }

  void act(const Array& most, const Array& beliefs, const Array& below, const Array& evidence,
           const std::optional<Array>& lead, const Array& uniforms, float temperature, const Numbers& actions, int threads) const {
    const size_t B = actions.size();
    const Beliefs s = known(B, nullptr, most, beliefs, below, evidence, lead);
    expect(uniforms, B, "uniforms");
    nb::gil_scoped_release release;
    active->mixture_act(m_, s, long(B), uniforms.data(), temperature, actions.data(), threads);
  }

  // Whole episodes, as Player::play. Whoever draws its arms by `luck` (B, T) knows nothing at first.
  void play(const Array& rewards, const std::optional<Array>& noise, const Flags& hit,
            const std::optional<Array>& shifts, const std::optional<Array>& edges,
            const std::optional<Array>& uniforms, const std::optional<Array>& spreads,
            const std::optional<Array>& normals, const Array& luck, float temperature,
            const Numbers& taken, const Numbers& visited, const Array& paid, const Array& proposed,
            const Array& observed, int steps, int threads) const {
    const World world = world_of(1, m_.arms, steps, rewards, std::nullopt, noise, hit, shifts, edges,
                                 uniforms, spreads, normals, taken, visited, paid, proposed,
                                 observed);
    expect(luck, hit.size(), "luck");
    nb::gil_scoped_release release;
    active->mixture_play(m_, world, long(hit.size()) / steps, luck.data(), temperature, threads);
  }

 private:
  Beliefs known(size_t B, const Array* tables, const Array& most, const Array& beliefs,
                const Array& below, const Array& evidence,
                const std::optional<Array>& lead) const {
    const size_t arms = B * m_.arms, kinds = arms * m_.shares * m_.scales;
    if (tables)
      expect(*tables, arms * m_.shares * m_.spreads * m_.points * m_.offsets, "tables");
    expect(most, arms, "most"), expect(evidence, kinds, "evidence");
    expect(beliefs, kinds * m_.padded(), "beliefs"), expect(below, kinds * m_.padded(), "below");
    if (m_.rivals && !lead) throw std::invalid_argument("with rivals there is a lead");
    if (lead) expect(*lead, kinds, "lead");
    return {tables ? tables->data() : nullptr, most.data(), beliefs.data(), below.data(),
            evidence.data(), lead ? lead->data() : nullptr};
  }

  const float* copy(const Array& a) {
    kept_.emplace_back(a.data(), a.data() + a.size());
    return kept_.back().data();
  }

  Mixture m_{};
  std::list<std::vector<float>> kept_;
};

// The grid of a mixture with features, copied; see LinearGrid.
class LinearMixture {
 public:
  LinearMixture(float scale, float squeeze, float log_clean, float log_poisoned,
                const Array& grid, const Array& moves, const Places& below, const Array& beyond,
                const Array& rows, const std::optional<Array>& features, int arms, int dimension) {
    const size_t O = moves.size(), G = arms > 0 ? below.size() / arms : 0;
    const size_t K = G ? rows.size() / G : 0, M = grid.size();
    if (M < 2 || O < 1 || G < 1 || G % PADDING) throw std::invalid_argument("this is no grid");
    expect(below, G * arms, "below"), expect(beyond, G * arms, "beyond");
    expect(rows, G * K, "rows");
    const size_t D = features ? size_t(std::max(dimension, 0)) : 0;
    if (K != (features ? D + D * D : size_t(arms))) throw std::invalid_argument("rows do not fit");
    for (size_t i = 0; i < below.size(); ++i)
      if (below.data()[i] < 0 || size_t(below.data()[i]) + 1 >= M)
        throw std::invalid_argument("places out of range");
    const int columns = int((M + PADDING - 1) / PADDING * PADDING);
    grid_ = copied(grid), grid_.resize(columns, grid_.back());
    moves_ = copied(moves), beyond_ = copied(beyond), rows_ = copied(rows);
    below_.assign(below.data(), below.data() + below.size());
    if (features) features_ = copied(*features), expect(*features, K * arms, "features");
    find_reach(arms, G, columns);
    m_ = {arms, columns, int(O), int(K), int(D), long(G), log_clean, log_poisoned, scale,
          squeeze, grid_.data(), moves_.data(), below_.data(), beyond_.data(), first_.data(),
          first_column_.data(), column_count_.data(), rows_.data(), features_.data()};
  }
  LinearMixture(const LinearMixture&) = delete;

  int columns() const { return m_.columns; }

  void observe(const Array& tables, const Array& marginals, const Array& logs,
               const Numbers& actions, const Array& rewards, int threads) const {
    const size_t B = actions.size();
    const LinearBeliefs s = known(B, tables, marginals, logs);
    expect(rewards, B, "rewards");
    expect_below(actions.data(), B, m_.arms, "actions");
    nb::gil_scoped_release release;
    active->linear_observe(m_, s, long(B), actions.data(), rewards.data(), threads);
  }

  void expected(const Array& logs, const Array& found, int threads) const {
    const size_t B = found.size() / m_.rows;
    expect(logs, B * m_.points, "logs"), expect(found, B * m_.rows, "found");
    nb::gil_scoped_release release;
    active->linear_expected(m_, long(B), logs.data(), found.data(), threads);
  }

  void act(const Array& logs, const Array& uniforms, float factor, const Numbers& actions,
           int threads) const {
    const size_t B = actions.size();
    expect(logs, B * m_.points, "logs"), expect(uniforms, B, "uniforms");
    nb::gil_scoped_release release;
    active->linear_act(m_, long(B), logs.data(), uniforms.data(), factor, actions.data(), threads);
  }

  // Whole episodes, as Player::play, with what is known of the tasks.
  void play(const Array& tables, const Array& marginals, const Array& logs, const Array& rewards,
            const std::optional<Array>& noise, const Flags& hit, const std::optional<Array>& shifts,
            const std::optional<Array>& edges, const std::optional<Array>& uniforms,
            const std::optional<Array>& spreads, const std::optional<Array>& normals,
            const Array& luck, float factor, const Numbers& taken, const Numbers& visited,
            const Array& paid, const Array& proposed, const Array& observed, int steps,
            int threads) const {
    const World world = world_of(1, m_.arms, steps, rewards, std::nullopt, noise, hit, shifts, edges,
                                 uniforms, spreads, normals, taken, visited, paid, proposed,
                                 observed);
    const size_t B = hit.size() / steps;
    const LinearBeliefs s = known(B, tables, marginals, logs);
    expect(luck, hit.size(), "luck");
    nb::gil_scoped_release release;
    active->linear_play(m_, s, world, long(B), luck.data(), factor, threads);
  }

 private:
  static std::vector<float> copied(const Array& a) { return {a.data(), a.data() + a.size()}; }

  // Which columns each arm needs, and each of its tiles.
  void find_reach(int arms, size_t G, int columns) {
    for (int a = 0; a < arms; ++a) {
      const int32_t* below = below_.data() + a * G;
      const auto [low, high] = std::minmax_element(below, below + G);
      const int count = (*high - *low + 2 + PADDING - 1) / PADDING * PADDING;
      first_column_.push_back(std::min(int(*low), columns - count));
      column_count_.push_back(count);
      for (size_t g = 0; g < G; g += PADDING) {
        const auto [least, most] = std::minmax_element(below + g, below + g + PADDING);
        first_.push_back(*most + 1 - *least < PADDING ? *least : -1);
      }
    }
  }

  LinearBeliefs known(size_t B, const Array& tables, const Array& marginals,
                      const Array& logs) const {
    const size_t columns = B * m_.arms * m_.columns;
    expect(tables, columns * m_.offsets, "tables"), expect(marginals, columns, "marginals");
    expect(logs, B * m_.points, "logs");
    return {tables.data(), marginals.data(), logs.data()};
  }

  LinearGrid m_{};
  std::vector<float> grid_, moves_, beyond_, rows_, features_;
  std::vector<int32_t> below_, first_;
  std::vector<int> first_column_, column_count_;
};

// The grid of an oracle, copied; see OracleGrid.
class WeightOracle {
 public:
  WeightOracle(float step, float scale, const Array& line, const Array& features, int axis)
      : line_(line.data(), line.data() + line.size()),
        features_(features.data(), features.data() + features.size()) {
    const int row = int(line.size()), arms = int(features.size() / 2);
    if (axis < 1 || axis > row || row % PADDING || arms < 1)
      throw std::invalid_argument("this is no grid");
    expect(features, size_t(arms) * 2, "features");
    m_ = {arms, axis, row, step, scale, line_.data(), features_.data()};
  }
  WeightOracle(const WeightOracle&) = delete;

  void observe(const Array& logs, const Array& places, const Array& seen, long n,
               const Array& attack, const Numbers& actions, const Array& rewards,
               int threads) const {
    const size_t B = actions.size();
    const OracleBeliefs s = known(B, logs, places, seen, n, 1);
    expect(attack, B * m_.arms * mithridate::ATTACK, "attack"), expect(rewards, B, "rewards");
    expect_below(actions.data(), B, m_.arms, "actions");
    nb::gil_scoped_release release;
    active->oracle_observe(m_, s, long(B), n, actions.data(), rewards.data(), attack.data(),
                           threads);
  }

  void act(const Array& logs, const Array& places, const Array& seen, const Array& uniforms,
           const Numbers& actions, int threads) const {
    const size_t B = actions.size();
    const OracleBeliefs s = known(B, logs, places, seen, 0, 0);
    expect(uniforms, B * mithridate::LUCK, "uniforms");
    nb::gil_scoped_release release;
    active->oracle_act(m_, s, long(B), uniforms.data(), actions.data(), threads);
  }

  // Whole episodes, as Player::play, with what is known of the tasks after n rewards.
  void play(const Array& logs, const Array& places, const Array& seen, long known_rewards,
            const Array& attack, const Array& rewards, const std::optional<Array>& noise,
            const Flags& hit, const std::optional<Array>& shifts, const std::optional<Array>& edges,
            const std::optional<Array>& uniforms, const std::optional<Array>& spreads,
            const std::optional<Array>& normals, const Array& luck, const Numbers& taken,
            const Numbers& visited, const Array& paid, const Array& proposed, const Array& observed,
            int steps, int threads) const {
    const World world = world_of(1, m_.arms, steps, rewards, std::nullopt, noise, hit, shifts, edges,
                                 uniforms, spreads, normals, taken, visited, paid, proposed,
                                 observed);
    const size_t B = hit.size() / steps;
    const OracleBeliefs s = known(B, logs, places, seen, known_rewards, steps);
    expect(luck, hit.size() * mithridate::LUCK, "luck");
    expect(attack, B * m_.arms * mithridate::ATTACK, "attack");
    nb::gil_scoped_release release;
    active->oracle_play(m_, s, world, long(B), known_rewards, luck.data(), attack.data(), threads);
  }

 private:
  // With room for more rewards after n.
  OracleBeliefs known(size_t B, const Array& logs, const Array& places, const Array& seen, long n,
                      long more) const {
    const size_t room = B ? seen.size() / (B * mithridate::EVIDENCE) : 0;
    expect(logs, B * m_.axis * m_.row, "logs"), expect(places, B * mithridate::PLACE, "places");
    expect(seen, B * room * mithridate::EVIDENCE, "seen");
    if (n < 0 || (B && size_t(n) + more > room)) throw std::invalid_argument("there is no room");
    return {logs.data(), places.data(), seen.data(), long(room)};
  }

  OracleGrid m_{};
  std::vector<float> line_, features_;
};

void choose(const Array& logits, const std::optional<Array>& uniforms, float temperature,
            const Numbers& actions) {
  const size_t B = actions.size(), A = B ? logits.size() / B : 0;
  expect(logits, B * A, "logits");
  if (!uniforms && temperature != 0.0f) throw std::invalid_argument("there is nothing to draw by");
  const float* drawn = data(uniforms, B, "uniforms");
  active->choose(int(B), int(A), logits.data(), drawn, temperature, actions.data());
}

}  // namespace

NB_MODULE(_kernels, m) {
  m.def("instruction_sets", [] {
    std::vector<std::string> names;
    for (const Kernels* kernels : supported()) names.emplace_back(kernels->name);
    return names;
  });
  m.def("active", [] { return std::string(active->name); });
  m.def("use", &use);
  m.def("multiply_add", [](long rounds, int threads) {
    nb::gil_scoped_release release;
    return active->multiply_add(rounds, threads);
  });
  m.def("insert_sorted", &insert_sorted);
  m.def("room_frames", &room_frames);
  m.def("attention_forward", &attention_forward);
  m.def("attention_backward", &attention_backward);
  m.def("cross_entropy", &cross_entropy);
  m.def("learn", &learn, nb::arg("weights"), nb::arg("x").none(), nb::arg("dx").none(),
        nb::arg("rows").none(), nb::arg("actions").none(), nb::arg("rewards").none(),
        nb::arg("head"), nb::arg("bias"), nb::arg("labels"), nb::arg("gradients"),
        nb::arg("layers"), nb::arg("heads"), nb::arg("width"), nb::arg("positions"),
        nb::arg("batch"), nb::arg("length"), nb::arg("streams"), nb::arg("threads"));
  m.def("forward", &forward);
  m.def("backward", &backward);
  nb::class_<Decoder>(m, "Decoder")
      .def(nb::init<const Array&, int, int, int, int>())
      .def("step", &Decoder::step, nb::arg("x"), nb::arg("queries").none(), nb::arg("cache"),
           nb::arg("y"), nb::arg("n"), nb::arg("capacity"), nb::arg("threads"));
  m.def("choose", &choose, nb::arg("logits"), nb::arg("uniforms").none(), nb::arg("temperature"),
        nb::arg("actions"));
  nb::class_<LinearMixture>(m, "LinearMixture")
      .def(nb::init<float, float, float, float, const Array&, const Array&, const Places&,
                    const Array&, const Array&, const std::optional<Array>&, int, int>(),
           nb::arg("scale"), nb::arg("squeeze"), nb::arg("log_clean"), nb::arg("log_poisoned"),
           nb::arg("grid"), nb::arg("moves"), nb::arg("below"), nb::arg("beyond"), nb::arg("rows"), nb::arg("features").none(), nb::arg("arms"),
           nb::arg("dimension"))
      .def("columns", &LinearMixture::columns)
      .def("observe", &LinearMixture::observe)
      .def("expected", &LinearMixture::expected)
      .def("act", &LinearMixture::act)
      .def("play", &LinearMixture::play, nb::arg("tables"), nb::arg("marginals"), nb::arg("logs"),
           nb::arg("rewards"), nb::arg("noise").none(), nb::arg("hit"), nb::arg("shifts").none(),
           nb::arg("edges").none(), nb::arg("uniforms").none(), nb::arg("spreads").none(),
           nb::arg("normals").none(), nb::arg("luck"), nb::arg("factor"), nb::arg("taken"),
           nb::arg("visited"), nb::arg("paid"), nb::arg("proposed"), nb::arg("observed"),
           nb::arg("steps"), nb::arg("threads"));
  nb::class_<WeightOracle>(m, "WeightOracle")
      .def(nb::init<float, float, const Array&, const Array&, int>())
      .def("observe", &WeightOracle::observe)
      .def("act", &WeightOracle::act)
      .def("play", &WeightOracle::play, nb::arg("logs"), nb::arg("places"), nb::arg("seen"),
           nb::arg("known_rewards"), nb::arg("believed"), nb::arg("rewards"), nb::arg("noise").none(),
           nb::arg("hit"), nb::arg("shifts").none(), nb::arg("edges").none(),
           nb::arg("uniforms").none(), nb::arg("spreads").none(), nb::arg("normals").none(),
           nb::arg("luck"), nb::arg("taken"), nb::arg("visited"), nb::arg("paid"),
           nb::arg("proposed"), nb::arg("observed"), nb::arg("steps"), nb::arg("threads"));
  nb::class_<ArmMixture>(m, "ArmMixture")
      .def(nb::init<int, int, float, const Array&, const Array&, const Array&, const Array&,
                    const Array&, const std::optional<Array>&>(),
           nb::arg("arms"), nb::arg("every"), nb::arg("noise"), nb::arg("eps"), nb::arg("widths"),
           nb::arg("means"), nb::arg("places"), nb::arg("share"), nb::arg("rivals").none())
      .def("observe", &ArmMixture::observe, nb::arg("tables"), nb::arg("most"), nb::arg("beliefs"),
           nb::arg("below"), nb::arg("evidence"), nb::arg("lead").none(), nb::arg("actions"),
           nb::arg("rewards"), nb::arg("threads"))
      .def("best", &ArmMixture::best, nb::arg("most"), nb::arg("beliefs"), nb::arg("below"),
           nb::arg("evidence"), nb::arg("lead").none(), nb::arg("found"), nb::arg("threads"))
      .def("act", &ArmMixture::act, nb::arg("most"), nb::arg("beliefs"), nb::arg("below"),
           nb::arg("evidence"), nb::arg("lead").none(), nb::arg("uniforms"), nb::arg("temperature"),
           nb::arg("actions"), nb::arg("threads"))
      .def("play", &ArmMixture::play, nb::arg("rewards"), nb::arg("noise").none(), nb::arg("hit"),
           nb::arg("shifts").none(), nb::arg("edges").none(), nb::arg("uniforms").none(),
           nb::arg("spreads").none(), nb::arg("normals").none(), nb::arg("luck"),
           nb::arg("temperature"), nb::arg("taken"), nb::arg("visited"), nb::arg("paid"),
           nb::arg("proposed"), nb::arg("observed"), nb::arg("steps"), nb::arg("threads"));
  nb::class_<NativePlayer>(m, "Player")
      .def(nb::init<const Array&, int, int, int, int, const Array&, const Array&, const Array&,
                    const std::optional<Array>&, const std::optional<Array>&, const Array&,
                    const Array&>(),
           nb::arg("weights"), nb::arg("layers"), nb::arg("heads"), nb::arg("width"),
           nb::arg("positions"), nb::arg("start"), nb::arg("reward"), nb::arg("pairs"),
           nb::arg("reached").none(), nb::arg("asked").none(), nb::arg("head"), nb::arg("bias"))
      .def("step", &NativePlayer::step, nb::arg("states").none(), nb::arg("actions").none(),
           nb::arg("rewards").none(), nb::arg("reached").none(), nb::arg("asked").none(),
           nb::arg("cache"), nb::arg("logits"), nb::arg("n"), nb::arg("capacity"),
           nb::arg("threads"))
      .def("play", &NativePlayer::play, nb::arg("rewards"), nb::arg("after").none(),
           nb::arg("noise").none(), nb::arg("hit"), nb::arg("shifts").none(),
           nb::arg("edges").none(), nb::arg("uniforms").none(), nb::arg("spreads").none(),
           nb::arg("normals").none(), nb::arg("luck").none(), nb::arg("temperature"),
           nb::arg("taken"), nb::arg("visited"), nb::arg("paid"), nb::arg("proposed"),
           nb::arg("observed"), nb::arg("steps"), nb::arg("together"), nb::arg("threads"));
}
