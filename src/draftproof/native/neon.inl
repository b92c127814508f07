// What the sets of NEON share: the generic loops for registers of four floats, products of bf16 as
// floats, and the list of tiles. The includer brings `Sums` for integers (sums_neon.inl).
#include "kernels.h"

#include <arm_neon.h>

namespace {
inline float madd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
}  // namespace

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"  // most have faster ones here
#include "generic.inl"
#pragma GCC diagnostic pop

#include "blocks_neon.inl"
#include "sums_neon.inl"

namespace {

// The even and the odd ones of four pairs of bf16.
inline float32x4_t even_of(uint32x4_t pairs) { return vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16)); }
inline float32x4_t odd_of(uint32x4_t pairs) {
  return vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u)));
}

// Products of bf16 as floats, fused: every sum in the order of its inputs.
struct Floats {
  static constexpr int kRows = 4, kInputs = 128;  // whose weights stay in the nearest cache

  // out[r][column] += the products of rows of floats, `apart` from one another, with pairs of bf16
  // of kSome quads of columns, `step` pairs from one to the next.
  template <int kCount, int kSome>
  static void add(const uint32_t *w, int step, const float *x, int64_t apart, int count,
                  float *const *out, int column) {
    float32x4_t sum[kCount][kSome];
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
      for (int q = 0; q < kSome; ++q) sum[r][q] = vld1q_f32(out[r] + column + kQuad * q);
    }
    for (int i = 0; i < count; i += 2, w += step) {
      float32x2_t input[kCount];
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) input[r] = vld1_f32(x + r * apart + i);
#pragma GCC unroll 8
      for (int q = 0; q < kSome; ++q) {
        const uint32x4_t pairs = vld1q_u32(w + kQuad * q);
        const float32x4_t even = even_of(pairs), odd = odd_of(pairs);
#pragma GCC unroll 4
        for (int r = 0; r < kCount; ++r) {
          sum[r][q] = vfmaq_lane_f32(sum[r][q], even, input[r], 0);
          sum[r][q] = vfmaq_lane_f32(sum[r][q], odd, input[r], 1);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
      for (int q = 0; q < kSome; ++q) vst1q_f32(out[r] + column + kQuad * q, sum[r][q]);
    }
  }

  // The same of `columns` columns.
  template <int kCount>
  static void add_all(const uint32_t *w, const float *x, int64_t apart, int count, int columns,
                      float *const *out) {
    constexpr int kSome = 4;
    for (int column = 0; column < columns; column += kSome * kQuad) {
      add<kCount, kSome>(w + column, columns, x, apart, count, out, column);
    }
  }

  static void add_all(const uint32_t *w, const float *x, int64_t apart, int count, int columns, int rows,
                      float *const *out) {
    switch (rows) {
      case 1: return add_all<1>(w, x, apart, count, columns, out);
      case 2: return add_all<2>(w, x, apart, count, columns, out);
      case 3: return add_all<3>(w, x, apart, count, columns, out);
      default: return add_all<4>(w, x, apart, count, columns, out);
    }
  }

  static void tile(const char *panel, const char *x, int64_t stride, int inputs, int rows,
                   float *out) {
    float some[kRows * kInputs];
    std::memset(out, 0, rows * kPanel * sizeof(float));
    for (int begin = 0; begin < inputs; begin += kInputs, panel += kInputs * kPanel * 2) {
      const int count = inputs - begin < kInputs ? inputs - begin : kInputs;
      const uint32_t *w = reinterpret_cast<const uint32_t *>(panel);
      for (int first = 0; first < rows; first += kRows) {
        const int together = rows - first < kRows ? rows - first : kRows;
        float *to[kRows];
        for (int r = 0; r < together; ++r) {
          const char *row = x + (first + r) * stride;
          const uint16_t *from = reinterpret_cast<const uint16_t *>(row) + begin;
          for (int i = 0; i < count; ++i) some[r * kInputs + i] = from_bf16(from[i]);
          to[r] = out + (first + r) * kPanel;
        }
        if (together == 1) {  // half the columns have too few sums to keep the processor busy
          add<1, kPanel / kQuad>(w, kPanel, some, kInputs, count, to, 0);
        } else {
          add_all(w, some, kInputs, count, kPanel, together, to);
        }
      }
    }
  }

  static void scores(const uint16_t *keys, int blocks, const uint16_t *q, int pairs, int head_dim,
                     float *out, int64_t apart) {
    float some[kRows * kMostHeadDim], *to[kRows];
    for (int p = 0; p < pairs; ++p) {
      for (int i = 0; i < head_dim; ++i) {
        some[p * kMostHeadDim + i] = from_bf16(q[p * head_dim + i]);
      }
      to[p] = out + p * apart;
      std::memset(to[p], 0, blocks * kLanes * sizeof(float));
    }
    const uint32_t *k = reinterpret_cast<const uint32_t *>(keys);
    for (int b = 0; b < blocks; ++b, k += head_dim / 2 * kLanes) {
      add_all(k, some, kMostHeadDim, head_dim, kLanes, pairs, to);
      for (int p = 0; p < pairs; ++p) to[p] += kLanes;
    }
  }

  // Pairs of slots are to a head's elements what pairs of inputs are to a panel's outputs.
  static void weigh(const uint16_t *values, int n, const float *weights, int64_t apart, int pairs,
                    int head_dim, float *acc) {
    float *to[kRows];
    for (int p = 0; p < pairs; ++p) to[p] = acc + p * head_dim;
    const uint32_t *v = reinterpret_cast<const uint32_t *>(values);
    add_all(v, weights, apart, n, head_dim, pairs, to);
  }
};

template <class F, template <int, int> class Sums>
constexpr Tiles kTiles{kTileRows, prepare_groups, Whole<F, Sums>::tile};

// `Bf16` has the products of bf16: a tile's, and those of queries and keys.
template <class Bf16, template <int, int> class Sums>
constexpr Kernels set_of(const char *name) {
  return {name,
          {{kTileRows, prepare_bf16, Bf16::tile}, kTiles<Q8_0, Sums>, kTiles<Q4_1, Sums>,
           kTiles<Q4_0, Sums>, kTiles<Q5_0, Sums>, kTiles<Q5_1, Sums>, kTiles<Q4_K, Sums>,
           kTiles<Q5_K, Sums>, kTiles<Q6_K, Sums>, kTiles<IQ4_NL, Sums>, kTiles<IQ4_XS, Sums>,
           kTiles<MXFP4, Sums>, kTiles<S4_128, Sums>, kTiles<Z4_32, Sums>, kTiles<Z4_128, Sums>},
          norm, to_bf16, rotate, swiglu, {Floats::kRows, 2, Bf16::scores, Floats::weigh}, softmax,
          argmax, gumbel, bounds, mass, max_of, few_rows<float>, few_rows<double>};
}

constexpr bool complete(const Kernels &set) {
  for (const Tiles &each : set.tiles) {
    if (!each.tile) return false;
  }
  return true;
}

}  // namespace
