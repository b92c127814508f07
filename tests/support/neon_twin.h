// What the programs that test NEON share: the twin, which is the generic loops with fused sums in
// plain C++, and blocks of any format.
#pragma once
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels.h"

namespace {
inline float madd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
}  // namespace

#include "generic.inl"

namespace {

template <class F>
constexpr Tiles kTiles{kTileRows, prepare_groups, tile_blocks<F>};

const Kernels kTwin = {
    "twin",
    {{kTileRows, prepare_bf16, tile_bf16}, kTiles<Q8_0>, kTiles<Q4_1>, kTiles<Q4_0>, kTiles<Q5_0>,
     kTiles<Q5_1>, kTiles<Q4_K>, kTiles<Q5_K>, kTiles<Q6_K>, kTiles<IQ4_NL>, kTiles<IQ4_XS>,
     kTiles<MXFP4>, kTiles<S4_128>, kTiles<Z4_32>, kTiles<Z4_128>},
    norm, to_bf16, rotate, swiglu, {4, 2, scores, weigh}, softmax, argmax, gumbel, bounds, mass, max_of};

// The same numbers on every machine.
struct Random {
  uint64_t state;
  uint32_t bits() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return uint32_t(state >> 32);
  }
  float number() { return float(int32_t(bits() >> 8) - (1 << 23)) / float(1 << 23); }  // [-1, 1)
  std::vector<float> numbers(size_t count, float scale = 1.0f) {
    std::vector<float> made(count);
    for (float &each : made) each = scale * number();
    return made;
  }
};

// A block of a format, its weights between two magnitudes. `extreme`: few different bytes.
inline std::vector<uint8_t> block_of(int format, Random &random, bool extreme, float least, float most) {
  const Format &of = kFormats[format];
  std::vector<uint8_t> block(of.source_bytes);
  std::vector<char> panel(of.panel_bytes(of.multiple));
  std::vector<float> weights(of.multiple);
  for (;;) {
    const uint8_t few[] = {0x00, 0x80, 0x7f, 0xff};
    for (uint8_t &each : block) each = extreme ? few[random.bits() % 4] : uint8_t(random.bits());
    if (!of.repack(block.data(), of.multiple, 0, panel.data())) continue;  // a scale is not finite
    of.unpack(panel.data(), of.multiple, 0, of.multiple, weights.data());
    float top = 0.0f;
    for (float each : weights) top = std::fmax(top, std::fabs(each));
    if (top >= least && top <= most) return block;
  }
}

// Rows (outputs, inputs) of blocks out of a few.
inline std::vector<uint8_t> blocks_of(int format, int outputs, int inputs, Random &random,
                                      float least, float most) {
  std::vector<std::vector<uint8_t>> few;
  for (int i = 0; i < 24; ++i) few.push_back(block_of(format, random, least == 0.0f && i % 4 == 0, least, most));
  std::vector<uint8_t> all;
  const int count = outputs * (inputs / kFormats[format].multiple);
  for (int i = 0; i < count; ++i) {
    const auto &each = few[random.bits() % few.size()];
    all.insert(all.end(), each.begin(), each.end());
  }
  return all;
}

}  // namespace
