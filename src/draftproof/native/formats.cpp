#include "formats.h"

#include <cmath>
#include <cstring>

namespace {

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

namespace bf16 {

int64_t panel_bytes(int inputs) { return int64_t(inputs) * kPanel * 2; }
int64_t row_bytes(int inputs) { return int64_t(inputs) * 2; }

int64_t place(int output, int input) {
  return (int64_t(input / 2) * kPanel + output) * 2 + input % 2;
}

void pack(const float *weights, int count, int, int output, char *panel) {
  uint16_t *to = reinterpret_cast<uint16_t *>(panel);
  for (int i = 0; i < count; ++i) {
    const uint32_t bits = bits_of(weights[i]);
    to[place(output, i)] = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
}

void unpack(const char *panel, int, int output, int count, float *weights) {
  const uint16_t *from = reinterpret_cast<const uint16_t *>(panel);
  for (int i = 0; i < count; ++i) weights[i] = float_of(uint32_t(from[place(output, i)]) << 16);
}

}  // namespace bf16

namespace int8 {

int64_t panel_bytes(int inputs) { return inputs / kGroup * int64_t(sizeof(WeightGroup)); }
int64_t row_bytes(int inputs) { return inputs / kGroup * int64_t(sizeof(Group)); }

void pack(const float *weights, int count, int inputs, int output, char *panel) {
  WeightGroup *group = reinterpret_cast<WeightGroup *>(panel);
  for (int first = 0; first < inputs; first += kGroup, ++group) {
    const int end = first + kGroup < count ? first + kGroup : count;
    float top = 0.0f;
    for (int i = first; i < end; ++i) top = std::fmax(top, std::fabs(weights[i]));
    // Up to bf16, so that no integer is beyond 127; what is less than any scale is zero.
    uint32_t bits = bits_of(top / 127.0f);
    if (bits & 0xffff) bits = (bits & 0xffff0000u) + 0x10000u;
    if (bits < 0x00800000u) bits = 0;
    group->scale[output] = uint16_t(bits >> 16);
    for (int i = 0; i < kGroup; ++i) {
      const bool some = first + i < end && bits;
      const long integer = some ? std::lrintf(weights[first + i] / float_of(bits)) : 0;
      group->w[output / 16][i / 4][output % 16][i % 4] = uint8_t(128 + integer);
    }
  }
}

void unpack(const char *panel, int, int output, int count, float *weights) {
  const WeightGroup *group = reinterpret_cast<const WeightGroup *>(panel);
  for (int i = 0; i < count; ++i) {
    const WeightGroup &of = group[i / kGroup];
    const int integer = of.w[output / 16][i % kGroup / 4][output % 16][i % 4] - 128;
    weights[i] = float_of(uint32_t(of.scale[output]) << 16) * float(integer);
  }
}

}  // namespace int8

}  // namespace

const Format kFormats[DP_FORMATS] = {
    {2, 32, bf16::panel_bytes, bf16::row_bytes, bf16::pack, bf16::unpack},
    {kGroup, 0, int8::panel_bytes, int8::row_bytes, int8::pack, int8::unpack},
};
