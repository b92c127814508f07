// NEON with products of matrices of bytes and of bf16 (FEAT_I8MM, FEAT_BF16). Integers have the bits
// of kNeon; products of bf16 add pairs of inputs in a way of their own.
#include "neon.inl"

namespace {

// BFMMLA multiplies two rows with two outputs, four inputs of each: it adds two pairs of them, one
// after the other. One row stands beside itself, because its bits must not depend on its neighbour.
struct Bf16 {
  static constexpr int kInputs = 128;  // whose weights stay in the nearest cache
  static constexpr int kRows = 6;      // whose sums with half a panel registers hold

  // Inputs of two rows, `some` of four.
  static bfloat16x8_t rows_at(const char *a, const char *b, int some) {
    if (some < 4) {
      uint64_t two[2] = {};
      std::memcpy(&two[0], a, some * 2);
      std::memcpy(&two[1], b, some * 2);
      return vreinterpretq_bf16_u64(vld1q_u64(two));
    }
    return vcombine_bf16(vld1_bf16(reinterpret_cast<const bfloat16_t *>(a)),
                         vld1_bf16(reinterpret_cast<const bfloat16_t *>(b)));
  }

  // The sums of a row and of the next one with a quad, as they lie in memory and as they are added:
  // of both rows with two outputs, of both with the others.
  static void turn(float32x4_t &a, float32x4_t &b) {
    const float64x2_t one = vreinterpretq_f64_f32(a), other = vreinterpretq_f64_f32(b);
    a = vreinterpretq_f32_f64(vzip1q_f64(one, other));
    b = vreinterpretq_f32_f64(vzip2q_f64(one, other));
  }

  // out += the products of kCount rows with kSome quads of a panel.
  template <int kCount, int kSome>
  static void add(const uint32_t *w, const char *x, int64_t stride, int count, float *out) {
    constexpr int kTwos = (kCount + 1) / 2;
    float32x4_t first[kTwos][kSome], second[kTwos][kSome];
    const char *row[kTwos][2];
#pragma GCC unroll 3
    for (int t = 0; t < kTwos; ++t) {
      const int other = 2 * t + 1 < kCount ? 2 * t + 1 : 2 * t;
      row[t][0] = x + 2 * t * stride;
      row[t][1] = x + other * stride;
#pragma GCC unroll 8
      for (int q = 0; q < kSome; ++q) {
        first[t][q] = vld1q_f32(out + 2 * t * kPanel + kQuad * q);
        second[t][q] = vld1q_f32(out + other * kPanel + kQuad * q);
        turn(first[t][q], second[t][q]);
      }
    }
    const auto step = [&](int i, int some) {
      bfloat16x8_t input[kTwos];
#pragma GCC unroll 3
      for (int t = 0; t < kTwos; ++t) input[t] = rows_at(row[t][0] + 2 * i, row[t][1] + 2 * i, some);
#pragma GCC unroll 8
      for (int q = 0; q < kSome; ++q) {
        const uint32_t *at = w + i / 2 * kPanel + kQuad * q;
        const uint32x4_t one = vld1q_u32(at), next = some < 4 ? vdupq_n_u32(0) : vld1q_u32(at + kPanel);
        const bfloat16x8_t two = vreinterpretq_bf16_u32(vzip1q_u32(one, next));
        const bfloat16x8_t more = vreinterpretq_bf16_u32(vzip2q_u32(one, next));
#pragma GCC unroll 3
        for (int t = 0; t < kTwos; ++t) {
          first[t][q] = vbfmmlaq_f32(first[t][q], input[t], two);
          second[t][q] = vbfmmlaq_f32(second[t][q], input[t], more);
        }
      }
    };
    int i = 0;
    for (; i + 4 <= count; i += 4) step(i, 4);
    if (i < count) step(i, 2);
#pragma GCC unroll 3
    for (int t = 0; t < kTwos; ++t) {
#pragma GCC unroll 8
      for (int q = 0; q < kSome; ++q) {
        turn(first[t][q], second[t][q]);
        vst1q_f32(out + 2 * t * kPanel + kQuad * q, first[t][q]);
        if (2 * t + 1 < kCount) vst1q_f32(out + (2 * t + 1) * kPanel + kQuad * q, second[t][q]);
      }
    }
  }

  template <int kCount>
  static void rows(const uint32_t *w, const char *x, int64_t stride, int count, float *out) {
    constexpr int kSome = kCount <= 2 ? 8 : 4;
    for (int at = 0; at < kPanel; at += kSome * kQuad) {
      add<kCount, kSome>(w + at, x, stride, count, out + at);
    }
  }

  static void tile(const char *panel, const char *x, int64_t stride, int inputs, int rows_of_tile,
                   float *out) {
    std::memset(out, 0, rows_of_tile * kPanel * sizeof(float));
    for (int begin = 0; begin < inputs; begin += kInputs, panel += kInputs * kPanel * 2) {
      const int some = inputs - begin < kInputs ? inputs - begin : kInputs;
      const uint32_t *w = reinterpret_cast<const uint32_t *>(panel);
      for (int r = 0, count; r < rows_of_tile; r += count) {
        const int rest = rows_of_tile - r;
        count = rest <= kRows ? rest : rest < 2 * kRows - 2 ? 4 : kRows;
        const char *row = x + r * stride + 2 * begin;
        float *to = out + r * kPanel;
        switch (count) {
          case 1: rows<1>(w, row, stride, some, to); break;
          case 2: rows<2>(w, row, stride, some, to); break;
          case 3: rows<3>(w, row, stride, some, to); break;
          case 4: rows<4>(w, row, stride, some, to); break;
          case 5: rows<5>(w, row, stride, some, to); break;
          default: rows<6>(w, row, stride, some, to);
        }
      }
    }
  }

  // Of kCount queries with a block of keys.
  template <int kCount>
  static void block(const bfloat16_t *keys, const uint16_t *q, int head_dim, float *out,
                    int64_t apart) {
    constexpr int kSome = kLanes / kQuad;
    float32x4_t sum[kCount][kSome];
#pragma GCC unroll 4
    for (int p = 0; p < kCount; ++p) {
#pragma GCC unroll 4
      for (int s = 0; s < kSome; ++s) sum[p][s] = vdupq_n_f32(0.0f);
    }
    const bfloat16_t *query = reinterpret_cast<const bfloat16_t *>(q);
    for (int i = 0; i < head_dim; i += 4, keys += 4 * kLanes) {
      bfloat16x4_t input[kCount];
#pragma GCC unroll 4
      for (int p = 0; p < kCount; ++p) input[p] = vld1_bf16(query + p * head_dim + i);
#pragma GCC unroll 4
      for (int s = 0; s < kSome; ++s) {
        const bfloat16x8_t one = vld1q_bf16(keys + 2 * kQuad * s);
        const bfloat16x8_t next = vld1q_bf16(keys + 2 * kLanes + 2 * kQuad * s);
#pragma GCC unroll 4
        for (int p = 0; p < kCount; ++p) {
          sum[p][s] = vbfdotq_lane_f32(sum[p][s], one, input[p], 0);
          sum[p][s] = vbfdotq_lane_f32(sum[p][s], next, input[p], 1);
        }
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < kCount; ++p) {
#pragma GCC unroll 4
      for (int s = 0; s < kSome; ++s) vst1q_f32(out + p * apart + kQuad * s, sum[p][s]);
    }
  }

  static void scores(const uint16_t *keys, int blocks, const uint16_t *q, int pairs, int head_dim,
                     float *out, int64_t apart) {
    const bfloat16_t *k = reinterpret_cast<const bfloat16_t *>(keys);
    for (int b = 0; b < blocks; ++b, k += head_dim * kLanes, out += kLanes) {
      switch (pairs) {
        case 1: block<1>(k, q, head_dim, out, apart); break;
        case 2: block<2>(k, q, head_dim, out, apart); break;
        case 3: block<3>(k, q, head_dim, out, apart); break;
        default: block<4>(k, q, head_dim, out, apart);
      }
    }
  }
};

}  // namespace

constexpr Kernels kSet = set_of<Bf16, MatrixSums>("neon-matrix");
static_assert(complete(kSet));
const Kernels kNeonMatrix = kSet;
