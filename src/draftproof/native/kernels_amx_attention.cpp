// The products of attention by AMX tiles, for up to 16 (row, head) pairs at once.
//
// One pair goes through the same instructions as many, because TDPBF16PS adds in an order of its own
// (see kernels_amx.cpp). Tiles 0 to 3 are the sums of four blocks of slots or of four parts of a head,
// 4 and 5 hold what the pairs bring, 6 and 7 keys or values as they lie in the cache.
#include <cstring>

#include "amx.h"
#include "half.h"
#include "kernels.h"

namespace {

constexpr int kStep = amx::kRowBytes / 2;  // inputs of a product
constexpr int kPairs = amx::kRows, kBeside = 4;
constexpr int kRowFloats = amx::kRowBytes / 4;
static_assert(kStep == kMostStep && kRowFloats == kLanes);

void configure(int pairs) {
  amx::Shapes shapes;
  for (int tile = 0; tile < 8; ++tile) {
    shapes.rows[tile] = uint8_t(tile < 6 ? pairs : amx::kRows);
    shapes.row_bytes[tile] = amx::kRowBytes;
  }
  amx::configure(shapes);
}

// Four at once, because sums come long after their products began.
template <int kBlocks>
void add_keys(const char *keys, int64_t block, const char *q, int64_t stride) {
  amx::load<4>(q, stride);
  amx::load<6>(keys, amx::kRowBytes);
  amx::dot_bf16<0, 4, 6>();
  if constexpr (kBlocks == kBeside) {
    amx::load<7>(keys + block, amx::kRowBytes);
    amx::dot_bf16<1, 4, 7>();
    amx::load<6>(keys + 2 * block, amx::kRowBytes);
    amx::dot_bf16<2, 4, 6>();
    amx::load<7>(keys + 3 * block, amx::kRowBytes);
    amx::dot_bf16<3, 4, 7>();
  }
}

template <int kBlocks>
void scores_of(const char *keys, const char *q, const char *q_rest, int head_dim, float *out,
               int64_t apart) {
  const int64_t block = int64_t(head_dim) * kLanes * 2;
  amx::zero<0>();
  if constexpr (kBlocks == kBeside) {
    amx::zero<1>();
    amx::zero<2>();
    amx::zero<3>();
  }
  const int rest = head_dim % kStep;
  for (int i = 0; i + kStep <= head_dim; i += kStep) {
    add_keys<kBlocks>(keys + i * kRowFloats * 2, block, q + i * 2, head_dim * 2);
  }
  if (rest) {  // padded with zeros, as in a product
    alignas(64) char some[kBlocks * kStep * kLanes * 2] = {};
    for (int b = 0; b < kBlocks; ++b) {
      std::memcpy(some + b * kStep * kLanes * 2, keys + b * block + (head_dim - rest) * kLanes * 2,
                  rest * kLanes * 2);
    }
    add_keys<kBlocks>(some, kStep * kLanes * 2, q_rest, amx::kRowBytes);
  }
  amx::store<0>(out, apart * 4);
  if constexpr (kBlocks == kBeside) {
    amx::store<1>(out + kLanes, apart * 4);
    amx::store<2>(out + 2 * kLanes, apart * 4);
    amx::store<3>(out + 3 * kLanes, apart * 4);
  }
}

void scores(const uint16_t *keys, int blocks, const uint16_t *q, int pairs, int head_dim, float *out,
            int64_t apart) {
  configure(pairs);
  alignas(64) uint16_t q_rest[kPairs * kStep] = {};
  const int rest = head_dim % kStep;
  for (int p = 0; rest && p < pairs; ++p) {
    std::memcpy(q_rest + p * kStep, q + (p + 1) * head_dim - rest, rest * 2);
  }
  const char *from = reinterpret_cast<const char *>(q), *end = reinterpret_cast<char *>(q_rest);
  const char *key = reinterpret_cast<const char *>(keys);
  const int64_t block = int64_t(head_dim) * kLanes * 2;
  for (; blocks >= kBeside; blocks -= kBeside, key += kBeside * block, out += kBeside * kLanes) {
    scores_of<kBeside>(key, from, end, head_dim, out, apart);
  }
  for (; blocks > 0; --blocks, key += block, out += kLanes) {
    scores_of<1>(key, from, end, head_dim, out, apart);
  }
}

// Weights of a step as two bf16 each, whose sum is within 2^-16 of the weight; one alone, rounded,
// would be within 2^-9.
struct Split {
  alignas(64) uint16_t high[kPairs][kStep], low[kPairs][kStep];
};

void split(const float *weights, int64_t apart, int pairs, Split &to) {
  for (int p = 0; p < pairs; ++p, weights += apart) {
    for (int i = 0; i < kStep; ++i) {
      const uint16_t high = uint16_t(bits_of(weights[i]) >> 16);
      to.high[p][i] = high;
      to.low[p][i] = uint16_t((bits_of(weights[i] - from_bf16(high)) + 0x8000) >> 16);
    }
  }
}

template <int kPart>
void add_values(const char *values, int64_t stride) {
  amx::load<6>(values + kPart * amx::kRowBytes, stride);
  amx::dot_bf16<kPart, 4, 6>();
  amx::dot_bf16<kPart, 5, 6>();
}

template <int kParts>
void weigh_of(const char *values, int steps, const Split *weights, int head_dim, float *acc) {
  const int64_t stride = head_dim * 4;
  amx::load<0>(acc, stride);
  if constexpr (kParts == kBeside) {
    amx::load<1>(acc + kRowFloats, stride);
    amx::load<2>(acc + 2 * kRowFloats, stride);
    amx::load<3>(acc + 3 * kRowFloats, stride);
  }
  for (int s = 0; s < steps; ++s, values += kStep / 2 * stride) {
    amx::load<4>(weights[s].high, amx::kRowBytes);
    amx::load<5>(weights[s].low, amx::kRowBytes);
    add_values<0>(values, stride);
    if constexpr (kParts == kBeside) {
      add_values<1>(values, stride);
      add_values<2>(values, stride);
      add_values<3>(values, stride);
    }
  }
  amx::store<0>(acc, stride);
  if constexpr (kParts == kBeside) {
    amx::store<1>(acc + kRowFloats, stride);
    amx::store<2>(acc + 2 * kRowFloats, stride);
    amx::store<3>(acc + 3 * kRowFloats, stride);
  }
}

void weigh(const uint16_t *values, int n, const float *weights, int64_t apart, int pairs,
           int head_dim, float *acc) {
  constexpr int kSteps = 4;  // whose weights are split together
  configure(pairs);
  Split some[kSteps];
  for (int j = 0; j < n; j += kSteps * kStep, weights += kSteps * kStep) {
    const int steps = n - j < kSteps * kStep ? (n - j) / kStep : kSteps;
    for (int s = 0; s < steps; ++s) split(weights + s * kStep, apart, pairs, some[s]);
    const char *value = reinterpret_cast<const char *>(values + int64_t(j) * head_dim);
    int at = 0;
    for (; at + kBeside * kRowFloats <= head_dim; at += kBeside * kRowFloats) {
      weigh_of<kBeside>(value + at * 4, steps, some, head_dim, acc + at);
    }
    for (; at < head_dim; at += kRowFloats) weigh_of<1>(value + at * 4, steps, some, head_dim, acc + at);
  }
}

}  // namespace

const Attention kAmxAttention = {kPairs, kStep, scores, weigh};
