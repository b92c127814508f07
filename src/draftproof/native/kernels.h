// The inner loops of a forward pass, once per instruction set; which set runs is chosen at load.
//
// Every loop computes a row by itself: its additions come in one order, whatever stands beside it.
// That is what makes the output of many rows equal to that of one, bit for bit. So: no split of the
// inputs of one output, sums over 16 lanes by absolute place, no contraction but the spelled-out
// one (`madd`), and exp by one polynomial wherever it is computed.
#pragma once
#include <cstdint>

#include "formats.h"

constexpr int kTileRows = 12, kMostTileRows = 32;  // in a tile: usually, and of AMX
constexpr int kLanes = 16;  // slots in a block of keys; partial sums in a reduction
constexpr int kTogether = 48;  // (row, head) pairs that go over the keys of a head together
constexpr int kMostStep = 32;  // positions that an `Attention` adds at once
constexpr int kMostHeadDim = 512;
constexpr int kHalvesPadding = 32;  // numbers of half precision

// (rows, 32) = x (rows, inputs), `stride` bytes apart, times a panel.
using Tile = void(const char *panel, const char *x, int64_t stride, int inputs, int rows,
                  float *out);

// Of a format. Which rows are in a tile changes no bit of any of them.
struct Tiles {
  int rows;  // in a tile: as many as the registers hold
  // A row of n activations as the tiles read it, padded.
  void (*prepare)(const float *x, int n, int inputs, char *out);
  Tile *tile;
};

// The products of attention. Keys lie in blocks of 16 slots: head_dim / 2 steps of 16 slots x 2
// elements of bf16; values in pairs of slots: head_dim elements x 2 slots. A (row, head) pair's bits
// do not depend on which stand beside it.
struct Attention {
  int pairs;  // in one call, at most
  int step;   // positions, counted from the first of all, whose weighted values are added at once
  // out[p * apart + 16 * b + lane] = q[p] . key, for the blocks b < blocks; q (pairs, head_dim).
  void (*scores)(const uint16_t *keys, int blocks, const uint16_t *q, int pairs, int head_dim,
                 float *out, int64_t apart);
  // acc (pairs, head_dim) += sum over j < n of weights[p * apart + j] * values[j]; n: whole steps.
  void (*weigh)(const uint16_t *values, int n, const float *weights, int64_t apart, int pairs,
                int head_dim, float *acc);
};

// Products and attention of half precision as it lies in memory; see `dp_halves`, `dp_half_attention`.
struct Halves {
  // n numbers as they are multiplied, with zeros up to a multiple of kHalvesPadding.
  void (*read)(const uint16_t *from, int n, void *out);
  int64_t bytes;  // of such a number
  // The rows, which are at `x`, `x_row` numbers apart, times the weights of some outputs.
  void (*multiply)(const dp_halves &of, const void *x, int64_t x_row, int64_t begin, int64_t end);
  // Of a text the rows of all heads that share the keys of one, those from `begin` to `end` of
  // heads * rows. Throws where there is no memory.
  void (*attend)(const dp_half_attention &of, const dp_half_text &text, int64_t key_head, int64_t begin,
                 int64_t end);
};

struct Kernels {
  const char *name;
  Tiles tiles[DP_FORMATS];
  void (*norm)(const float *x, const float *weight, float eps, int n, float *out);
  void (*to_bf16)(const float *x, int n, uint16_t *out);
  void (*rotate)(float *head, const float *cosine, const float *sine, int half);
  void (*swiglu)(const float *tile, float *out);  // 16 gates and 16 ups -> 16
  Attention attention;
  // s[start..end) becomes exp(scale (s - max)); returns their sum.
  float (*softmax)(float *s, int64_t start, int64_t end, float scale);
  // The running first argmax over n values that begin at `id`; `bad` is set by NaN and +inf.
  void (*argmax)(const float *x, int n, int32_t id, float *best, int32_t *best_id, int32_t *bad);
  // -log(u), float, of the ids 4 * block ... of `blocks` blocks; noise.py has the same in Python.
  void (*gumbel)(uint64_t seed, uint32_t stream, uint32_t position, int block, int blocks,
                 float *out);
  // (x - top) * scale + a bound of -log(u) from above, of the n <= 64 ids 4 * block ...; returns the
  // largest.
  float (*bounds)(uint64_t seed, uint32_t stream, uint32_t position, int block, const float *x,
                  int n, float top, float scale, float *out);
  // The sum of exp((x - top) / temperature).
  float (*mass)(const float *x, float top, float temperature, int n);
  float (*max)(const float *x, int64_t n);
  void (*few_floats)(const dp_few &of, const dp_few_text *texts, int count);
  void (*few_doubles)(const dp_few &of, const dp_few_text *texts, int count);
  Halves halves[2] = {};  // of bfloat16 and of float16, where they are
};

extern const Kernels kPortable;
#if defined(DP_X86)
extern const Kernels kAvx2, kAvx512;
// Tiles of rows that are prepared as for kAvx512.
extern Tile *const kAmxTiles[DP_FORMATS];
extern const Attention kAmxAttention;
#elif defined(DP_ARM)
extern const Kernels kNeon;
#if defined(DP_ARM_MORE)
extern const Kernels kNeonDot, kNeonMatrix;
#endif
#endif

// The set of that name, the best for "", or null when it does not run here.
const Kernels *pick_kernels(const char *name);
// Why the best set that the processor could run is not taken, a sentence, or "".
const char *missed_kernels();
