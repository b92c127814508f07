// AVX2 and FMA: the generic loops, for registers of eight floats, but for products of integers.
#include "kernels.h"

#include <immintrin.h>

namespace {
inline float madd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
}  // namespace

#include "blocks_avx2.inl"
#include "loops.inl"

namespace {

constexpr int kOctet = 8;  // floats of a register

inline __m256 floats_at(const float *from) { return _mm256_loadu_ps(from); }

// The even and the odd ones of eight pairs of bf16.
inline __m256 even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 odd(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000u))));
}

// sum += a * b. In assembly, because GCC 12 lets the result take b's register, and then moves sums to
// memory and back.
inline void fused_add(__m256 &sum, __m256 a, __m256 b) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
}

// The same of two registers of columns with a factor in memory: the sums of six rows leave one
// register for it.
inline void fused_add(__m256 (&sum)[2], const __m256 (&a)[2], const float &factor) {
  __m256 all;
  asm("vbroadcastss %5, %2\n\t"
      "vfmadd231ps %2, %3, %0\n\t"
      "vfmadd231ps %2, %4, %1"
      : "+x"(sum[0]), "+x"(sum[1]), "=&x"(all)
      : "x"(a[0]), "x"(a[1]), "m"(factor));
}

constexpr int kRows = 6;  // that go over weights together, two registers of columns at a time

// out[r] += the products of rows of floats, `x_apart` from one another, with pairs of bf16 of kSome
// registers of columns, `step` registers from one pair to the next: each sum in order.
// kAhead: bytes from `ahead` on that are fetched meanwhile, for each pair; or 0.
template <int kCount, int kSome, int kAhead = 0>
void add_pairs(const __m256i *w, int64_t step, const float *x, int64_t x_apart, int count,
               float *out, int64_t out_apart, const char *ahead = nullptr) {
  __m256 sum[kCount][kSome];
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kSome; ++o) sum[r][o] = floats_at(out + r * out_apart + o * kOctet);
  }
  for (int i = 0; i < count; i += 2, w += step) {
    if constexpr (kAhead > 0) {
#pragma GCC unroll 2
      for (int at = 0; at < kAhead; at += 64) _mm_prefetch(ahead + at, _MM_HINT_T0);
      ahead += kAhead;
    }
    // The even ones first: both kinds at once, and the sums would not all stay in registers.
#pragma GCC unroll 2
    for (int second = 0; second < 2; ++second) {
      __m256 some[kSome];
#pragma GCC unroll 4
      for (int o = 0; o < kSome; ++o) {
        const __m256i pairs = _mm256_loadu_si256(w + o);
        some[o] = second ? odd(pairs) : even(pairs);
      }
#pragma GCC unroll 6
      for (int r = 0; r < kCount; ++r) {
        const float &one = x[r * x_apart + i + second];
        if constexpr (kSome == 2) {
          fused_add(sum[r], some, one);
          continue;
        }
        const __m256 factor = _mm256_broadcast_ss(&one);
#pragma GCC unroll 4
        for (int o = 0; o < kSome; ++o) fused_add(sum[r][o], some[o], factor);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kSome; ++o) _mm256_storeu_ps(out + r * out_apart + o * kOctet, sum[r][o]);
  }
}

template <int kSome, int kAhead = 0>
void add_pairs(const __m256i *w, int64_t step, const float *x, int64_t x_apart, int count, int rows,
               float *out, int64_t out_apart, const char *ahead = nullptr) {
  switch (rows) {
    case 1: return add_pairs<1, kSome, kAhead>(w, step, x, x_apart, count, out, out_apart, ahead);
    case 2: return add_pairs<2, kSome, kAhead>(w, step, x, x_apart, count, out, out_apart, ahead);
    case 3: return add_pairs<3, kSome, kAhead>(w, step, x, x_apart, count, out, out_apart, ahead);
    case 4: return add_pairs<4, kSome, kAhead>(w, step, x, x_apart, count, out, out_apart, ahead);
    case 5: return add_pairs<5, kSome, kAhead>(w, step, x, x_apart, count, out, out_apart, ahead);
    default: return add_pairs<6, kSome, kAhead>(w, step, x, x_apart, count, out, out_apart, ahead);
  }
}

// Inputs become floats once for all outputs, as many of them as stay in the nearest cache. The next
// ones are fetched evenly meanwhile: all at once would keep the sums waiting.
void tile_bf16(const char *panel, const char *x, int64_t stride, int inputs, int rows, float *out) {
  constexpr int kChunk = 128, kStep = kPanel / kOctet;
  constexpr int kPair = 2 * kPanel * sizeof(uint16_t), kBytes = kChunk / 2 * kPair;
  float some[kRows * kChunk];
  std::memset(out, 0, rows * kPanel * sizeof(float));
  for (int begin = 0; begin < inputs; begin += kChunk, panel += kBytes) {
    const int count = inputs - begin < kChunk ? inputs - begin : kChunk;
    const char *ahead = panel + kBytes;
    for (int first = 0, together; first < rows; first += together) {
      const int left = rows - first;  // the last of them are two at least: one alone is slow
      together = left == kRows + 1 ? kRows - 1 : left < kRows ? left : kRows;
      for (int r = 0; r < together; ++r) {
        const char *row = x + (first + r) * stride;
        const uint16_t *from = reinterpret_cast<const uint16_t *>(row) + begin;
        for (int i = 0; i < count; ++i) some[r * kChunk + i] = from_bf16(from[i]);
      }
      const __m256i *w = reinterpret_cast<const __m256i *>(panel);
      float *to = out + first * kPanel;
      if (together <= 2) {  // which have too few sums of two registers to keep the processor busy
        if (together == 1) add_pairs<1, 4>(w, kStep, some, kChunk, count, to, kPanel);
        if (together == 2) add_pairs<2, 4>(w, kStep, some, kChunk, count, to, kPanel);
        continue;
      }
      for (int column = 0; column < kPanel; column += 2 * kOctet) {
        const __m256i *from = w + column / kOctet;
        float *sums = to + column;
        if (first == 0) {
          add_pairs<2, kPair / 2>(from, kStep, some, kChunk, count, together, sums, kPanel, ahead);
          ahead += kBytes / 2;
        } else {
          add_pairs<2>(from, kStep, some, kChunk, count, together, sums, kPanel);
        }
      }
    }
  }
}

void scores(const uint16_t *keys, int blocks, const uint16_t *q, int pairs, int head_dim, float *out,
            int64_t apart) {
  float some[kRows * kMostHeadDim];
  for (int i = 0; i < pairs * head_dim; ++i) some[i] = from_bf16(q[i]);
  for (int p = 0; p < pairs; ++p) std::memset(out + p * apart, 0, blocks * kLanes * sizeof(float));
  const __m256i *k = reinterpret_cast<const __m256i *>(keys);
  for (int b = 0; b < blocks; ++b, k += head_dim, out += kLanes) {
    add_pairs<2>(k, kLanes / kOctet, some, head_dim, head_dim, pairs, out, apart);
  }
}

void weigh(const uint16_t *values, int n, const float *weights, int64_t apart, int pairs,
           int head_dim, float *acc) {
  const __m256i *value = reinterpret_cast<const __m256i *>(values);
  for (int at = 0; at < head_dim; at += 2 * kOctet) {
    add_pairs<2>(value + at / kOctet, head_dim / kOctet, weights, apart, n, pairs, acc + at,
                 head_dim);
  }
}

}  // namespace

#include "halves_numbers.inl"
#include "halves_avx2.inl"
#include "halves.inl"
#include "half_rows.inl"

namespace {

template <class F>
constexpr Tiles kTiles{kTileRows, prepare_groups, Whole<F>::tile};

}  // namespace

const Kernels kAvx2 = {
    "avx2",
    {{kTileRows, prepare_bf16, tile_bf16}, kTiles<Q8_0>, kTiles<Q4_1>, kTiles<Q4_0>, kTiles<Q5_0>,
     kTiles<Q5_1>, kTiles<Q4_K>, kTiles<Q5_K>, kTiles<Q6_K>, kTiles<IQ4_NL>, kTiles<IQ4_XS>,
     kTiles<MXFP4>, kTiles<S4_128>, kTiles<Z4_32>, kTiles<Z4_128>},
    norm, to_bf16, rotate, swiglu, {kRows, 2, scores, weigh}, softmax, argmax, gumbel, bounds, mass, max_of,
    few_rows<float>, few_rows<double>,
    {kHalves<InBf16>, kHalves<InFp16>}};
