// The tile instructions of AMX: eight registers of up to 16 rows of 64 bytes, each of the shape
// that the thread's configuration gives it. Knows nothing of weights.
//
// In assembly, because the intrinsics of GCC 12 do not say which memory they read and write (of a
// configuration the first 8 bytes, of what tileloadd reads nothing), so stores could come too late.
#pragma once
#include <cstdint>
#include <cstring>

namespace amx {

constexpr int kRows = 16, kRowBytes = 64;

// What ldtilecfg reads. A tile of no rows does not exist, and the places above eight stay zero.
struct alignas(64) Shapes {
  uint8_t palette = 1, start_row = 0, none[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(Shapes) == 64);

}  // namespace amx

#if defined(DP_EMULATE_TILES)
#include "emulated_tiles.h"  // the tests' own, for machines without AMX
#else
#include <cpuid.h>

namespace amx {

// Whether the processor has tiles with products of bf16 and int8.
inline bool there() {
  const unsigned bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25;
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && !(~d & (bf16 | tile | int8));
}

inline void get_shapes(Shapes &now) { asm volatile("sttilecfg %0" : "=m"(now)); }

inline void set_shapes(const Shapes &wanted) { asm volatile("ldtilecfg %0" : : "m"(wanted)); }

template <int kTile>
void zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// Its rows lie `stride` bytes apart.
template <int kTile>
void load(const void *from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
void store(void *to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}

// kSum += kA (rows, inputs) . kB, of which a row holds 2 bf16 inputs of each column.
template <int kSum, int kA, int kB>
void dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}

// The same of signed bytes in kA and unsigned ones in kB, 4 inputs of each column in a row.
template <int kSum, int kA, int kB>
void dot_s8u8() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}

}  // namespace amx
#endif

namespace amx {

// Setting shapes is slow and clears the tiles, so a thread keeps them over calls. But no thread is
// ours alone: a caller's may run torch's AMX code in between, which sets its own and releases them.
// So the processor is asked, not a variable. We release nothing: a thread that sleeps or ends with
// tiles in use costs the system 8 KB to save, and a call of somebody else's sets what it needs.
inline void configure(const Shapes &wanted) {
  Shapes now;
  get_shapes(now);
  if (std::memcmp(&now, &wanted, sizeof(now))) set_shapes(wanted);
}

}  // namespace amx
