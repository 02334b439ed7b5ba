// Thin binding: checks sizes, chooses the instruction set, releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.hpp"

namespace nb = nanobind;
using mithridate::Kernels;
using mithridate::Shape;
using Array = nb::ndarray<float, nb::c_contig, nb::device::cpu>;

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

void expect(const Array& a, size_t size, const char* name) {
  if (a.size() != size)
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(a.size()) +
                                " elements, not " + std::to_string(size));
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
                     const nb::ndarray<const int64_t, nb::c_contig, nb::device::cpu>& labels,
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
    expect(cache, B * shape_.layers * D * capacity, "cache");
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
  m.def("attention_forward", &attention_forward);
  m.def("attention_backward", &attention_backward);
  m.def("cross_entropy", &cross_entropy);
  m.def("forward", &forward);
  m.def("backward", &backward);
  nb::class_<Decoder>(m, "Decoder")
      .def(nb::init<const Array&, int, int, int, int>())
      .def("step", &Decoder::step, nb::arg("x"), nb::arg("queries").none(), nb::arg("cache"),
           nb::arg("y"), nb::arg("n"), nb::arg("capacity"), nb::arg("threads"));
}
