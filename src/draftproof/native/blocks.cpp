#include "blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats.h"
#include "half.h"

namespace {

constexpr int kNibbles = kGroup / 2;  // bytes of a group's low four bits

uint16_t half_at(const uint8_t *from) {
  uint16_t half;
  std::memcpy(&half, from, 2);
  return half;
}

// 32 integers of four bits: the low ones of 16 bytes, then the high ones.
void nibbles(const uint8_t *from, uint8_t *q) {
  for (int i = 0; i < kNibbles; ++i) {
    q[i] = from[i] & 15;
    q[i + kNibbles] = from[i] >> 4;
  }
}

void fifth_bits(const uint8_t *from, uint8_t *q) {
  for (int i = 0; i < kGroup; ++i) q[i] |= (from[i / 8] >> i % 8 & 1) << 4;
}

// Eight factors of scales and eight of minima, of six bits each, in twelve bytes. What is stored is
// taken away from the weights: the minimum's sign is turned.
void k_header(const uint8_t *from, Block &to) {
  to.scale = half_at(from);
  to.minimum = half_at(from + 2) ^ 0x8000;
  const uint8_t *packed = from + 4;
  for (int g = 0; g < 4; ++g) {
    to.fine[g] = packed[g] & 63;
    to.fine_minimum[g] = packed[g + 4] & 63;
    to.fine[g + 4] = (packed[g + 8] & 15) | (packed[g] >> 6) << 4;
    to.fine_minimum[g + 4] = packed[g + 8] >> 4 | (packed[g + 4] >> 6) << 4;
  }
}

// 256 integers of four bits: of every 32 bytes the low ones, then the high ones.
void k_nibbles(const uint8_t *from, uint8_t *q) {
  for (int quarter = 0; quarter < 4; ++quarter) {
    for (int i = 0; i < 32; ++i) {
      q[quarter * 64 + i] = from[quarter * 32 + i] & 15;
      q[quarter * 64 + 32 + i] = from[quarter * 32 + i] >> 4;
    }
  }
}

}  // namespace

void read_q4_0(const uint8_t *from, Block &to) {
  to.scale = half_at(from);
  nibbles(from + 2, to.q);
}

void read_q4_1(const uint8_t *from, Block &to) {
  to.scale = half_at(from);
  to.minimum = half_at(from + 2);
  nibbles(from + 4, to.q);
}

void read_q5_0(const uint8_t *from, Block &to) {
  to.scale = half_at(from);
  nibbles(from + 6, to.q);
  fifth_bits(from + 2, to.q);
}

void read_q5_1(const uint8_t *from, Block &to) {
  to.scale = half_at(from);
  to.minimum = half_at(from + 2);
  nibbles(from + 8, to.q);
  fifth_bits(from + 4, to.q);
}

void read_q8_0(const uint8_t *from, Block &to) {
  to.scale = half_at(from);
  for (int i = 0; i < kGroup; ++i) to.q[i] = from[2 + i] ^ 0x80;  // integer + 128
}

void read_q4_k(const uint8_t *from, Block &to) {
  k_header(from, to);
  k_nibbles(from + 16, to.q);
}

void read_q5_k(const uint8_t *from, Block &to) {
  k_header(from, to);
  k_nibbles(from + 48, to.q);
  for (int i = 0; i < 256; ++i) to.q[i] |= (from[16 + i % 32] >> i / 32 & 1) << 4;
}

void read_q6_k(const uint8_t *from, Block &to) {
  const uint8_t *low = from, *high = from + 128;
  for (int i = 0; i < 256; ++i) {
    const int part = i / 128, at = i % 128;
    const int four = low[part * 64 + at % 64] >> at / 64 * 4 & 15;
    const int two = high[part * 32 + at % 32] >> at / 32 * 2 & 3;
    to.q[i] = uint8_t(four | two << 4);
  }
  std::memcpy(to.fine, from + 192, 16);
  to.scale = half_at(from + 208);
}

void read_iq4_xs(const uint8_t *from, Block &to) {
  to.scale = half_at(from);
  const int high = half_at(from + 2);
  for (int g = 0; g < 8; ++g) {
    const int low = from[4 + g / 2] >> g % 2 * 4 & 15;
    to.fine[g] = uint8_t((low | (high >> 2 * g & 3) << 4) - 32);
    nibbles(from + 8 + g * kNibbles, to.q + g * kGroup);
  }
}

// Of a number 2^(e - 128) the exponent alone; what times 12 is no float becomes infinity.
void read_mxfp4(const uint8_t *from, Block &to) {
  const int e = from[0];
  to.scale = uint16_t(e > 252 ? 0x7f80 : e > 1 ? (e - 1) << 7 : e ? 0x40 : 0x20);
  nibbles(from + 1, to.q);
}

namespace {

void zero_and_nibbles(const uint8_t *from, int groups, Block &to) {
  to.scale = half_at(from);
  to.minimum = half_at(from + 2) ^ 0x8000;
  for (int g = 0; g < groups; ++g) nibbles(from + 4 + g * kNibbles, to.q + g * kGroup);
}

}  // namespace

void read_s4_128(const uint8_t *from, Block &to) {
  to.scale = half_at(from);
  for (int g = 0; g < 4; ++g) nibbles(from + 2 + g * kNibbles, to.q + g * kGroup);
}

void read_z4_32(const uint8_t *from, Block &to) { zero_and_nibbles(from, 1, to); }
void read_z4_128(const uint8_t *from, Block &to) { zero_and_nibbles(from, 4, to); }

void write_q4_1(const Block &from, uint8_t *to) {
  std::memcpy(to, &from.scale, 2);
  std::memcpy(to + 2, &from.minimum, 2);
  for (int i = 0; i < kNibbles; ++i) to[4 + i] = uint8_t(from.q[i] | from.q[i + kNibbles] << 4);
}

void write_q8_0(const Block &from, uint8_t *to) {
  std::memcpy(to, &from.scale, 2);
  for (int i = 0; i < kGroup; ++i) to[2 + i] = uint8_t(from.q[i] - 128);
}

namespace {

constexpr int kTop = 15;  // the largest integer of four bits

// The integers that are nearest, and what they cost.
double nearest(const float *weights, const double *care, int count, double scale, double minimum,
               uint8_t *q) {
  double cost = 0.0;
  for (int i = 0; i < count; ++i) {
    const double exact = scale > 0.0 ? (weights[i] - minimum) / scale : 0.0;
    const int integer = int(std::clamp(std::nearbyint(exact), 0.0, double(kTop)));
    const double off = scale * integer + minimum - weights[i];
    cost += care[i] * off * off;
    q[i] = uint8_t(integer);
  }
  return cost;
}

// The scale and the minimum that suit given integers best: weighted least squares.
bool fit(const float *weights, const double *care, int count, const uint8_t *q, double &scale,
         double &minimum) {
  double s = 0, sq = 0, sqq = 0, sw = 0, sqw = 0;
  for (int i = 0; i < count; ++i) {
    s += care[i];
    sq += care[i] * q[i];
    sqq += care[i] * q[i] * q[i];
    sw += care[i] * weights[i];
    sqw += care[i] * q[i] * weights[i];
  }
  const double determinant = s * sqq - sq * sq;
  if (!(determinant > 0.0)) return false;
  scale = (s * sqw - sq * sw) / determinant;
  minimum = (sw - scale * sq) / s;
  return scale > 0.0;
}

}  // namespace

bool round_4(const float *weights, int count, Block &to) {
  std::memset(to.q, 0, kGroup);
  to.scale = to.minimum = 0;
  if (!count) return true;
  const auto [least, most] = std::minmax_element(weights, weights + count);
  double square = 0.0, care[kGroup];
  for (int i = 0; i < count; ++i) square += double(weights[i]) * weights[i] / count;
  for (int i = 0; i < count; ++i) care[i] = std::sqrt(square) + std::fabs(weights[i]);
  uint8_t q[kGroup];
  double best = INFINITY;
  const auto consider = [&](double scale, double minimum) {
    const uint16_t d = to_half(float(scale)), m = to_half(float(minimum));
    const double cost = nearest(weights, care, count, from_half(d), from_half(m), q);
    if (!(cost < best)) return;
    best = cost;
    to.scale = d;
    to.minimum = m;
    std::memcpy(to.q, q, count);
  };
  consider((double(*most) - *least) / kTop, *least);
  // Ranges a little narrower and wider than the weights', each with what fits its integers best.
  for (double steps = 13.5; steps <= 16.5; steps += 0.25) {
    double scale = (double(*most) - *least) / steps, minimum = *least;
    if (!(scale > 0.0)) break;
    for (int turn = 0; turn < 2; ++turn) {
      nearest(weights, care, count, scale, minimum, q);
      if (!fit(weights, care, count, q, scale, minimum)) break;
      consider(scale, minimum);
    }
  }
  return finite_half(to.scale) && finite_half(to.minimum);
}
