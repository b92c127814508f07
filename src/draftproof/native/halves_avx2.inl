// Products of rows with matrices of half precision as they lie in memory, one row of weights for each
// output: for processors that have no products of it. Included behind `fused_add`.
//
// A row's sums go over its inputs eight lanes at a time, and are added up in one order: which rows
// stand beside it changes no bit of them.
namespace {

// Numbers of 16 bits. read: of sixteen of them the first half or the second.
struct Bf16 {
  static __m256 read(const uint16_t *from, int which) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from) + which);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static float number(uint16_t x) { return from_bf16(x); }
  static uint16_t rounded(float x) { return round_bf16(x); }
};

struct Fp16 {
  static __m256 read(const uint16_t *from, int which) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from) + which));
  }
  static float number(uint16_t x) { return _cvtsh_ss(x); }
  static uint16_t rounded(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
};

// Numbers that are not normal count in every thread, or in none: torch's own differ in that where a
// user has turned it off in one.
class Denormals {
 public:
  Denormals() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~Denormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
};

// Of four registers the sum of each one's lanes.
inline __m128 totals(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 pairs = _mm256_hadd_ps(a, b), others = _mm256_hadd_ps(c, d);
  const __m256 four = _mm256_hadd_ps(pairs, others);
  return _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
}

constexpr int kLongRow = 3072;                 // weights
constexpr int kHalfRows = 4, kHalfOutputs = 3;  // twelve sums, and registers for what is multiplied

// sum[o][r] += sixteen weights of output o times those of row r.
template <class Half, int kRows, int kOuts>
inline __attribute__((always_inline)) void add_step(__m256 (&sum)[kOuts][kHalfRows],
                                                    const uint16_t *w, int64_t w_row,
                                                    const float *x, int64_t x_row) {
#pragma GCC unroll 2
  for (int which = 0; which < 2; ++which) {
    __m256 some[kOuts];
#pragma GCC unroll 3
    for (int o = 0; o < kOuts; ++o) some[o] = Half::read(w + o * w_row, which);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256 one = floats_at(x + r * x_row + which * kOctet);
#pragma GCC unroll 3
      for (int o = 0; o < kOuts; ++o) fused_add(sum[o][r], some[o], one);
    }
  }
}

// kRows rows of floats, padded with zeros, times the weights of kOuts outputs.
// kAhead: those of as many others, which come next, are fetched meanwhile.
template <class Half, int kRows, int kOuts, bool kAhead>
void add_halves(const dp_halves &of, const float *x, int64_t x_row, int64_t row, int64_t output) {
  const uint16_t *w = reinterpret_cast<const uint16_t *>(of.weights) + output * of.weight_row;
  const int64_t w_row = of.weight_row, inputs = of.inputs;
  __m256 sum[kOuts][kHalfRows];
#pragma GCC unroll 3
  for (int o = 0; o < kOuts; ++o) {
#pragma GCC unroll 4
    for (int r = 0; r < kHalfRows; ++r) sum[o][r] = _mm256_setzero_ps();
  }
  x += row * x_row;
  int64_t i = 0;
  for (; i + kLanes <= inputs; i += kLanes) {
    if constexpr (kAhead) {
#pragma GCC unroll 3
      for (int o = 0; o < kOuts; ++o) {
        _mm_prefetch(reinterpret_cast<const char *>(w + (o + kOuts) * w_row + i), _MM_HINT_T0);
      }
    }
    add_step<Half, kRows, kOuts>(sum, w + i, w_row, x + i, x_row);
  }
  if (i < inputs) {
    uint16_t rest[kOuts * kLanes] = {};
    for (int o = 0; o < kOuts; ++o) {
      std::memcpy(rest + o * kLanes, w + o * w_row + i, (inputs - i) * sizeof(uint16_t));
    }
    add_step<Half, kRows, kOuts>(sum, rest, kLanes, x + i, x_row);
  }
  const uint16_t *bias = reinterpret_cast<const uint16_t *>(of.bias);
  uint16_t *out = reinterpret_cast<uint16_t *>(of.out) + row * of.outputs + output;
#pragma GCC unroll 3
  for (int o = 0; o < kOuts; ++o) {
    __m128 four = totals(sum[o][0], sum[o][1], sum[o][2], sum[o][3]);
    if (bias) four = _mm_add_ps(four, _mm_set1_ps(Half::number(bias[output + o])));
    float found[kHalfRows];
    _mm_storeu_ps(found, four);
    for (int r = 0; r < kRows; ++r) out[r * of.outputs + o] = Half::rounded(found[r]);
  }
}

template <class Half, int kOuts, bool kAhead>
void add_halves(const dp_halves &of, const float *x, int64_t x_row, int64_t row, int rows,
                int64_t output) {
  switch (rows) {
    case 1: return add_halves<Half, 1, kOuts, kAhead>(of, x, x_row, row, output);
    case 2: return add_halves<Half, 2, kOuts, kAhead>(of, x, x_row, row, output);
    case 3: return add_halves<Half, 3, kOuts, kAhead>(of, x, x_row, row, output);
    default: return add_halves<Half, 4, kOuts, kAhead>(of, x, x_row, row, output);
  }
}

// All rows, which are at `x` as floats, times the weights of the outputs from `begin` to `end`.
template <class Half>
void multiply_halves(const dp_halves &of, const float *x, int64_t x_row, int64_t begin, int64_t end) {
  const Denormals denormals;
  // As evenly as can be: a row alone has few sums.
  int64_t groups = (of.rows + kHalfRows - 1) / kHalfRows;
  for (int64_t row = 0, rows; groups; row += rows, --groups) {
    rows = (of.rows - row + groups - 1) / groups;
    // The first rows read weights from memory, and a processor foresees only what lies in long rows.
    const bool ahead = row == 0 && of.inputs <= kLongRow;
    const auto some = ahead ? add_halves<Half, kHalfOutputs, true> : add_halves<Half, kHalfOutputs, false>;
    int64_t output = begin;
    for (; output + kHalfOutputs <= end; output += kHalfOutputs) {
      some(of, x, x_row, row, int(rows), output);
    }
    for (; output < end; ++output) {
      add_halves<Half, 1, false>(of, x, x_row, row, int(rows), output);
    }
  }
}

template <class Half>
void read_halves(const uint16_t *from, int count, float *out) {
  for (int i = 0; i < count; i += kLanes) {
    uint16_t some[kLanes] = {};
    std::memcpy(some, from + i, (count - i < kLanes ? count - i : kLanes) * sizeof(uint16_t));
    for (int which = 0; which < 2; ++which) {
      _mm256_storeu_ps(out + i + which * kOctet, Half::read(some, which));
    }
  }
}

}  // namespace
