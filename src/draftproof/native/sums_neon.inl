// `Sums` of blocks_neon.inl by the instructions that the includer's compiler has been allowed: bytes
// multiplied into 16 bits, dot products of four bytes, products of matrices of 2 x 8 bytes.
namespace {

// Two products of bytes fit 16 bits, also of bytes of eight bits: |weight| <= 128, |input| <= 127.
template <int kCount, int kSome>
struct WideSums {
  static constexpr int kRegisters = 2;
  int8x16_t input[kCount][2];
  int32_t from[kCount];
  int32x4_t low[kCount][kSome], high[kCount][kSome];  // of two outputs: two sums of each

  void begin(const char *x, int64_t stride, const int32_t *of_row) {
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
      for (int h = 0; h < 2; ++h) input[r][h] = half_group_at(x + r * stride, h);
      from[r] = of_row[r];
#pragma GCC unroll 8
      for (int q = 0; q < kSome; ++q) low[r][q] = high[r][q] = vdupq_n_s32(0);
    }
  }

  template <int kPair>
  void add(const Steps *weights) {
    constexpr int kLane = kPair % 2 * 2;
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
      const int32x4_t x = vreinterpretq_s32_s8(input[r][kPair / 2]);
      const int8x16_t even = vreinterpretq_s8_s32(vdupq_laneq_s32(x, kLane));
      const int8x16_t odd = vreinterpretq_s8_s32(vdupq_laneq_s32(x, kLane + 1));
#pragma GCC unroll 8
      for (int q = 0; q < kSome; ++q) {
        const Steps &w = weights[q];
        const int16x8_t first = vmull_s8(vget_low_s8(w.even), vget_low_s8(even));
        const int16x8_t second = vmull_high_s8(w.even, even);
        low[r][q] = vpadalq_s16(low[r][q], vmlal_s8(first, vget_low_s8(w.odd), vget_low_s8(odd)));
        high[r][q] = vpadalq_s16(high[r][q], vmlal_high_s8(second, w.odd, odd));
      }
    }
  }

  int32x4_t row(int r, int q) const {
    return vaddq_s32(vpaddq_s32(low[r][q], high[r][q]), vdupq_n_s32(from[r]));
  }
};

#if defined(__ARM_FEATURE_DOTPROD)
template <int kCount, int kSome>
struct DotSums {
  static constexpr int kRegisters = 1;
  int8x16_t input[kCount][2];
  int32x4_t sum[kCount][kSome];

  void begin(const char *x, int64_t stride, const int32_t *from) {
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
      for (int h = 0; h < 2; ++h) input[r][h] = half_group_at(x + r * stride, h);
#pragma GCC unroll 8
      for (int q = 0; q < kSome; ++q) sum[r][q] = vdupq_n_s32(from[r]);
    }
  }

  template <int kPair>
  void add(const Steps *weights) {
    constexpr int kLane = kPair % 2 * 2;
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
      const int8x16_t x = input[r][kPair / 2];
#pragma GCC unroll 8
      for (int q = 0; q < kSome; ++q) {
        sum[r][q] = vdotq_laneq_s32(sum[r][q], weights[q].even, x, kLane);
        sum[r][q] = vdotq_laneq_s32(sum[r][q], weights[q].odd, x, kLane + 1);
      }
    }
  }

  int32x4_t row(int r, int q) const { return sum[r][q]; }
};
#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
// Rows by twos: a register holds the sums of two rows with two outputs. One row would fill half of
// it, so it goes by dot products.
template <int kCount, int kSome>
struct MatrixSums {
  static constexpr int kRegisters = 1, kTwos = (kCount + 1) / 2;
  int8x16_t input[kTwos][kPairSteps];  // eight inputs of the one row, eight of the other
  int32x4_t first[kTwos][kSome], second[kTwos][kSome];  // outputs of a quad

  void begin(const char *x, int64_t stride, const int32_t *from) {
#pragma GCC unroll 2
    for (int t = 0; t < kTwos; ++t) {
      const int other = 2 * t + 1 < kCount ? 2 * t + 1 : 2 * t;  // an odd row stands beside itself
      for (int h = 0; h < 2; ++h) {
        const int64x2_t a = vreinterpretq_s64_s8(half_group_at(x + 2 * t * stride, h));
        const int64x2_t b = vreinterpretq_s64_s8(half_group_at(x + other * stride, h));
        input[t][2 * h] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
        input[t][2 * h + 1] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
      }
      const int32x4_t both = vcombine_s32(vdup_n_s32(from[2 * t]), vdup_n_s32(from[other]));
#pragma GCC unroll 4
      for (int q = 0; q < kSome; ++q) first[t][q] = second[t][q] = both;
    }
  }

  template <int kPair>
  void add(const Steps *weights) {
#pragma GCC unroll 4
    for (int q = 0; q < kSome; ++q) {
      const int32x4_t even = vreinterpretq_s32_s8(weights[q].even);
      const int32x4_t odd = vreinterpretq_s32_s8(weights[q].odd);
      const int8x16_t two = vreinterpretq_s8_s32(vzip1q_s32(even, odd));  // outputs, eight inputs each
      const int8x16_t more = vreinterpretq_s8_s32(vzip2q_s32(even, odd));
#pragma GCC unroll 2
      for (int t = 0; t < kTwos; ++t) {
        first[t][q] = vmmlaq_s32(first[t][q], input[t][kPair], two);
        second[t][q] = vmmlaq_s32(second[t][q], input[t][kPair], more);
      }
    }
  }

  int32x4_t row(int r, int q) const {
    const int64x2_t a = vreinterpretq_s64_s32(first[r / 2][q]);
    const int64x2_t b = vreinterpretq_s64_s32(second[r / 2][q]);
    return vreinterpretq_s32_s64(r % 2 ? vzip2q_s64(a, b) : vzip1q_s64(a, b));
  }
};

template <int kSome>
struct MatrixSums<1, kSome> : DotSums<1, kSome> {};
#endif

}  // namespace
