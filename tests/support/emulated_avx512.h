// AVX512 for machines that have none: the instructions that our kernels name, in plain C++ over the
// compiler's vectors, for test builds. To be included before everything else (-include).
//
// Their meaning is that of Intel's manual. What the compiler makes of loops without intrinsics is
// not seen here, nor are the kernels' own instructions: machines that have them run those.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace emulated512 {

// Not inlined: the kernels' loops are unrolled, and would take a minute to compile.
#define DP_CALLED __attribute__((noinline))

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Integers __attribute__((vector_size(64)));
typedef uint32_t Unsigned __attribute__((vector_size(64)));
typedef uint16_t Shorts __attribute__((vector_size(64)));
typedef int64_t Bits __attribute__((vector_size(64)));
typedef uint16_t Brains __attribute__((vector_size(64)));
typedef uint16_t Half __attribute__((vector_size(32)));

template <class Vector>
DP_CALLED Vector load(const void *from) {
  Vector made;
  std::memcpy(&made, from, 64);
  return made;
}

DP_CALLED inline Bits bytes(char each) {
  char all[64];
  std::memset(all, each, 64);
  return load<Bits>(all);
}

template <class Vector, class From, class Register>
DP_CALLED Vector widened(Register narrow) {
  From from[16];
  std::memcpy(from, &narrow, sizeof(from));
  Vector made;
  for (int i = 0; i < 16; ++i) made[i] = from[i];
  return made;
}

DP_CALLED inline Floats halves(__m256i narrow) {
  float made[16];
  _mm256_storeu_ps(made, _mm256_cvtph_ps(_mm256_castsi256_si128(narrow)));
  _mm256_storeu_ps(made + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(narrow, 1)));
  return load<Floats>(made);
}

DP_CALLED inline __m256 eight(Floats x, int which) {
  float all[16];
  std::memcpy(all, &x, 64);
  return _mm256_loadu_ps(all + 8 * which);
}

DP_CALLED inline Floats fused(Floats a, Floats b, Floats c) {
  for (int i = 0; i < 16; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
}

inline float number(uint32_t bits) {
  float made;
  std::memcpy(&made, &bits, 4);
  return made;
}

// VPSHUFB: bytes of each 16 by their places there; none of ours has the bit that asks for zero.
DP_CALLED inline Bits shuffled(Bits table, Bits places) {
  uint8_t of[64], at[64], made[64];
  std::memcpy(of, &table, 64);
  std::memcpy(at, &places, 64);
  for (int i = 0; i < 64; ++i) made[i] = at[i] & 128 ? 0 : of[i / 16 * 16 + (at[i] & 15)];
  return load<Bits>(made);
}

// VPMADDWD: products of signed numbers of 16 bits, neighbours added.
DP_CALLED inline Bits dot_s16(Bits a, Bits b) {
  int16_t x[32], y[32];
  std::memcpy(x, &a, 64);
  std::memcpy(y, &b, 64);
  Integers sum;
  for (int i = 0; i < 16; ++i) sum[i] = x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1];
  return (Bits)sum;
}

// VDPBF16PS: of each pair the odd one, then the even one, each fused with the sum.
DP_CALLED inline Floats dot_bf16(Floats sum, Brains a, Brains b) {
  const Unsigned x = (Unsigned)a, y = (Unsigned)b;
  for (int i = 0; i < 16; ++i) {
    const float odd = number(x[i] & 0xffff0000u);
    sum[i] = __builtin_fmaf(odd, number(y[i] & 0xffff0000u), sum[i]);
    sum[i] = __builtin_fmaf(number(x[i] << 16), number(y[i] << 16), sum[i]);
  }
  return sum;
}

// VCVTNEPS2BF16: to the nearest, of two as near to the even one; denormals are zero.
DP_CALLED inline Half rounded(Floats x) {
  uint16_t made[16];
  for (int i = 0; i < 16; ++i) {
    uint32_t bits = ((Unsigned)x)[i];
    const uint32_t size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
      bits |= 0x400000u;
    } else {
      bits = size < 0x800000u ? bits & 0x80000000u : bits + 0x7fff + (bits >> 16 & 1);
    }
    made[i] = uint16_t(bits >> 16);
  }
  Half all;
  std::memcpy(&all, made, 32);
  return all;
}

// VPDPBUSD: unsigned bytes of the first factor times signed ones of the second.
DP_CALLED inline Bits dot_u8s8(Bits to, Bits a, Bits b) {
  uint8_t x[64];
  int8_t y[64];
  std::memcpy(x, &a, 64);
  std::memcpy(y, &b, 64);
  Integers sum = (Integers)to;
  for (int i = 0; i < 64; ++i) sum[i / 4] += x[i] * y[i];
  return (Bits)sum;
}

}  // namespace emulated512

#define __builtin_cpu_supports(feature) 1

#undef _mm512_srai_epi32
#undef _mm512_slli_epi32
#undef _mm512_srli_epi16
#undef _mm512_slli_epi16

#define __m512 emulated512::Floats
#define __m512i emulated512::Bits
#define __m512bh emulated512::Brains
#define __m256bh emulated512::Half

#define _mm512_loadu_si512(from) emulated512::load<emulated512::Bits>(from)
#define _mm512_loadu_ps(from) emulated512::load<emulated512::Floats>(from)
#define _mm512_storeu_ps(to, x) \
  do { \
    const emulated512::Floats stored = (x); \
    std::memcpy(to, &stored, 64); \
  } while (0)
#define _mm512_storeu_si512(to, x) \
  do { \
    const emulated512::Bits stored = (x); \
    std::memcpy(to, &stored, 64); \
  } while (0)
#define _mm512_setzero_ps() (emulated512::Floats{})
#define _mm512_setzero_si512() (emulated512::Bits{})
#define _mm512_set1_ps(x) (emulated512::Floats{} + float(x))
#define _mm512_set1_epi32(x) ((emulated512::Bits)(emulated512::Integers{} + int32_t(x)))
#define _mm512_set1_epi8(x) emulated512::bytes(x)
#define _mm512_castps512_ps256(x) emulated512::eight(x, 0)
#define _mm512_extractf32x8_ps(x, which) emulated512::eight(x, which)
#define _mm512_castsi512_ps(x) ((emulated512::Floats)(x))
#define _mm512_cvtepi32_ps(x) \
  __builtin_convertvector((emulated512::Integers)(x), emulated512::Floats)
#define _mm512_cvtph_ps(x) emulated512::halves(x)
#define _mm512_cvtepi8_epi32(x) \
  ((emulated512::Bits)emulated512::widened<emulated512::Integers, int8_t>(x))
#define _mm512_cvtepu16_epi32(x) \
  ((emulated512::Bits)emulated512::widened<emulated512::Integers, uint16_t>(x))
#define _mm512_mul_ps(a, b) ((a) * (b))
#define _mm512_fmadd_ps(a, b, c) emulated512::fused(a, b, c)
#define _mm512_add_epi32(a, b) \
  ((emulated512::Bits)((emulated512::Unsigned)(a) + (emulated512::Unsigned)(b)))
#define _mm512_sub_epi32(a, b) \
  ((emulated512::Bits)((emulated512::Unsigned)(a) - (emulated512::Unsigned)(b)))
#define _mm512_and_si512(a, b) ((a) & (b))
#define _mm512_or_si512(a, b) ((a) | (b))
#define _mm512_srai_epi32(x, by) ((emulated512::Bits)((emulated512::Integers)(x) >> (by)))
#define _mm512_slli_epi32(x, by) ((emulated512::Bits)((emulated512::Unsigned)(x) << (by)))
#define _mm512_srli_epi16(x, by) ((emulated512::Bits)((emulated512::Shorts)(x) >> (by)))
#define _mm512_slli_epi16(x, by) ((emulated512::Bits)((emulated512::Shorts)(x) << (by)))
#define _mm512_shuffle_epi8(table, places) emulated512::shuffled(table, places)
#define _mm512_madd_epi16(a, b) emulated512::dot_s16(a, b)
#define _mm512_dpbusd_epi32(sum, a, b) emulated512::dot_u8s8(sum, a, b)
#define _mm512_cvtneps_pbh(x) emulated512::rounded(x)
#define _mm512_dpbf16_ps(sum, a, b) emulated512::dot_bf16(sum, a, b)
