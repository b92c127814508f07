// What the bytes of a packed matrix mean: how a panel of 32 outputs lies, and a row of activations
// that is multiplied with it. The loops over them are in `Kernels`, one set per instruction set.
#pragma once
#include <cstdint>

#include "draftproof.h"

constexpr int kPanel = 32;  // outputs in a panel of packed weights
constexpr int kGroup = 32;  // int8: inputs that share a scale, of a weight as of an activation

// int8 weights: a group of inputs of all outputs of a panel, as a thread reads it from memory.
struct WeightGroup {
  uint8_t w[kPanel / 16][kGroup / 4][16][4];  // integer + 128: 16 outputs x 4 inputs are a register
  uint16_t scale[kPanel];                      // bf16; a weight is its scale * integer
};

// int8 activations: a group and what belongs to it.
struct Group {
  int8_t x[kGroup];
  float scale;    // x = scale * integer
  int32_t shift;  // -128 times the sum of the integers: weights lie as integer + 128
};

struct Format {
  int multiple;      // inputs are padded with zeros to it
  int piece_bytes;   // of 16 prepared activations, where rows may be prepared in such pieces; or 0
  int64_t (*panel_bytes)(int inputs);
  int64_t (*row_bytes)(int inputs);  // of a row of prepared activations
  // One output of a panel from its `count` weights; what the panel pads stays zero.
  void (*pack)(const float *weights, int count, int inputs, int output, char *panel);
  void (*unpack)(const char *panel, int inputs, int output, int count, float *weights);
};

// DP_BF16: steps of 128 bytes, 32 outputs x 2 inputs.
// DP_INT8: a `WeightGroup` for every 32 inputs; rows of activations are made of `Group`s.
extern const Format kFormats[DP_FORMATS];
