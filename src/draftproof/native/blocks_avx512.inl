// Products of integers in groups (`Blocks`) by AVX512's VNNI.
#include <immintrin.h>

#include <cstddef>

namespace {

// The integers of one step of 16 outputs. Below 8 bits two steps lie in one register.
template <class F>
struct Integers {
  const char *half;
  __m512i low, high;

  // Steps come in order.
  __m512i step(int i) {
    const char *at = half + (F::kBits == 8 ? i : i / 2) * kRegister;
    if constexpr (F::kBits == 8) return _mm512_loadu_si512(at);
    if (i % 2 == 0) low = _mm512_loadu_si512(at);
    const __m512i four = i % 2 ? _mm512_srli_epi16(low, 4) : low;
    const __m512i integers = _mm512_and_si512(four, _mm512_set1_epi8(15));
    if constexpr (F::kTable) {
      static constexpr Table kTable = F::table();
      return _mm512_shuffle_epi8(_mm512_loadu_si512(kTable.of), integers);
    }
    if constexpr (F::kBits == 4) return integers;
    constexpr int kWide = F::kBits == 5 ? 1 : 2, kPerByte = 8 / kWide;
    if (i % kPerByte == 0) high = _mm512_loadu_si512(half + F::kLow + i / kPerByte * kRegister);
    const int from = i % kPerByte * kWide;
    const __m512i moved =
        from < 4 ? _mm512_slli_epi16(high, 4 - from) : _mm512_srli_epi16(high, from - 4);
    const __m512i mask = _mm512_set1_epi8(F::kBits == 5 ? 16 : 48);
    return _mm512_or_si512(integers, _mm512_and_si512(moved, mask));
  }
};

inline __m512 halves_at(const char *from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
}

template <class F>
__m512 scales_at(const char *from) {
  if constexpr (!F::kBf16) return halves_at(from);
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline __m512 factors_at(const char *from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

// The sums of a part are exact, and its floats are added when it is over: rows need two registers
// for each 16 outputs, so `kRows` go at a time.
template <class F>
struct Whole {
  static constexpr int kPartSteps = kSteps / F::kParts;
  // -128 times a sum becomes -kZero times it.
  static constexpr int kShift = F::kZero == 0 ? 32 : F::kZero == 8 ? 4 : F::kZero == 16 ? 3
                              : F::kZero == 32 ? 2 : 0;

  // Where a row's sums begin: what the zero of the integers takes from them.
  static __m512i begin(const char *row, int part) {
    if constexpr (F::kZero == 0) return _mm512_setzero_si512();
    const char *at = row + offsetof(Group, shift);
    if constexpr (F::kParts == 1) {
      return _mm512_srai_epi32(four_bytes(at), kShift);
    } else {
      const __m512i first = four_bytes(at + 4);
      return _mm512_srai_epi32(part ? _mm512_sub_epi32(four_bytes(at), first) : first, kShift);
    }
  }

  static constexpr int kRows = 6, kInputs = F::kInputs, kBytes = F::kBytes;
  static int64_t row_bytes(int inputs) { return inputs / kGroup * sizeof(Group); }

  template <int kCount>
  static void run(const Slice &slice) {
    const char *block = slice.panel, *x = slice.x, *ahead = slice.ahead;
    constexpr int kFetched = F::kGroupBytes + (F::kGroups == 1 ? F::kHeader : 0);
    const int64_t stride = slice.stride;
    __m512 acc[kCount][2];
#pragma GCC unroll 6
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) acc[r][h] = slice.sums(r, h);
    }
    for (int b = 0; b < slice.inputs / F::kInputs; ++b, block += F::kBytes) {
      const char *group = block + F::kHeader;
      for (int g = 0; g < F::kGroups; ++g, group += F::kGroupBytes, x += sizeof(Group)) {
        slice.fetch<kFetched>(ahead);
        Integers<F> integers[2] = {{group}, {group + F::kHalf}};
#pragma GCC unroll 2
        for (int part = 0; part < F::kParts; ++part) {
          __m512i sum[kCount][2];
#pragma GCC unroll 6
          for (int r = 0; r < kCount; ++r) sum[r][0] = sum[r][1] = begin(x + r * stride, part);
#pragma GCC unroll 8
          for (int i = part * kPartSteps; i < (part + 1) * kPartSteps; ++i) {
            const __m512i weights[2] = {integers[0].step(i), integers[1].step(i)};
#pragma GCC unroll 6
            for (int r = 0; r < kCount; ++r) {
              const __m512i input = four_bytes(x + r * stride + 4 * i);
#pragma GCC unroll 2
              for (int h = 0; h < 2; ++h) {
                sum[r][h] = _mm512_dpbusd_epi32(sum[r][h], weights[h], input);
              }
            }
          }
          add<kCount>(block, group, part, x, stride, sum, acc);
        }
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) slice.keep(r, h, acc[r][h]);
    }
  }

  template <int kCount>
  static void add(const char *block, const char *group, int part, const char *x, int64_t stride,
                  const __m512i (*sum)[2], __m512 (*acc)[2]) {
    const char *fine = group + 2 * F::kHalf;
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const int at = 16 * h;
      __m512 scale = scales_at<F>(block + 2 * at), minimum = _mm512_setzero_ps();
      if constexpr (F::kMinimum) minimum = halves_at(block + 2 * (kPanel + at));
      __m512i zero = _mm512_setzero_si512();
      if constexpr (F::kZeros) {
        zero = _mm512_cvtepu16_epi32(
            _mm256_loadu_si256(reinterpret_cast<const __m256i *>(block + 2 * (kPanel + at))));
      }
      if constexpr (F::kFine) {
        scale = _mm512_mul_ps(scale, factors_at(fine + part * kPanel + at));
        if constexpr (F::kMinimum) {
          minimum = _mm512_mul_ps(minimum, factors_at(fine + F::kParts * kPanel + at));
        }
      }
#pragma GCC unroll 6
      for (int r = 0; r < kCount; ++r) {
        const char *row = x + r * stride;
        const __m512 of_row = _mm512_castsi512_ps(four_bytes(row + offsetof(Group, scale)));
        __m512i whole = sum[r][h];
        if constexpr (F::kZeros) {  // products of 16 bits, which is what both have
          const __m512i less = _mm512_srai_epi32(four_bytes(row + offsetof(Group, shift)), 7);
          whole = _mm512_add_epi32(whole, _mm512_madd_epi16(zero, less));
        }
        const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), scale);
        acc[r][h] = _mm512_fmadd_ps(scaled, of_row, acc[r][h]);
        if constexpr (F::kMinimum) {
          const __m512 total = _mm512_castsi512_ps(four_bytes(row + offsetof(Group, total)));
          acc[r][h] = _mm512_fmadd_ps(minimum, total, acc[r][h]);
        }
      }
    }
  }
};

}  // namespace
