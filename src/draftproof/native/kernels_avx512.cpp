// AVX512 with the dot-product instructions of bf16 and int8 (BF16, VNNI).
#include "kernels.h"

#include <immintrin.h>

#define DP_OWN_TO_BF16

namespace {
inline float madd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
void to_bf16(const float *__restrict x, int n, uint16_t *__restrict out);
}  // namespace

#include "tiles_avx512.inl"
#include "blocks_avx512.inl"
#include "loops.inl"

namespace {

// Denormals are zero for this instruction, as they are for those that multiply.
void to_bf16(const float *__restrict x, int n, uint16_t *__restrict out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(x + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + i), reinterpret_cast<__m256i>(rounded));
  }
  for (; i < n; ++i) out[i] = round_bf16(x[i]);
}

inline __m512 dot_bf16(__m512 sum, __m512i w, __m512i x) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
}

// Loops are unrolled by order, or the sums would go through memory.
// Each sum of a row runs over the inputs in order, in one register: any number of rows beside it
// gives the same bits.
struct Bf16 {
  static constexpr int kRows = 12, kInputs = 2, kBytes = 2 * kRegister;
  static int64_t row_bytes(int inputs) { return 2 * inputs; }

  template <int kCount>
  static void run(const Slice &slice) {
    const char *w = slice.panel, *x = slice.x, *ahead = slice.ahead;
    __m512 low[kCount], high[kCount];
#pragma GCC unroll 12
    for (int r = 0; r < kCount; ++r) low[r] = slice.sums(r, 0), high[r] = slice.sums(r, 1);
    for (int i = 0; i < slice.inputs; i += 2, w += kBytes) {
      const __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + kRegister);
      slice.fetch<kBytes>(ahead);
#pragma GCC unroll 12
      for (int r = 0; r < kCount; ++r) {
        const __m512i input = four_bytes(x + r * slice.stride + 2 * i);
        low[r] = dot_bf16(low[r], w0, input);
        high[r] = dot_bf16(high[r], w1, input);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < kCount; ++r) slice.keep(r, 0, low[r]), slice.keep(r, 1, high[r]);
  }
};

// Attention's sums: of kPairs pairs in four registers each, as many as there are.
constexpr int kPairs = 6, kBeside = 4;

// Weights of attention in bf16, as keys, values and whatever else is multiplied.
constexpr int kRounded = 128;
using Rounded = uint16_t[kPairs][kRounded];

template <int kCount, int kBlocks>
void scores_of(const uint16_t *keys, const uint16_t *q, int head_dim, float *out, int64_t apart) {
  __m512 sum[kCount][kBlocks];
#pragma GCC unroll 6
  for (auto &row : sum) {
#pragma GCC unroll 4
    for (auto &each : row) each = _mm512_setzero_ps();
  }
  const int64_t block = int64_t(head_dim) * kLanes;
  for (int i = 0; i < head_dim; i += 2) {
    __m512i k[kBlocks];
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      k[b] = _mm512_loadu_si512(keys + b * block + i * kLanes);
      _mm_prefetch(keys + (b + kBlocks) * block + i * kLanes, _MM_HINT_T0);
    }
#pragma GCC unroll 6
    for (int p = 0; p < kCount; ++p) {
      const __m512i input = four_bytes(q + p * head_dim + i);
#pragma GCC unroll 4
      for (int b = 0; b < kBlocks; ++b) sum[p][b] = dot_bf16(sum[p][b], k[b], input);
    }
  }
#pragma GCC unroll 6
  for (int p = 0; p < kCount; ++p) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) _mm512_storeu_ps(out + p * apart + b * kLanes, sum[p][b]);
  }
}

template <int kCount>
void scores_all(const uint16_t *keys, int blocks, const uint16_t *q, int head_dim, float *out,
                int64_t apart) {
  const int64_t block = int64_t(head_dim) * kLanes;
  for (; blocks >= kBeside; blocks -= kBeside, keys += kBeside * block, out += kBeside * kLanes) {
    scores_of<kCount, kBeside>(keys, q, head_dim, out, apart);
  }
  for (; blocks > 0; --blocks, keys += block, out += kLanes) {
    scores_of<kCount, 1>(keys, q, head_dim, out, apart);
  }
}

void scores(const uint16_t *keys, int blocks, const uint16_t *q, int pairs, int head_dim, float *out,
            int64_t apart) {
  switch (pairs) {
    case 1: return scores_all<1>(keys, blocks, q, head_dim, out, apart);
    case 2: return scores_all<2>(keys, blocks, q, head_dim, out, apart);
    case 3: return scores_all<3>(keys, blocks, q, head_dim, out, apart);
    case 4: return scores_all<4>(keys, blocks, q, head_dim, out, apart);
    case 5: return scores_all<5>(keys, blocks, q, head_dim, out, apart);
    default: return scores_all<6>(keys, blocks, q, head_dim, out, apart);
  }
}

// A part of the head at a time, all pairs. Each sum takes the positions in order, two at once.
template <int kCount, int kParts>
void weigh_of(const uint16_t *values, int n, const Rounded &weights, int head_dim, float *acc) {
  __m512 sum[kCount][kParts];
#pragma GCC unroll 6
  for (int p = 0; p < kCount; ++p) {
#pragma GCC unroll 4
    for (int c = 0; c < kParts; ++c) sum[p][c] = _mm512_loadu_ps(acc + p * head_dim + 16 * c);
  }
  for (int j = 0; j < n; j += 2, values += 2 * head_dim) {
    __m512i two[kParts];
#pragma GCC unroll 4
    for (int c = 0; c < kParts; ++c) {
      two[c] = _mm512_loadu_si512(values + 32 * c);
      _mm_prefetch(values + 32 * head_dim + 32 * c, _MM_HINT_T0);
    }
#pragma GCC unroll 6
    for (int p = 0; p < kCount; ++p) {
      const __m512i weight = four_bytes(weights[p] + j);
#pragma GCC unroll 4
      for (int c = 0; c < kParts; ++c) sum[p][c] = dot_bf16(sum[p][c], two[c], weight);
    }
  }
#pragma GCC unroll 6
  for (int p = 0; p < kCount; ++p) {
#pragma GCC unroll 4
    for (int c = 0; c < kParts; ++c) _mm512_storeu_ps(acc + p * head_dim + 16 * c, sum[p][c]);
  }
}

template <int kCount>
void weigh_all(const uint16_t *values, int n, const Rounded &weights, int head_dim, float *acc) {
  constexpr int kWide = 16 * kBeside;
  int at = 0;
  for (; at + kWide <= head_dim; at += kWide) {
    weigh_of<kCount, kBeside>(values + 2 * at, n, weights, head_dim, acc + at);
  }
  for (; at < head_dim; at += 16) {
    weigh_of<kCount, 1>(values + 2 * at, n, weights, head_dim, acc + at);
  }
}

void weigh_some(const uint16_t *values, int n, const Rounded &weights, int pairs, int head_dim,
                float *acc) {
  switch (pairs) {
    case 1: return weigh_all<1>(values, n, weights, head_dim, acc);
    case 2: return weigh_all<2>(values, n, weights, head_dim, acc);
    case 3: return weigh_all<3>(values, n, weights, head_dim, acc);
    case 4: return weigh_all<4>(values, n, weights, head_dim, acc);
    case 5: return weigh_all<5>(values, n, weights, head_dim, acc);
    default: return weigh_all<6>(values, n, weights, head_dim, acc);
  }
}

void weigh(const uint16_t *values, int n, const float *weights, int64_t apart, int pairs,
           int head_dim, float *acc) {
  Rounded rounded;
  for (; n > 0; n -= kRounded, weights += kRounded, values += int64_t(kRounded) * head_dim) {
    const int some = n < kRounded ? n : kRounded;
    for (int p = 0; p < pairs; ++p) to_bf16(weights + p * apart, some, rounded[p]);
    weigh_some(values, some, rounded, pairs, head_dim, acc);
  }
}

}  // namespace

#include "halves_numbers.inl"
#include "halves_avx512.inl"
#include "halves.inl"
#include "half_rows.inl"

namespace {

template <class F>
constexpr Tiles kTiles{kMostTileRows, prepare_groups, tile<Whole<F>>};

}  // namespace

const Kernels kAvx512 = {
    "avx512",
    {{kTileRows, prepare_bf16, tile<Bf16>}, kTiles<Q8_0>, kTiles<Q4_1>, kTiles<Q4_0>, kTiles<Q5_0>,
     kTiles<Q5_1>, kTiles<Q4_K>, kTiles<Q5_K>, kTiles<Q6_K>, kTiles<IQ4_NL>, kTiles<IQ4_XS>,
     kTiles<MXFP4>, kTiles<S4_128>, kTiles<Z4_32>, kTiles<Z4_128>},
    norm, to_bf16, rotate, swiglu, {kPairs, 2, scores, weigh}, softmax, argmax, gumbel, bounds, mass, max_of,
    few_rows<float>, few_rows<double>,
    {kHalves<InBf16>, kHalves<InFp16>}};
