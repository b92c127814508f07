// AMX for machines that have none: the tile instructions in plain C++, as Intel's manual writes
// them (SDM volume 2, TDPBF16PS, TDPBSUD, TILELOADD, LDTILECFG), for test builds of the kernels.
//
// What the processor answers by an invalid-opcode or protection fault ends the process with a word.
#pragma once
#include <immintrin.h>

#include <cstdio>
#include <cstdlib>

namespace emulated {

using amx::kRowBytes;
using amx::kRows;
using amx::Shapes;

union Tile {
  alignas(64) uint8_t bytes[kRows][kRowBytes];
  uint32_t pairs[kRows][16];
  int32_t integers[kRows][16];
  float floats[kRows][16];
};

// What a thread's tile registers are; `set` counts ldtilecfg.
struct Registers {
  Shapes shapes;
  Tile tiles[8];
  int set;
};

inline Registers &registers() {
  static thread_local Registers own = [] {
    Registers fresh{};
    fresh.shapes.palette = 0;
    return fresh;
  }();
  return own;
}

inline void must(bool holds, const char *what) {
  if (holds) return;
  std::fprintf(stderr, "tiles: %s\n", what);
  std::abort();
}

// What tilerelease leaves, and a thread begins with.
inline void release() {
  registers().shapes = {};
  registers().shapes.palette = 0;
}

inline void get_shapes(Shapes &now) { now = registers().shapes; }

inline void set_shapes(const Shapes &wanted) {
  must(wanted.palette == 1 && !wanted.start_row, "an unknown palette");
  for (unsigned char each : wanted.none) must(!each, "reserved bytes are set");
  for (int i = 0; i < 16; ++i) {
    const int rows = wanted.rows[i], bytes = wanted.row_bytes[i];
    must(i < 8 || (!rows && !bytes), "a tile that palette 1 does not have");
    must(rows <= kRows && bytes <= kRowBytes && !rows == !bytes, "a shape that no tile can have");
  }
  Registers &own = registers();
  own.shapes = wanted;
  ++own.set;
  std::memset(own.tiles, 0, sizeof(own.tiles));
}

inline Tile &valid(int tile) {
  must(0 <= tile && tile < 8, "a register that does not exist");
  const Shapes &now = registers().shapes;
  must(now.palette == 1 && now.rows[tile], "used before it has a shape");
  must(now.row_bytes[tile] % 4 == 0, "rows of no whole elements");
  return registers().tiles[tile];
}

inline void zero(int tile) { valid(tile) = {}; }

inline void load(int to, const void *from, int64_t stride) {
  Tile &tile = valid(to);
  const Shapes &now = registers().shapes;
  tile = {};
  for (int r = 0; r < now.rows[to]; ++r) {
    std::memcpy(tile.bytes[r], static_cast<const char *>(from) + r * stride, now.row_bytes[to]);
  }
}

inline void store(int from, void *to, int64_t stride) {
  const Tile &tile = valid(from);
  const Shapes &now = registers().shapes;
  for (int r = 0; r < now.rows[from]; ++r) {
    std::memcpy(static_cast<char *>(to) + r * stride, tile.bytes[r], now.row_bytes[from]);
  }
}

// Sizes of a product: the sum is m x n, the first factor m x k, the second k x n, in elements of
// 4 bytes.
struct Product {
  int m, n, k;
  Tile *sum;
  const Tile *a, *b;
};

inline float number(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline Product product(int sum, int a, int b) {
  must(sum != a && sum != b && a != b, "one tile twice");
  Product p{0, 0, 0, &valid(sum), &valid(a), &valid(b)};
  const Shapes &now = registers().shapes;
  p.m = now.rows[sum];
  p.n = now.row_bytes[sum] / 4;
  p.k = now.rows[b];
  must(now.rows[a] == p.m && now.row_bytes[a] == 4 * p.k, "the first factor has another shape");
  must(now.row_bytes[b] == 4 * p.n, "the second factor has another shape");
  return p;
}

// The two that take the time; not inlined, so that nothing moves over a change of MXCSR.
#define DP_SLOW __attribute__((noinline, optimize("O3")))

// TDPBF16PS. Of every element of the sum: two sums, both from 0 on, of the products of the even and
// of the odd inputs in order, each by a fused multiplication and addition; then even + odd; then
// sum + that. Every operation rounds to nearest even, takes denormals as 0 and gives 0 for them,
// whatever MXCSR says.
DP_SLOW inline void add_bf16(const Product &p) {
  for (int m = 0; m < p.m; ++m) {
    float even[16] = {}, odd[16] = {};
    for (int k = 0; k < p.k; ++k) {
      const uint32_t a = p.a->pairs[m][k];
      for (int n = 0; n < p.n; ++n) {
        const uint32_t b = p.b->pairs[k][n];
        even[n] = __builtin_fmaf(number(a << 16), number(b << 16), even[n]);
        odd[n] = __builtin_fmaf(number(a & 0xffff0000u), number(b & 0xffff0000u), odd[n]);
      }
    }
    for (int n = 0; n < p.n; ++n) {
      const float both = even[n] + odd[n];
      p.sum->floats[m][n] += both;
    }
  }
}

inline void dot_bf16(int sum, int a, int b) {
  const Product p = product(sum, a, b);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(0x1f80 | 0x8040);  // to nearest, denormals are zeros, nothing is raised
  add_bf16(p);
  _mm_setcsr(before);
}

// TDPBSUD: signed bytes times unsigned ones, exact.
DP_SLOW inline void add_s8u8(const Product &p) {
  for (int m = 0; m < p.m; ++m) {
    for (int k = 0; k < p.k; ++k) {
      const uint8_t *a = p.a->bytes[m] + 4 * k, *b = p.b->bytes[k];
      const int a0 = int8_t(a[0]), a1 = int8_t(a[1]), a2 = int8_t(a[2]), a3 = int8_t(a[3]);
      for (int n = 0; n < p.n; ++n) {
        p.sum->integers[m][n] +=
            a0 * b[4 * n] + a1 * b[4 * n + 1] + a2 * b[4 * n + 2] + a3 * b[4 * n + 3];
      }
    }
  }
}

inline void dot_s8u8(int sum, int a, int b) { add_s8u8(product(sum, a, b)); }

}  // namespace emulated

#if defined(DP_EMULATE_TILES)
namespace amx {

inline bool there() { return true; }
inline void get_shapes(Shapes &now) { emulated::get_shapes(now); }
inline void set_shapes(const Shapes &wanted) { emulated::set_shapes(wanted); }
template <int kTile>
void zero() { emulated::zero(kTile); }
template <int kTile>
void load(const void *from, int64_t stride) { emulated::load(kTile, from, stride); }
template <int kTile>
void store(void *to, int64_t stride) { emulated::store(kTile, to, stride); }
template <int kSum, int kA, int kB>
void dot_bf16() { emulated::dot_bf16(kSum, kA, kB); }
template <int kSum, int kA, int kB>
void dot_s8u8() { emulated::dot_s8u8(kSum, kA, kB); }

}  // namespace amx
#endif
