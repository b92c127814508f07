// What the bytes of a packed matrix mean: how a panel of 32 outputs lies, and a row of activations
// that is multiplied with it. The loops over them are in `Kernels`, one set per instruction set.
#pragma once
#include <cstdint>

#include "draftproof.h"

constexpr int kPanel = 32;  // outputs in a panel of packed weights
constexpr int kGroup = 32;  // inputs of integers that share a scale, of a weight as of an activation
constexpr int kSteps = kGroup / 4;  // of a group: 4 inputs of 16 outputs are a register of 64 bytes
constexpr int kRegister = 64;

// Activations as integers: a group and what belongs to it.
struct Group {
  int8_t x[kGroup];
  float scale;       // x = scale * integer
  float total;       // scale * the sum of the integers
  int32_t shift[2];  // -128 times the sum of the integers: of all of them, of the first half
};

// What differs from the usual meaning of a block's numbers.
struct Usual {
  static constexpr bool kTable = false;  // stored integers are places in `kValues`
  static constexpr bool kZeros = false;  // behind the scales lie zeros, of 16 bits, not one for all
  static constexpr bool kBf16 = false;   // the scale is in bf16
};

struct Zeros : Usual {
  static constexpr bool kZeros = true;
};

struct Iq4 : Usual {
  static constexpr bool kTable = true;
  static constexpr int kWide = 8;  // bits of a value with the format's zero added
  static constexpr int kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
};

// Twice the numbers of FP4 (E2M1), with powers of two that fp16 does not have.
struct Fp4 : Usual {
  static constexpr bool kTable = true, kBf16 = true;
  static constexpr int kWide = 5;
  static constexpr int kValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
};

// Of the integers that are stored: those that are multiplied, not negative, four times over.
struct Table {
  uint8_t of[kRegister];
};

template <class Meaning>
constexpr Table table_of(int zero) {
  Table made{};
  for (int i = 0; i < kRegister; ++i) made.of[i] = uint8_t(Meaning::kValues[i % 16] + zero);
  return made;
}

// Integers of `bits` bits, less `zero`; a scale in fp16, and (`minimum`) a number in fp16 that is
// added, for every block of `groups` groups. `fine`: of each group one more factor of the scale
// for each of its `parts` parts, and one of the minimum, in whole numbers of 8 bits.
template <int bits, int zero, int groups, int parts, bool minimum, bool fine, class Meaning = Usual>
struct Blocks : Meaning {
  static constexpr int kBits = bits, kZero = zero, kGroups = groups, kParts = parts;
  static constexpr bool kMinimum = minimum, kFine = fine;
  static constexpr int kInputs = groups * kGroup;

  // Of a block: scales (32), minima or zeros (32), then its groups. Of a group: per 16 outputs the
  // integers, then their fine scales (parts, 32) and minima (32).
  static constexpr int kHigh = bits == 8 ? 0 : (bits - 4) * kRegister;
  static constexpr int kLow = (bits == 8 ? 8 : 4) * kRegister;
  static constexpr int kHalf = kLow + kHigh;  // bytes of the integers of 16 outputs
  static constexpr int kHeader = (minimum || Meaning::kZeros ? 2 : 1) * kPanel * 2;
  static constexpr int kFines = fine ? (parts + (minimum ? 1 : 0)) * kPanel : 0;
  static constexpr int kGroupBytes = 2 * kHalf + kFines;
  static constexpr int kBytes = kHeader + groups * kGroupBytes;

  // Bits of the integers that are multiplied, and what is stored for them.
  static constexpr int wide() {
    if constexpr (Meaning::kTable) return Meaning::kWide;
    return bits;
  }
  static constexpr Table table() {
    if constexpr (Meaning::kTable) return table_of<Meaning>(zero);
    return {};
  }
};

// Names and arithmetic of GGUF's types; DP_INT8 is Q8_0, DP_INT4 is Q4_1.
// Below 8 bits a register of the low four bits holds two steps, the even one in its low bits; the
// fifth bits of all steps are one register, a bit for each; the fifth and sixth ones are two.
using Q8_0 = Blocks<8, 128, 1, 1, false, false>;
using Q4_0 = Blocks<4, 8, 1, 1, false, false>;
using Q4_1 = Blocks<4, 0, 1, 1, true, false>;
using Q5_0 = Blocks<5, 16, 1, 1, false, false>;
using Q5_1 = Blocks<5, 0, 1, 1, true, false>;
using Q4_K = Blocks<4, 0, 8, 1, true, true>;
using Q5_K = Blocks<5, 0, 8, 1, true, true>;
using Q6_K = Blocks<6, 32, 8, 2, false, true>;
using IQ4_NL = Blocks<4, 128, 1, 1, false, false, Iq4>;
using IQ4_XS = Blocks<4, 128, 8, 1, false, true, Iq4>;
using MXFP4 = Blocks<4, 16, 1, 1, false, false, Fp4>;
// Of AWQ, GPTQ and compressed-tensors: less 8, or less a zero of each block; by the block's inputs.
using S4_128 = Blocks<4, 8, 4, 1, false, false>;
using Z4_32 = Blocks<4, 0, 1, 1, false, false, Zeros>;
using Z4_128 = Blocks<4, 0, 4, 1, false, false, Zeros>;

struct Format {
  int multiple;      // inputs are padded with zeros to it
  int piece_bytes;   // of 16 prepared activations, where rows may be prepared in such pieces; or 0
  int source_bytes;  // of `multiple` inputs of an output, as DP_SOURCE_BLOCKS; 0: that is no source
  int64_t (*panel_bytes)(int inputs);
  int64_t (*row_bytes)(int inputs);  // of a row of prepared activations
  // One output of a panel from its `count` weights, rounded; what the panel pads stays zero. Null
  // where the format is only read from files. False: a scale would not be finite.
  bool (*pack)(const float *weights, int count, int inputs, int output, char *panel);
  // The same from its blocks in a file, without any rounding.
  bool (*repack)(const uint8_t *blocks, int count, int output, char *panel);
  // A file's block of 32 weights, rounded as `pack` rounds them; null as that is, and for bf16.
  bool (*round)(const float *weights, uint8_t *block);
  void (*unpack)(const char *panel, int inputs, int output, int count, float *weights);
};

// DP_BF16: steps of 128 bytes, 32 outputs x 2 inputs. The others: `Blocks`, one after the other;
// their rows of activations are made of `Group`s.
extern const Format kFormats[DP_FORMATS];
