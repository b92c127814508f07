#include "formats.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "blocks.h"
#include "half.h"

namespace {

namespace bf16 {

int64_t panel_bytes(int inputs) { return int64_t(inputs) * kPanel * 2; }
int64_t row_bytes(int inputs) { return int64_t(inputs) * 2; }

int64_t place(int output, int input) {
  return (int64_t(input / 2) * kPanel + output) * 2 + input % 2;
}

bool pack(const float *weights, int count, int, int output, char *panel) {
  uint16_t *to = reinterpret_cast<uint16_t *>(panel);
  for (int i = 0; i < count; ++i) {
    const uint32_t bits = bits_of(weights[i]);
    const uint16_t half = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    if ((half & 0x7f80) == 0x7f80) return false;  // rounded to infinity, too
    to[place(output, i)] = half;
  }
  return true;
}

void unpack(const char *panel, int, int output, int count, float *weights) {
  const uint16_t *from = reinterpret_cast<const uint16_t *>(panel);
  for (int i = 0; i < count; ++i) weights[i] = from_bf16(from[place(output, i)]);
}

}  // namespace bf16

int64_t groups_bytes(int inputs) { return inputs / kGroup * int64_t(sizeof(Group)); }

// --- one output of a block, out of a panel and into it ---

template <class F>
int64_t panel_bytes(int inputs) {
  return inputs / F::kInputs * int64_t(F::kBytes);
}

template <class F>
char *integers_of(char *block, int group, int output) {
  return block + F::kHeader + group * F::kGroupBytes + output / 16 * F::kHalf;
}

template <class F>
uint8_t *fine_of(char *block, int group, int output) {
  char *behind = block + F::kHeader + group * F::kGroupBytes + 2 * F::kHalf;
  return reinterpret_cast<uint8_t *>(behind) + output;
}

template <class F>
void put(char *block, const Block &from, int output) {
  uint16_t *header = reinterpret_cast<uint16_t *>(block);
  header[output] = from.scale;
  if (F::kMinimum || F::kZeros) header[kPanel + output] = from.minimum;
  for (int g = 0; g < F::kGroups; ++g) {
    char *half = integers_of<F>(block, g, output);
    for (int i = 0; i < kGroup; ++i) {
      const uint8_t q = from.q[g * kGroup + i];
      const int step = i / 4, at = output % 16 * 4 + i % 4;
      if (F::kBits == 8) {
        half[step * kRegister + at] = char(q);
        continue;
      }
      const auto add = [](char &to, int bits, int shift, int mask) {
        to = char((uint8_t(to) & ~(mask << shift)) | (bits & mask) << shift);
      };
      add(half[step / 2 * kRegister + at], q, step % 2 * 4, 15);
      char *high = half + F::kLow + at;
      if (F::kBits == 5) add(*high, q >> 4, step, 1);
      if (F::kBits == 6) add(high[step / 4 * kRegister], q >> 4, step % 4 * 2, 3);
    }
    if (!F::kFine) continue;
    uint8_t *fine = fine_of<F>(block, g, output);
    for (int p = 0; p < F::kParts; ++p) fine[p * kPanel] = from.fine[g * F::kParts + p];
    if (F::kMinimum) fine[F::kParts * kPanel] = from.fine_minimum[g];
  }
}

template <class F>
void get(const char *panel, int block_number, int output, Block &to) {
  char *block = const_cast<char *>(panel) + int64_t(block_number) * F::kBytes;
  const uint16_t *header = reinterpret_cast<const uint16_t *>(block);
  to.scale = header[output];
  to.minimum = F::kMinimum || F::kZeros ? header[kPanel + output] : 0;
  for (int g = 0; g < F::kGroups; ++g) {
    const char *half = integers_of<F>(block, g, output);
    for (int i = 0; i < kGroup; ++i) {
      const int step = i / 4, at = output % 16 * 4 + i % 4;
      uint8_t q = uint8_t(half[(F::kBits == 8 ? step : step / 2) * kRegister + at]);
      if (F::kBits < 8) q = q >> step % 2 * 4 & 15;
      const auto high = [&](int number) { return uint8_t(half[F::kLow + number * kRegister + at]); };
      if (F::kBits == 5) q |= (high(0) >> step & 1) << 4;
      if (F::kBits == 6) q |= (high(step / 4) >> step % 4 * 2 & 3) << 4;
      to.q[g * kGroup + i] = q;
    }
    if (!F::kFine) continue;
    const uint8_t *fine = fine_of<F>(block, g, output);
    for (int p = 0; p < F::kParts; ++p) to.fine[g * F::kParts + p] = fine[p * kPanel];
    if (F::kMinimum) to.fine_minimum[g] = fine[F::kParts * kPanel];
  }
}

template <class F>
void unpack(const char *panel, int, int output, int count, float *weights) {
  Block block;
  for (int first = 0; first < count; first += F::kInputs) {
    get<F>(panel, first / F::kInputs, output, block);
    const float d = scale_of<F>(block.scale);
    const float m = from_half(block.minimum);
    const int zero = F::kZeros ? int16_t(block.minimum) : F::kZero;
    for (int i = 0; i < std::min(F::kInputs, count - first); ++i) {
      const int group = i / kGroup, part = i / (kGroup / F::kParts);
      // Q6_K's and IQ4_XS's factors have a sign, the others' have six bits.
      const float scale = F::kFine ? d * float(int8_t(block.fine[part])) : d;
      const float added = F::kFine ? m * float(block.fine_minimum[group]) : m;
      const int integer = F::kTable ? F::table().of[block.q[i]] : block.q[i];
      const float weight = scale * float(integer - zero);
      weights[first + i] = F::kMinimum ? weight + added : weight;
    }
  }
}

// --- from a file's blocks ---

template <class F, void (*read)(const uint8_t *, Block &), int kSource>
bool repack(const uint8_t *blocks, int count, int output, char *panel) {
  Block block;
  for (int first = 0; first < count; first += F::kInputs, blocks += kSource, panel += F::kBytes) {
    read(blocks, block);
    if (!finite_scale<F>(block.scale)) return false;
    if (F::kMinimum && !finite_half(block.minimum)) return false;
    put<F>(panel, block, output);
  }
  return true;
}

// --- from weights, rounded ---

// Of a group that may end early, and what it is rounded to.
using Round = bool (*)(const float *weights, int count, Block &to);

template <class F, Round round>
bool pack(const float *weights, int count, int inputs, int output, char *panel) {
  Block block;
  for (int first = 0; first < inputs; first += kGroup, panel += F::kBytes) {
    const int some = std::max(0, std::min(kGroup, count - first));
    if (!round(weights + std::min(first, count), some, block)) return false;
    put<F>(panel, block, output);
  }
  return true;
}

bool round_8(const float *weights, int count, Block &to) {
  float top = 0.0f;
  for (int i = 0; i < count; ++i) top = std::fmax(top, std::fabs(weights[i]));
  to.scale = to_half(top / 127.0f);
  const float scale = from_half(to.scale);
  for (int i = 0; i < kGroup; ++i) {
    const bool some = i < count && scale > 0.0f;
    const float integer = some ? std::nearbyint(weights[i] / scale) : 0.0f;
    to.q[i] = uint8_t(128 + int(std::clamp(integer, -127.0f, 127.0f)));
  }
  return finite_half(to.scale);
}

template <Round round, void (*write)(const Block &, uint8_t *)>
bool rounded(const float *weights, uint8_t *to) {
  Block block;
  if (!round(weights, kGroup, block)) return false;
  write(block, to);
  return true;
}

template <class F, void (*read)(const uint8_t *, Block &), int kSource>
constexpr Format of_file() {
  return {F::kInputs, 0, kSource, panel_bytes<F>, groups_bytes, nullptr, repack<F, read, kSource>,
          nullptr, unpack<F>};
}

template <class F, void (*read)(const uint8_t *, Block &), int kSource, Round round,
          void (*write)(const Block &, uint8_t *)>
constexpr Format of_both() {
  Format made = of_file<F, read, kSource>();
  made.pack = pack<F, round>;
  made.round = rounded<round, write>;
  return made;
}

}  // namespace

// In the order of their numbers.
const Format kFormats[DP_FORMATS] = {
    {2, 32, 0, bf16::panel_bytes, bf16::row_bytes, bf16::pack, nullptr, nullptr,
     bf16::unpack},
    of_both<Q8_0, read_q8_0, 34, round_8, write_q8_0>(),
    of_both<Q4_1, read_q4_1, 20, round_4, write_q4_1>(),
    of_file<Q4_0, read_q4_0, 18>(),
    of_file<Q5_0, read_q5_0, 22>(),
    of_file<Q5_1, read_q5_1, 24>(),
    of_file<Q4_K, read_q4_k, 144>(),
    of_file<Q5_K, read_q5_k, 176>(),
    of_file<Q6_K, read_q6_k, 210>(),
    of_file<IQ4_NL, read_q4_0, 18>(),
    of_file<IQ4_XS, read_iq4_xs, 136>(),
    of_file<MXFP4, read_mxfp4, 17>(),
    of_file<S4_128, read_s4_128, 66>(),
    of_file<Z4_32, read_z4_32, 20>(),
    of_file<Z4_128, read_z4_128, 68>(),
};
