// Products of rows with matrices of half precision as they lie in memory, one row of weights for each
// output. Included behind what a kind of number is in a set's registers: `InBf16`, `InFp16`.
//
// A row's sums go over its inputs a register at a time, and are added up in one order: which rows
// stand beside it changes no bit of them.
#include <type_traits>

namespace {

// Numbers that are not normal count in every thread, or in none: torch's own differ in that where a
// user has turned it off in one.
class KeptDenormals {
 public:
  KeptDenormals() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~KeptDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
};

// Of four registers the sum of each one's lanes.
inline __m128 totals(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 pairs = _mm256_hadd_ps(a, b), others = _mm256_hadd_ps(c, d);
  const __m256 four = _mm256_hadd_ps(pairs, others);
  return _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
}

constexpr int kLongRow = 3072;  // weights
constexpr int kFour = 4;        // sums of `totals`

// Calls work with `count`, which is from 1 to kMost, as a type.
template <int kMost, class Work>
void with_count(int count, const Work &work) {
  if (count == kMost) return work(std::integral_constant<int, kMost>{});
  if constexpr (kMost > 1) with_count<kMost - 1>(count, work);
}

// sum[o][r] += as many weights of output o as are taken at once, times those inputs of row r.
template <class In, int kSome, int kOuts>
inline __attribute__((always_inline)) void add_step(typename In::Register (&sum)[kOuts][In::kRows],
                                                    const uint16_t *w, int64_t w_row,
                                                    const typename In::Input *x, int64_t x_row) {
#pragma GCC unroll 2
  for (int at = 0; at < In::kAtOnce; at += In::kLanes) {
    typename In::Numbers some[kOuts];
#pragma GCC unroll 3
    for (int o = 0; o < kOuts; ++o) some[o] = In::weights(w + o * w_row + at);
#pragma GCC unroll 8
    for (int r = 0; r < kSome; ++r) {
      const typename In::Numbers one = In::inputs(x + r * x_row + at);
#pragma GCC unroll 3
      for (int o = 0; o < kOuts; ++o) In::add(sum[o][r], some[o], one);
    }
  }
}

// found[o][r]: the sums of kSome rows, padded with zeros, times kOuts others in half precision.
// kAhead: those of as many others, which come next, are fetched meanwhile.
template <class In, int kSome, int kOuts, bool kAhead = false>
inline void multiply_some(const uint16_t *w, int64_t w_row, const typename In::Input *x, int64_t x_row,
                          int64_t inputs, float (&found)[kOuts][In::kRows]) {
  constexpr int kAtOnce = In::kAtOnce;
  typename In::Register sum[kOuts][In::kRows];
#pragma GCC unroll 3
  for (int o = 0; o < kOuts; ++o) {
#pragma GCC unroll 8
    for (int r = 0; r < In::kRows; ++r) sum[o][r] = In::zero();
  }
  int64_t i = 0;
  for (; i + kAtOnce <= inputs; i += kAtOnce) {
    if constexpr (kAhead) {
#pragma GCC unroll 3
      for (int o = 0; o < kOuts; ++o) {
        _mm_prefetch(reinterpret_cast<const char *>(w + (o + kOuts) * w_row + i), _MM_HINT_T0);
      }
    }
    add_step<In, kSome, kOuts>(sum, w + i, w_row, x + i, x_row);
  }
  if (i < inputs) {
    uint16_t rest[kOuts * kAtOnce] = {};
    for (int o = 0; o < kOuts; ++o) {
      std::memcpy(rest + o * kAtOnce, w + o * w_row + i, (inputs - i) * sizeof(uint16_t));
    }
    add_step<In, kSome, kOuts>(sum, rest, kAtOnce, x + i, x_row);
  }
#pragma GCC unroll 3
  for (int o = 0; o < kOuts; ++o) {
#pragma GCC unroll 2
    for (int r = 0; r < kSome; r += kFour) {
      const __m128 four = totals(In::folded(sum[o][r]), In::folded(sum[o][r + 1]),
                                 In::folded(sum[o][r + 2]), In::folded(sum[o][r + 3]));
      _mm_storeu_ps(found[o] + r, four);
    }
  }
}

// kSome rows times the weights of kOuts outputs.
template <class In, int kSome, int kOuts, bool kAhead = false>
void add_halves(const dp_halves &of, const typename In::Input *x, int64_t x_row, int64_t row,
                int64_t output) {
  const uint16_t *w = reinterpret_cast<const uint16_t *>(of.weights) + output * of.weight_row;
  const uint16_t *bias = reinterpret_cast<const uint16_t *>(of.bias);
  uint16_t *out = reinterpret_cast<uint16_t *>(of.out) + row * of.outputs + output;
  float found[kOuts][In::kRows];
  multiply_some<In, kSome, kOuts, kAhead>(w, of.weight_row, x + row * x_row, x_row, of.inputs, found);
  for (int o = 0; o < kOuts; ++o) {
    const float more = bias ? In::number(bias[output + o]) : 0.0f;
    for (int r = 0; r < kSome; ++r) {
      out[r * of.outputs + o] = In::rounded(bias ? found[o][r] + more : found[o][r]);
    }
  }
}

// Calls work(row, how many) until all rows are done: kMost at a time at most, as evenly as can be,
// since a row alone has few sums.
template <int kMost, class Work>
void evenly(int64_t rows, const Work &work) {
  int64_t groups = (rows + kMost - 1) / kMost;
  for (int64_t row = 0, some; groups; row += some, --groups) {
    some = (rows - row + groups - 1) / groups;
    with_count<kMost>(int(some), [&](auto count) { work(row, count); });
  }
}

// All rows, which `read_halves` has made, times the weights of the outputs from `begin` to `end`.
template <class In>
void multiply_halves(const dp_halves &of, const void *rows_at, int64_t x_row, int64_t begin,
                     int64_t end) {
  constexpr int kOuts = In::kOutputs;
  const KeptDenormals denormals;
  const auto *x = static_cast<const typename In::Input *>(rows_at);
  evenly<In::kRows>(of.rows, [&](int64_t row, auto some) {
    constexpr int kSome = decltype(some)::value;
    // The first rows read weights from memory, and a processor foresees only what lies in long rows.
    const bool ahead = row == 0 && of.inputs <= kLongRow;
    const auto add = ahead ? add_halves<In, kSome, kOuts, true> : add_halves<In, kSome, kOuts>;
    int64_t output = begin;
    for (; output + kOuts <= end; output += kOuts) add(of, x, x_row, row, output);
    for (; output < end; ++output) add_halves<In, kSome, 1>(of, x, x_row, row, output);
  });
}

template <class In>
void read_halves(const uint16_t *from, int count, void *out) {
  auto *to = static_cast<typename In::Input *>(out);
  for (int i = 0; i < count; i += kHalvesPadding) {
    uint16_t some[kHalvesPadding] = {};
    const int left = count - i < kHalvesPadding ? count - i : kHalvesPadding;
    std::memcpy(some, from + i, left * sizeof(uint16_t));
    for (int at = 0; at < kHalvesPadding; at += In::kLanes) In::keep(some + at, to + i + at);
  }
}

}  // namespace
