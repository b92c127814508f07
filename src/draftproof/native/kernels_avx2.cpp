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

// out[r][column] += the products of rows of floats, `apart` from one another, with pairs of bf16 of
// kSome registers of columns, `step` registers from one pair to the next: each sum in order.
// kAhead: bytes behind these that are fetched meanwhile, all columns of a panel; or 0.
template <int kCount, int kSome, int kAhead = 0>
void add_pairs(const __m256i *w, int step, const float *x, int apart, int count, float *const *out,
               int column) {
  __m256 sum[kCount][kSome];
#pragma GCC unroll 4
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kSome; ++o) sum[r][o] = floats_at(out[r] + column + o * kOctet);
  }
  for (int i = 0; i < count; i += 2, w += step) {
    if constexpr (kAhead > 0) {
      _mm_prefetch(reinterpret_cast<const char *>(w) + kAhead, _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char *>(w) + kAhead + 64, _MM_HINT_T0);
    }
    __m256 low[kSome], high[kSome];
#pragma GCC unroll 4
    for (int o = 0; o < kSome; ++o) {
      const __m256i pairs = _mm256_loadu_si256(w + o);
      low[o] = even(pairs);
      high[o] = odd(pairs);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
      const __m256 first = _mm256_broadcast_ss(x + r * apart + i);
      const __m256 second = _mm256_broadcast_ss(x + r * apart + i + 1);
#pragma GCC unroll 4
      for (int o = 0; o < kSome; ++o) {
        sum[r][o] = _mm256_fmadd_ps(high[o], second, _mm256_fmadd_ps(low[o], first, sum[r][o]));
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kSome; ++o) _mm256_storeu_ps(out[r] + column + o * kOctet, sum[r][o]);
  }
}

template <int kSome, int kAhead = 0>
void add_pairs(const __m256i *w, int step, const float *x, int apart, int count, int rows,
               float *const *out, int column) {
  switch (rows) {
    case 1: return add_pairs<1, kSome, kAhead>(w, step, x, apart, count, out, column);
    case 2: return add_pairs<2, kSome, kAhead>(w, step, x, apart, count, out, column);
    case 3: return add_pairs<3, kSome, kAhead>(w, step, x, apart, count, out, column);
    default: return add_pairs<4, kSome, kAhead>(w, step, x, apart, count, out, column);
  }
}

// Inputs become floats once for all outputs, as many of them as stay in the nearest cache.
void tile_bf16(const char *panel, const char *x, int64_t stride, int inputs, int rows, float *out) {
  constexpr int kChunk = 128, kRows = 4, kStep = kPanel / kOctet;
  float some[kRows * kChunk];
  std::memset(out, 0, rows * kPanel * sizeof(float));
  for (int begin = 0; begin < inputs; begin += kChunk, panel += kChunk * kPanel * 2) {
    const int count = inputs - begin < kChunk ? inputs - begin : kChunk;
    for (int first = 0; first < rows; first += kRows) {
      const int together = rows - first < kRows ? rows - first : kRows;
      float *to[kRows];
      for (int r = 0; r < together; ++r) {
        const char *row = x + (first + r) * stride;
        const uint16_t *from = reinterpret_cast<const uint16_t *>(row) + begin;
        for (int i = 0; i < count; ++i) some[r * kChunk + i] = from_bf16(from[i]);
        to[r] = out + (first + r) * kPanel;
      }
      const __m256i *w = reinterpret_cast<const __m256i *>(panel);
      if (together == 1) {  // one row has too few sums to keep the processor busy
        add_pairs<1, 4>(w, kStep, some, kChunk, count, to, 0);
        continue;
      }
      constexpr int kAhead = kChunk * kPanel * 2;  // the next chunk is fetched with the first columns
      if (first == 0) add_pairs<2, kAhead>(w, kStep, some, kChunk, count, together, to, 0);
      for (int column = first ? 0 : 2 * kOctet; column < kPanel; column += 2 * kOctet) {
        add_pairs<2>(w + column / kOctet, kStep, some, kChunk, count, together, to, column);
      }
    }
  }
}

void scores(const uint16_t *keys, int blocks, const uint16_t *const *q, int pairs, int head_dim,
            float *const *out) {
  float some[kPairs * kMostHeadDim];
  for (int p = 0; p < pairs; ++p) {
    for (int i = 0; i < head_dim; ++i) some[p * kMostHeadDim + i] = from_bf16(q[p][i]);
    std::memset(out[p], 0, blocks * kLanes * sizeof(float));
  }
  const __m256i *k = reinterpret_cast<const __m256i *>(keys);
  for (int b = 0; b < blocks; ++b, k += head_dim) {
    add_pairs<2>(k, kLanes / kOctet, some, kMostHeadDim, head_dim, pairs, out, b * kLanes);
  }
}

// A chunk of the head at a time, all pairs: their sums stay in registers over the whole context.
template <int kCount, int kSome>
void weigh_of(const uint16_t *values, int64_t n, const float *const *weights, int head_dim,
              float *const *acc, int at) {
  __m256 sum[kCount][kSome];
#pragma GCC unroll 4
  for (int p = 0; p < kCount; ++p) {
#pragma GCC unroll 2
    for (int o = 0; o < kSome; ++o) sum[p][o] = floats_at(acc[p] + at + o * kOctet);
  }
  for (int64_t j = 0; j < n; ++j) {
    __m256 value[kSome];
#pragma GCC unroll 2
    for (int o = 0; o < kSome; ++o) {
      const uint16_t *from = values + j * head_dim + at + o * kOctet;
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
      value[o] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
#pragma GCC unroll 4
    for (int p = 0; p < kCount; ++p) {
      const __m256 weight = _mm256_broadcast_ss(weights[p] + j);
#pragma GCC unroll 2
      for (int o = 0; o < kSome; ++o) sum[p][o] = _mm256_fmadd_ps(weight, value[o], sum[p][o]);
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kCount; ++p) {
#pragma GCC unroll 2
    for (int o = 0; o < kSome; ++o) _mm256_storeu_ps(acc[p] + at + o * kOctet, sum[p][o]);
  }
}

void weigh(const uint16_t *values, int64_t n, const float *const *weights, int pairs, int head_dim,
           float *const *acc) {
  for (int at = 0; at < head_dim; at += kLanes) {
    switch (pairs) {
      case 1: weigh_of<1, 2>(values, n, weights, head_dim, acc, at); break;
      case 2: weigh_of<2, 2>(values, n, weights, head_dim, acc, at); break;
      case 3: weigh_of<3, 2>(values, n, weights, head_dim, acc, at); break;
      default: weigh_of<4, 2>(values, n, weights, head_dim, acc, at);
    }
  }
}

template <class F>
constexpr Tiles kTiles{kTileRows, prepare_groups, Whole<F>::tile};

}  // namespace

const Kernels kAvx2 = {
    "avx2",
    {{kTileRows, prepare_bf16, tile_bf16}, kTiles<Q8_0>, kTiles<Q4_1>, kTiles<Q4_0>, kTiles<Q5_0>,
     kTiles<Q5_1>, kTiles<Q4_K>, kTiles<Q5_K>, kTiles<Q6_K>, kTiles<IQ4_NL>, kTiles<IQ4_XS>,
     kTiles<MXFP4>, kTiles<S4_128>, kTiles<Z4_32>, kTiles<Z4_128>},
    norm, to_bf16, rotate, swiglu, scores, softmax, weigh, argmax, gumbel, soften, max_of};
