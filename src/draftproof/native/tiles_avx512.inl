// How rows go over a panel with AVX512: as many at a time as there are registers for.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace {

constexpr int64_t kAhead = 8192;  // bytes of a panel that are fetched before they are needed

// Some inputs of a panel with some rows, which go on with the sums that `out` has.
//
// Rows that do not fit into the registers go over a part of the panel one after the other while it
// lies in the nearest cache. Each of these passes fetches as much ahead as the others: products and
// reading run side by side only where both have work all the time.
struct Slice {
  const char *panel, *ahead;
  const char *x;
  int64_t stride;
  int inputs, passes;
  bool begins;
  float *out;

  // This pass's part of so many bytes.
  template <int kBytes>
  void fetch(const char *&from) const {
    if (passes == 1) {
#pragma GCC unroll 20
      for (int at = 0; at < kBytes; at += 64) _mm_prefetch(from + at, _MM_HINT_T0);
      from += kBytes;
    } else if (passes == 2) {
#pragma GCC unroll 20
      for (int at = 0; at < kBytes / 2; at += 64) _mm_prefetch(from + at, _MM_HINT_T0);
      from += kBytes / 2;
    } else {
      const int part = kBytes / passes;
      for (int at = 0; at < part; at += 64) _mm_prefetch(from + at, _MM_HINT_T0);
      from += part;
    }
  }
  __m512 sums(int row, int half) const {
    return begins ? _mm512_setzero_ps() : _mm512_loadu_ps(out + row * kPanel + 16 * half);
  }
  void keep(int row, int half, __m512 sums) const {
    _mm512_storeu_ps(out + row * kPanel + 16 * half, sums);
  }
};

inline __m512i four_bytes(const void *from) {
  int32_t four;
  std::memcpy(&four, from, 4);
  return _mm512_set1_epi32(four);
}

// `T` has what it takes at a time: kRows rows and kInputs inputs, which are kBytes of a panel.
template <class T, int kCount = T::kRows>
void run(const Slice &slice, int rows) {
  if (rows == kCount) return T::template run<kCount>(slice);
  if constexpr (kCount > 1) run<T, kCount - 1>(slice, rows);
}

template <class T>
void tile(const char *panel, const char *x, int64_t stride, int inputs, int rows, float *out) {
  constexpr int kMost = int(std::max<int64_t>(kAhead / T::kBytes, 1)) * T::kInputs;
  const int passes = (rows + T::kRows - 1) / T::kRows, most = passes == 1 ? inputs : kMost;
  for (int from = 0; from < inputs; from += most) {
    const int count = std::min(most, inputs - from);
    const int64_t bytes = int64_t(count) / T::kInputs * T::kBytes;
    for (int p = 0; p < passes; ++p) {
      const int first = rows * p / passes;
      const Slice slice{panel, panel + kAhead + bytes * p / passes, x + first * stride, stride,
                        count, passes, from == 0, out + first * kPanel};
      run<T>(slice, rows * (p + 1) / passes - first);
    }
    panel += bytes;
    x += T::row_bytes(count);
  }
}

}  // namespace
