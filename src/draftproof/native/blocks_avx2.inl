// Products of integers in groups (`Blocks`) by AVX2: bytes with bytes, pairs of them in 16 bits.
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace {

constexpr int kAhead = 8192;  // bytes of the panel that are fetched before they are needed
constexpr int kSoon = 1024;   // of one row, which needs them that much sooner
constexpr int kOctets = kPanel / 8;  // of outputs: the sums of a register
constexpr int kMostRows = 4;  // that go over the weights together: two octets of each in registers

inline __m256i octet_at(const void *from) {
  return _mm256_loadu_si256(static_cast<const __m256i *>(from));
}

inline __m256i four_bytes(const void *from) {
  int32_t four;
  std::memcpy(&four, from, 4);
  return _mm256_set1_epi32(four);
}

inline __m256 four_as_float(const void *from) { return _mm256_castsi256_ps(four_bytes(from)); }

// What is added to it comes one by one: a compiler would add in a tree, whose parts do not fit into
// registers.
inline void in_order(__m256i &sum) { asm("" : "+x"(sum)); }

// The integers of one step of 8 outputs. Below 8 bits two steps lie in one register.
// Of 8 bits they are less 128, with their sign.
template <class F>
struct Integers {
  const char *at;  // the octet's bytes in the first register of its half
  __m256i low, high;

  // Steps come in order.
  __m256i step(int i) {
    const char *from = at + (F::kBits == 8 ? i : i / 2) * kRegister;
    if constexpr (F::kBits == 8) return _mm256_xor_si256(octet_at(from), _mm256_set1_epi8(-128));
    if (i % 2 == 0) low = octet_at(from);
    const __m256i four = i % 2 ? _mm256_srli_epi16(low, 4) : low;
    const __m256i integers = _mm256_and_si256(four, _mm256_set1_epi8(15));
    if constexpr (F::kTable) {
      static constexpr Table kTable = F::table();
      const __m256i sign = _mm256_set1_epi8(F::wide() == 8 ? -128 : 0);
      return _mm256_shuffle_epi8(_mm256_xor_si256(octet_at(kTable.of), sign), integers);
    }
    if constexpr (F::kBits == 4) return integers;
    constexpr int kWide = F::kBits == 5 ? 1 : 2, kPerByte = 8 / kWide;
    if (i % kPerByte == 0) high = octet_at(at + F::kLow + i / kPerByte * kRegister);
    const int bit = i % kPerByte * kWide;
    const __m256i moved =
        bit < 4 ? _mm256_slli_epi16(high, 4 - bit) : _mm256_srli_epi16(high, bit - 4);
    const __m256i mask = _mm256_set1_epi8(F::kBits == 5 ? 16 : 48);
    return _mm256_or_si256(integers, _mm256_and_si256(moved, mask));
  }
};

inline __m256 halves_at(const char *from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
}

template <class F>
__m256 scales_at(const char *from) {
  if constexpr (!F::kBf16) return halves_at(from);
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

inline __m256 factors_at(const char *from) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

// Some blocks of a panel. Rows and octets that do not fit into the registers go over them one after
// the other while they lie in the nearest cache, and each of these passes fetches as much ahead as
// the others: products and reading run side by side only where both have work all the time.
struct Slice {
  const char *block;
  int blocks, passes;
  bool begins;

  // This pass's part of so many bytes.
  template <int kBytes>
  void fetch(const char *&from) const {
    switch (passes) {
      case 2: return fetch_all<kBytes / 2>(from);
      case 4: return fetch_all<kBytes / 4>(from);
      default: fetch_all<kBytes / 6>(from);
    }
  }
  template <int kBytes>
  static void fetch_all(const char *&from) {
#pragma GCC unroll 20
    for (int at = 0; at < kBytes; at += kRegister) _mm_prefetch(from + at, _MM_HINT_T0);
    from += kBytes;
  }
};

// Products of pairs of bytes are added in 16 bits, as often as they fit there, then in 32.
template <class F>
struct Whole {
  static constexpr int kPartSteps = kSteps / F::kParts, kWide = F::wide();
  static constexpr int kFit = kWide == 4 ? 8 : kWide == 5 ? 4 : kWide == 6 ? 2 : 1;
  static_assert(kWide == 8 || ((1 << kWide) - 1) * 127 * 2 * kFit <= 32767);
  // -128 times a sum becomes -kZero times it.
  static constexpr int kShift = F::kZero == 8 ? 4 : F::kZero == 16 ? 3 : 2;

  // Where a row's sums begin: what the zero of the integers takes from them.
  static __m256i begin(const char *row, int part) {
    if constexpr (F::kZero == 0 || kWide == 8) return _mm256_setzero_si256();
    const char *at = row + offsetof(Group, shift);
    if constexpr (F::kParts == 1) {
      return _mm256_srai_epi32(four_bytes(at), kShift);
    } else {
      const __m256i first = four_bytes(at + 4);
      return _mm256_srai_epi32(part ? _mm256_sub_epi32(four_bytes(at), first) : first, kShift);
    }
  }

  // The products of a step of one row, pairs of them added.
  static __m256i pairs(__m256i weights, __m256i absolute, __m256i input) {
    if constexpr (kWide < 8) return _mm256_maddubs_epi16(weights, input);
    return _mm256_maddubs_epi16(absolute, _mm256_sign_epi8(input, weights));
  }

  // kCount rows and kSome octets from `first` on, which go on with the sums that `out` has.
  template <int kCount, int kSome>
  static void octets(const Slice &slice, int first, const char *x, int64_t stride, const char *ahead,
                     float *out) {
    constexpr int kFetched = F::kGroupBytes + (F::kGroups == 1 ? F::kHeader : 0);
    const char *block = slice.block;
    const __m256i ones = _mm256_set1_epi16(1);
    __m256 acc[kCount][kSome];
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
      for (int o = 0; o < kSome; ++o) {
        acc[r][o] = slice.begins ? _mm256_setzero_ps()
                                 : _mm256_loadu_ps(out + r * kPanel + 8 * (first + o));
      }
    }
    for (int b = 0; b < slice.blocks; ++b, block += F::kBytes) {
      const char *group = block + F::kHeader;
      for (int g = 0; g < F::kGroups; ++g, group += F::kGroupBytes, x += sizeof(Group)) {
        if constexpr (kCount == 1) {
          Slice::fetch_all<kFetched>(ahead);
        } else {
          slice.fetch<kFetched>(ahead);
        }
        Integers<F> integers[kSome];
#pragma GCC unroll 4
        for (int o = 0; o < kSome; ++o) {
          const int at = first + o;
          integers[o].at = group + at / 2 * F::kHalf + at % 2 * (kRegister / 2);
        }
#pragma GCC unroll 2
        for (int part = 0; part < F::kParts; ++part) {
          __m256i sum[kCount][kSome], few[kCount][kSome];
#pragma GCC unroll 8
          for (int i = part * kPartSteps; i < (part + 1) * kPartSteps; ++i) {
            const int in_part = i - part * kPartSteps;
            __m256i weights[kSome], absolute[kSome];
#pragma GCC unroll 4
            for (int o = 0; o < kSome; ++o) {
              weights[o] = integers[o].step(i);
              if constexpr (kWide == 8) absolute[o] = _mm256_abs_epi8(weights[o]);
            }
#pragma GCC unroll 4
            for (int r = 0; r < kCount; ++r) {
              const __m256i input = four_bytes(x + r * stride + 4 * i);
#pragma GCC unroll 4
              for (int o = 0; o < kSome; ++o) {
                const __m256i product = pairs(weights[o], absolute[o], input);
                few[r][o] = in_part % kFit ? _mm256_add_epi16(few[r][o], product) : product;
                in_order(few[r][o]);
                if (in_part % kFit != kFit - 1) continue;
                const __m256i whole = _mm256_madd_epi16(few[r][o], ones);
                const bool begins = in_part == kFit - 1;
                const bool empty = begins && (F::kZero == 0 || kWide == 8);
                if (empty) {
                  sum[r][o] = whole;
                } else {
                  sum[r][o] = _mm256_add_epi32(
                      begins ? begin(x + r * stride, part) : sum[r][o], whole);
                }
                in_order(sum[r][o]);
              }
            }
          }
          add<kCount, kSome>(block, group, first, part, x, stride, sum, acc);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
      for (int o = 0; o < kSome; ++o) {
        _mm256_storeu_ps(out + r * kPanel + 8 * (first + o), acc[r][o]);
      }
    }
  }

  template <int kCount, int kSome>
  static void add(const char *block, const char *group, int first, int part, const char *x,
                  int64_t stride, const __m256i (*sum)[kSome], __m256 (*acc)[kSome]) {
    const char *fine = group + 2 * F::kHalf;
#pragma GCC unroll 4
    for (int o = 0; o < kSome; ++o) {
      const int at = 8 * (first + o);
      __m256 scale = scales_at<F>(block + 2 * at), minimum = _mm256_setzero_ps();
      if constexpr (F::kMinimum) minimum = halves_at(block + 2 * (kPanel + at));
      __m256i zero = _mm256_setzero_si256();
      if constexpr (F::kZeros) {
        zero = _mm256_cvtepu16_epi32(
            _mm_loadu_si128(reinterpret_cast<const __m128i *>(block + 2 * (kPanel + at))));
      }
      if constexpr (F::kFine) {
        scale = _mm256_mul_ps(scale, factors_at(fine + part * kPanel + at));
        if constexpr (F::kMinimum) {
          minimum = _mm256_mul_ps(minimum, factors_at(fine + F::kParts * kPanel + at));
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) {
        const char *row = x + r * stride;
        __m256i whole = sum[r][o];
        if constexpr (F::kZeros) {  // products of 16 bits, which is what both have
          const __m256i less = _mm256_srai_epi32(four_bytes(row + offsetof(Group, shift)), 7);
          whole = _mm256_add_epi32(whole, _mm256_madd_epi16(zero, less));
        }
        const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(whole), scale);
        const __m256 of_row = four_as_float(row + offsetof(Group, scale));
        acc[r][o] = _mm256_fmadd_ps(scaled, of_row, acc[r][o]);
        if constexpr (F::kMinimum) {
          acc[r][o] =
              _mm256_fmadd_ps(minimum, four_as_float(row + offsetof(Group, total)), acc[r][o]);
        }
      }
    }
  }

  // kCount rows, and behind them what each of their passes fetches.
  template <int kCount>
  static void rows(const Slice &slice, const char *x, int64_t stride, const char *&ahead,
                   int64_t fetched, float *out) {
    constexpr int kSome = kCount == 1 ? kOctets : 2;
    for (int first = 0; first < kOctets; first += kSome, ahead += fetched) {
      octets<kCount, kSome>(slice, first, x, stride, ahead, out);
    }
  }

  static void tile(const char *panel, const char *x, int64_t stride, int inputs, int all_rows,
                   float *out) {
    const int all = inputs / F::kInputs, turns = (all_rows + kMostRows - 1) / kMostRows;
    const int passes = all_rows == 1 ? 1 : kOctets / 2 * turns;
    const int most = passes == 1 ? all : std::max(kAhead / F::kBytes, 1);
    for (int from = 0; from < all; from += most) {
      const Slice slice{panel, std::min(most, all - from), passes, from == 0};
      const int64_t bytes = int64_t(slice.blocks) * F::kBytes;
      const char *ahead = panel + (passes == 1 ? kSoon : bytes);
      for (int turn = 0; turn < turns; ++turn) {
        const int first = all_rows * turn / turns, end = all_rows * (turn + 1) / turns;
        const char *row = x + first * stride;
        float *to = out + first * kPanel;
        switch (end - first) {
          case 1: rows<1>(slice, row, stride, ahead, bytes / passes, to); break;
          case 2: rows<2>(slice, row, stride, ahead, bytes / passes, to); break;
          case 3: rows<3>(slice, row, stride, ahead, bytes / passes, to); break;
          default: rows<4>(slice, row, stride, ahead, bytes / passes, to);
        }
      }
      panel += bytes;
      x += slice.blocks * F::kGroups * sizeof(Group);
    }
  }
};

}  // namespace
