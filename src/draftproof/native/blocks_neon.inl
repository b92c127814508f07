// Products of integers in groups (`Blocks`) by NEON. The sums of a part are exact, whichever
// instructions add them: the includer's `Sums`. The floats come in the order of generic.inl.
#include <arm_neon.h>

#include <cstddef>
#include <cstring>

namespace {

constexpr int kQuad = 4;     // outputs of a register of sums
constexpr int kChunk = 256;  // inputs whose weights stay in the nearest cache for all rows
constexpr int kPairSteps = kSteps / 2;  // steps go by twos: below 8 bits they share a register

// The integers of two steps of four outputs, as bytes with a sign: of 8 bits they are 128 less, and
// values of a table are what they stand for.
struct Steps {
  int8x16_t even, odd;
};

template <class F>
struct Integers {
  const uint8_t *at;  // the quad's bytes in the first register of its half
  uint8x16_t high;

  // Pairs of steps come in order.
  Steps steps(int pair) {
    if constexpr (F::kBits == 8) {
      const uint8_t *from = at + 2 * pair * kRegister;
      const uint8x16_t turned = vdupq_n_u8(128);
      return {vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from), turned)),
              vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from + kRegister), turned))};
    }
    const uint8x16_t both = vld1q_u8(at + pair * kRegister);
    uint8x16_t even = vandq_u8(both, vdupq_n_u8(15)), odd = vshrq_n_u8(both, 4);
    if constexpr (F::kTable) {
      static constexpr Table kTable = F::table();
      const uint8x16_t values = vsubq_u8(vld1q_u8(kTable.of), vdupq_n_u8(F::kZero));
      even = vqtbl1q_u8(values, even);
      odd = vqtbl1q_u8(values, odd);
    }
    if constexpr (F::kBits > 4) {
      constexpr int kWide = F::kBits - 4, kPairs = 4 / kWide;  // pairs of steps in a register
      const uint8_t *from = at + F::kLow + pair / kPairs * kRegister;
      high = pair % kPairs ? vshrq_n_u8(high, 2 * kWide) : vld1q_u8(from);
      const uint8x16_t mask = vdupq_n_u8((1 << kWide) - 1);
      even = vsliq_n_u8(even, vandq_u8(high, mask), 4);
      odd = vsliq_n_u8(odd, vandq_u8(vshrq_n_u8(high, kWide), mask), 4);
    }
    return {vreinterpretq_s8_u8(even), vreinterpretq_s8_u8(odd)};
  }
};

inline float32x4_t halves_at(const char *from) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t *>(from))));
}

template <class F>
float32x4_t scales_at(const char *from) {
  if constexpr (!F::kBf16) return halves_at(from);
  const uint16x4_t bits = vld1_u16(reinterpret_cast<const uint16_t *>(from));
  return vreinterpretq_f32_u32(vshll_n_u16(bits, 16));
}

inline float32x4_t factors_at(const char *from) {
  int32_t four;
  std::memcpy(&four, from, 4);
  const int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}

inline int8x16_t half_group_at(const char *group, int which) {
  return vld1q_s8(reinterpret_cast<const int8_t *>(group) + 16 * which);
}

// What the zero of the integers takes from a row's sums.
template <class F>
int32_t begin_of(const char *group, int part) {
  if constexpr (F::kZero == 0 || F::kBits == 8 || F::kTable) return 0;
  int32_t shift[2];
  std::memcpy(shift, group + offsetof(Group, shift), sizeof(shift));
  const int32_t of_part = F::kParts == 1 ? shift[0] : part ? shift[0] - shift[1] : shift[1];
  return (of_part >> 7) * F::kZero;
}

// Less the sum of a row's integers, which times a block's zero is what that takes from its sums.
inline int32_t less_of(const char *group) {
  int32_t shift;
  std::memcpy(&shift, group + offsetof(Group, shift), sizeof(shift));
  return shift >> 7;
}

// `Sums<kCount, kSome>`: of a part, of kCount rows and kSome quads. It has
//   void begin(const char *x, int64_t stride, const int32_t *from);  // the rows' group
//   template <int kPair> void add(const Steps *weights);             // of each quad
//   int32x4_t row(int r, int quad);
//   kRegisters, of the sums of a row with a quad.
template <class F, template <int, int> class Sums>
struct Whole {
  static constexpr int kPartPairs = kPairSteps / F::kParts;
  static constexpr int kChunkBlocks = kChunk / F::kInputs;
  static_assert(kChunk % F::kInputs == 0);

  template <int kPair, int kEnd, class Of, int kSome>
  static void steps(Integers<F> (&integers)[kSome], Of &sums) {
    if constexpr (kPair < kEnd) {
      Steps weights[kSome];
#pragma GCC unroll 8
      for (int q = 0; q < kSome; ++q) weights[q] = integers[q].steps(kPair);
      sums.template add<kPair>(weights);
      steps<kPair + 1, kEnd>(integers, sums);
    }
  }

  template <int kPart, int kCount, int kSome>
  static void part(const char *block, const char *group, int first, const char *x, int64_t stride,
                   Integers<F> (&integers)[kSome], float32x4_t (*acc)[kSome]) {
    Sums<kCount, kSome> sums;
    int32_t from[kCount];
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) from[r] = begin_of<F>(x + r * stride, kPart);
    sums.begin(x, stride, from);
    steps<kPart * kPartPairs, (kPart + 1) * kPartPairs>(integers, sums);
    const char *fine = group + 2 * F::kHalf;
#pragma GCC unroll 8
    for (int q = 0; q < kSome; ++q) {
      const int at = kQuad * (first + q);
      float32x4_t scale = scales_at<F>(block + 2 * at), minimum = vdupq_n_f32(0.0f);
      if constexpr (F::kMinimum) minimum = halves_at(block + 2 * (kPanel + at));
      int32x4_t zero = vdupq_n_s32(0);
      if constexpr (F::kZeros) {
        const char *zeros = block + 2 * (kPanel + at);
        zero = vmovl_s16(vld1_s16(reinterpret_cast<const int16_t *>(zeros)));
      }
      if constexpr (F::kFine) {
        scale = vmulq_f32(scale, factors_at(fine + kPart * kPanel + at));
        if constexpr (F::kMinimum) {
          minimum = vmulq_f32(minimum, factors_at(fine + F::kParts * kPanel + at));
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) {
        static_assert(offsetof(Group, total) == offsetof(Group, scale) + 4);
        const char *row = x + r * stride + offsetof(Group, scale);
        const float32x2_t of_row = vld1_f32(reinterpret_cast<const float *>(row));
        int32x4_t whole = sums.row(r, q);
        if constexpr (F::kZeros) whole = vmlaq_n_s32(whole, zero, less_of(x + r * stride));
        const float32x4_t scaled = vmulq_f32(vcvtq_f32_s32(whole), scale);
        acc[r][q] = vfmaq_lane_f32(acc[r][q], scaled, of_row, 0);
        if constexpr (F::kMinimum) acc[r][q] = vfmaq_lane_f32(acc[r][q], minimum, of_row, 1);
      }
    }
  }

  // out += the products of kCount rows with kSome quads, `first` and those behind it.
  template <int kCount, int kSome>
  static void quads(const char *block, int first, const char *x, int64_t stride, int blocks,
                    float *out) {
    float32x4_t acc[kCount][kSome];
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
      for (int q = 0; q < kSome; ++q) acc[r][q] = vld1q_f32(out + r * kPanel + kQuad * (first + q));
    }
    for (int b = 0; b < blocks; ++b, block += F::kBytes) {
      const char *group = block + F::kHeader;
      for (int g = 0; g < F::kGroups; ++g, group += F::kGroupBytes, x += sizeof(Group)) {
        Integers<F> integers[kSome];
#pragma GCC unroll 8
        for (int q = 0; q < kSome; ++q) {
          const int at = first + q;
          const char *from = group + at / 4 * F::kHalf + at % 4 * (kRegister / 4);
          integers[q].at = reinterpret_cast<const uint8_t *>(from);
        }
        part<0, kCount>(block, group, first, x, stride, integers, acc);
        if constexpr (F::kParts == 2) part<1, kCount>(block, group, first, x, stride, integers, acc);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
      for (int q = 0; q < kSome; ++q) vst1q_f32(out + r * kPanel + kQuad * (first + q), acc[r][q]);
    }
  }

  template <int kCount>
  static void rows(const char *panel, const char *x, int64_t stride, int blocks, float *out) {
    // As many quads as registers hold: of each row sums and floats, and bits above the fourth.
    constexpr int kOfOne = F::kBits == 4 || F::kBits == 8 ? 8 : 4;
    constexpr int kQuads = kCount == 1 ? kOfOne : kCount == 2 ? 4 : 2;
    constexpr int kSome = kQuads / Sums<1, 1>::kRegisters;
    for (int first = 0; first < kPanel / kQuad; first += kSome) {
      quads<kCount, kSome>(panel, first, x, stride, blocks, out);
    }
  }

  static void tile(const char *panel, const char *x, int64_t stride, int inputs, int rows_of_tile,
                   float *out) {
    std::memset(out, 0, rows_of_tile * kPanel * sizeof(float));
    for (int left = inputs / F::kInputs; left > 0; left -= kChunkBlocks) {
      const int blocks = left < kChunkBlocks ? left : kChunkBlocks;
      for (int r = 0, count; r < rows_of_tile; r += count) {
        const int rest = rows_of_tile - r;
        count = rest > 4 ? (rest == 5 ? 3 : 4) : rest;
        const char *row = x + r * stride;
        float *to = out + r * kPanel;
        switch (count) {
          case 1: rows<1>(panel, row, stride, blocks, to); break;
          case 2: rows<2>(panel, row, stride, blocks, to); break;
          case 3: rows<3>(panel, row, stride, blocks, to); break;
          default: rows<4>(panel, row, stride, blocks, to);
        }
      }
      panel += int64_t(blocks) * F::kBytes;
      x += int64_t(blocks) * F::kGroups * sizeof(Group);
    }
  }
};

}  // namespace
