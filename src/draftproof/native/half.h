// Floating-point numbers of 16 bits (fp16 and bf16), by their bits, on any machine. Static: every set of
// kernels compiles them for its own processor.
#pragma once
#include <cstdint>
#include <cstring>

static inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

static inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

static inline float from_bf16(uint16_t x) { return float_of(uint32_t(x) << 16); }

static inline bool finite_half(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// Exact. An infinity or NaN becomes a number: whoever may meet one asks `finite_half`.
static inline float from_half(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, magnitude = half & 0x7fff;
  if (magnitude < 0x0400) {  // not normal, but a normal float
    return float_of(bits_of(float(magnitude) * 0x1p-24f) | sign);
  }
  return float_of(((magnitude << 13) + 0x38000000u) | sign);
}

// A scale as a format of blocks holds it.
template <class F>
static inline float scale_of(uint16_t bits) {
  return F::kBf16 ? from_bf16(bits) : from_half(bits);
}

template <class F>
static inline bool finite_scale(uint16_t bits) {
  return F::kBf16 ? (bits & 0x7f80) != 0x7f80 : finite_half(bits);
}

// To the nearest, ties to even; beyond the largest: infinity.
static inline uint16_t to_half(float x) {
  const uint32_t sign = bits_of(x) >> 16 & 0x8000, magnitude = bits_of(x) & 0x7fffffff;
  if (magnitude >= 0x47800000) return uint16_t(sign | 0x7c00);
  if (magnitude < 0x38800000) {  // not normal in 16 bits: rounded by what an addition drops
    const float least = float_of(magnitude) + 0.5f;
    return uint16_t(sign | (bits_of(least) - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return uint16_t(sign | ((rounded - 0x38000000) >> 13));
}
