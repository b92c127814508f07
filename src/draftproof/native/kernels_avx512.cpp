// AVX512 with the dot-product instructions of bf16 and int8 (BF16, VNNI).
#include "kernels.h"

#include <immintrin.h>

namespace {
inline float madd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
}  // namespace

#include "blocks_avx512.inl"
#include "loops.inl"

namespace {

inline __m512 dot_bf16(__m512 sum, __m512i w, __m512i x) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
}

// Loops are unrolled by order, or the sums would go through memory.
// Each sum of a row runs over the inputs in order, in one register: any number of rows beside it
// gives the same bits.
struct Bf16 {
  template <int kCount>
  static void tile(const char *w, const char *x, int64_t stride, int inputs, float *out) {
    __m512 low[kCount], high[kCount];
#pragma GCC unroll 12
    for (int r = 0; r < kCount; ++r) low[r] = high[r] = _mm512_setzero_ps();
    for (int i = 0; i < inputs; i += 2, w += 128) {
      const __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);
      _mm_prefetch(w + kAhead, _MM_HINT_T0);
      _mm_prefetch(w + kAhead + 64, _MM_HINT_T0);
#pragma GCC unroll 12
      for (int r = 0; r < kCount; ++r) {
        const __m512i input = four_bytes(x + r * stride + 2 * i);
        low[r] = dot_bf16(low[r], w0, input);
        high[r] = dot_bf16(high[r], w1, input);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < kCount; ++r) {
      _mm512_storeu_ps(out + r * kPanel, low[r]);
      _mm512_storeu_ps(out + r * kPanel + 16, high[r]);
    }
  }
};

template <class T>
void tile(const char *panel, const char *x, int64_t stride, int inputs, int rows, float *out) {
  switch (rows) {
    case 1: return T::template tile<1>(panel, x, stride, inputs, out);
    case 2: return T::template tile<2>(panel, x, stride, inputs, out);
    case 3: return T::template tile<3>(panel, x, stride, inputs, out);
    case 4: return T::template tile<4>(panel, x, stride, inputs, out);
    case 5: return T::template tile<5>(panel, x, stride, inputs, out);
    case 6: return T::template tile<6>(panel, x, stride, inputs, out);
    case 7: return T::template tile<7>(panel, x, stride, inputs, out);
    case 8: return T::template tile<8>(panel, x, stride, inputs, out);
    case 9: return T::template tile<9>(panel, x, stride, inputs, out);
    case 10: return T::template tile<10>(panel, x, stride, inputs, out);
    case 11: return T::template tile<11>(panel, x, stride, inputs, out);
    default: return T::template tile<12>(panel, x, stride, inputs, out);
  }
}

// Four blocks of keys against all pairs, then the blocks that are left one by one.
template <int kCount, int kBlocks>
void scores_of(const uint16_t *keys, const uint16_t *const *q, int head_dim, float *const *out) {
  __m512 sum[kCount][kBlocks];
  for (auto &row : sum) {
    for (auto &each : row) each = _mm512_setzero_ps();
  }
  const int64_t block = int64_t(head_dim) * kLanes;
  for (int i = 0; i < head_dim; i += 2) {
    __m512i k[kBlocks];
    for (int b = 0; b < kBlocks; ++b) {
      k[b] = _mm512_loadu_si512(keys + b * block + i * kLanes);
      _mm_prefetch(keys + (b + kBlocks) * block + i * kLanes, _MM_HINT_T0);
    }
    for (int p = 0; p < kCount; ++p) {
      const __m512i input = four_bytes(q[p] + i);
      for (int b = 0; b < kBlocks; ++b) sum[p][b] = dot_bf16(sum[p][b], k[b], input);
    }
  }
  for (int p = 0; p < kCount; ++p) {
    for (int b = 0; b < kBlocks; ++b) _mm512_storeu_ps(out[p] + b * kLanes, sum[p][b]);
  }
}

template <int kCount>
void scores_all(const uint16_t *keys, int blocks, const uint16_t *const *q, int head_dim,
                float *const *out) {
  float *to[kCount];
  for (int p = 0; p < kCount; ++p) to[p] = out[p];
  const int64_t block = int64_t(head_dim) * kLanes;
  for (; blocks >= 4; blocks -= 4, keys += 4 * block) {
    scores_of<kCount, 4>(keys, q, head_dim, to);
    for (auto &each : to) each += 4 * kLanes;
  }
  for (; blocks > 0; --blocks, keys += block) {
    scores_of<kCount, 1>(keys, q, head_dim, to);
    for (auto &each : to) each += kLanes;
  }
}

void scores(const uint16_t *keys, int blocks, const uint16_t *const *q, int pairs, int head_dim,
            float *const *out) {
  switch (pairs) {
    case 1: return scores_all<1>(keys, blocks, q, head_dim, out);
    case 2: return scores_all<2>(keys, blocks, q, head_dim, out);
    case 3: return scores_all<3>(keys, blocks, q, head_dim, out);
    default: return scores_all<4>(keys, blocks, q, head_dim, out);
  }
}

// A chunk of the head at a time, all pairs: their sums stay in registers over the whole context.
template <int kCount, int kChunks>
void weigh_of(const uint16_t *values, int64_t n, const float *const *weights, int head_dim,
              float *const *acc, int at) {
  __m512 sum[kCount][kChunks];
  for (int p = 0; p < kCount; ++p) {
    for (int c = 0; c < kChunks; ++c) sum[p][c] = _mm512_loadu_ps(acc[p] + at + 16 * c);
  }
  for (int64_t j = 0; j < n; ++j) {
    __m512 v[kChunks];
    for (int c = 0; c < kChunks; ++c) {
      const __m256i half = _mm256_loadu_si256(
          reinterpret_cast<const __m256i *>(values + j * head_dim + at + 16 * c));
      v[c] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
    _mm_prefetch(values + (j + 32) * head_dim + at, _MM_HINT_T0);
    if (kChunks > 2) _mm_prefetch(values + (j + 32) * head_dim + at + 32, _MM_HINT_T0);
    for (int p = 0; p < kCount; ++p) {
      const __m512 weight = _mm512_set1_ps(weights[p][j]);
      for (int c = 0; c < kChunks; ++c) sum[p][c] = _mm512_fmadd_ps(weight, v[c], sum[p][c]);
    }
  }
  for (int p = 0; p < kCount; ++p) {
    for (int c = 0; c < kChunks; ++c) _mm512_storeu_ps(acc[p] + at + 16 * c, sum[p][c]);
  }
}

template <int kCount>
void weigh_all(const uint16_t *values, int64_t n, const float *const *weights, int head_dim,
               float *const *acc) {
  int at = 0;
  for (; at + 64 <= head_dim; at += 64) weigh_of<kCount, 4>(values, n, weights, head_dim, acc, at);
  for (; at < head_dim; at += 16) weigh_of<kCount, 1>(values, n, weights, head_dim, acc, at);
}

void weigh(const uint16_t *values, int64_t n, const float *const *weights, int pairs, int head_dim,
           float *const *acc) {
  switch (pairs) {
    case 1: return weigh_all<1>(values, n, weights, head_dim, acc);
    case 2: return weigh_all<2>(values, n, weights, head_dim, acc);
    case 3: return weigh_all<3>(values, n, weights, head_dim, acc);
    default: return weigh_all<4>(values, n, weights, head_dim, acc);
  }
}

template <class F>
constexpr Tiles kTiles{kTileRows, prepare_groups, tile<Whole<F>>};

}  // namespace

const Kernels kAvx512 = {
    "avx512",
    {{kTileRows, prepare_bf16, tile<Bf16>}, kTiles<Q8_0>, kTiles<Q4_1>, kTiles<Q4_0>, kTiles<Q5_0>,
     kTiles<Q5_1>, kTiles<Q4_K>, kTiles<Q5_K>, kTiles<Q6_K>, kTiles<IQ4_NL>, kTiles<IQ4_XS>,
     kTiles<MXFP4>, kTiles<S4_128>, kTiles<Z4_32>, kTiles<Z4_128>},
    norm, to_bf16, rotate, swiglu, scores, softmax, weigh, argmax, gumbel, soften, max_of};
