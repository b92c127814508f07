// Products by AMX tiles, of bf16 and of int8, and attention's; the rest of the set is that of AVX512.
//
// bf16 of any number of rows, one included, goes through the same instruction, TDPBF16PS: it adds
// in an order of its own (of each 32 inputs the even ones, the odd ones, then both to what was
// there), and a row's bits must not depend on how many rows stand beside it.
//
// Tiles 4 and 5 hold inputs of up to 16 rows each, 6 and 7 the weights of the first and the last 16
// outputs of a panel, 0 and 1 the sums of 4 with both, 2 and 3 those of 5. In attention 0 to 3 are
// the sums of four blocks of slots, or of four parts of a head.
#include <immintrin.h>

#include <cstddef>

#include "amx.h"
#include "kernels.h"

namespace {

constexpr int kAhead = 8192;  // bytes of the panel that are fetched before they are needed
constexpr int kHalf = kPanel / 2;
constexpr int kOutBytes = kPanel * 4;  // a row of sums

static_assert(kHalf * 4 == amx::kRowBytes && kMostTileRows == 2 * amx::kRows);

// For products of `bytes` of an input: rows of tile 4, and of tile 5.
amx::Shapes shapes_of(int bytes, int first, int second) {
  const int rows[] = {first, first, second, second, first, second, bytes / 4, bytes / 4};
  amx::Shapes shapes;
  for (int tile = 0; tile < 8; ++tile) {
    const int row_bytes = tile == 4 || tile == 5 ? bytes : amx::kRowBytes;
    shapes.rows[tile] = uint8_t(rows[tile]);
    shapes.row_bytes[tile] = uint16_t(rows[tile] ? row_bytes : 0);
  }
  return shapes;
}

template <auto kHint>  // an enum or a number, as the compiler has it
void fetch(const void *panel, int bytes) {
  const char *ahead = static_cast<const char *>(panel) + kAhead;
  for (int i = 0; i < bytes; i += 64) _mm_prefetch(ahead + i, kHint);
}

// --- bf16 ---

constexpr int kStep = amx::kRowBytes / 2;  // inputs of a product
constexpr int kPairBytes = kPanel * 4;  // of a panel: 2 inputs
constexpr int kStepBytes = kStep / 2 * kPairBytes;
static_assert(kStepBytes == amx::kRows * kPairBytes);

template <bool kTwo>
void add_step(const char *w, const char *x, int64_t stride) {
  amx::load<4>(x, stride);
  amx::load<6>(w, kPairBytes);
  amx::dot_bf16<0, 4, 6>();
  amx::load<7>(w + amx::kRowBytes, kPairBytes);
  amx::dot_bf16<1, 4, 7>();
  if constexpr (kTwo) {
    amx::load<5>(x + amx::kRows * stride, stride);
    amx::dot_bf16<2, 5, 6>();
    amx::dot_bf16<3, 5, 7>();
  }
}

template <bool kTwo>
void bf16(const char *w, const char *x, int64_t stride, int inputs, int rows, float *out) {
  const int first = kTwo ? amx::kRows : rows;
  amx::configure(shapes_of(amx::kRowBytes, first, rows - first));
  amx::zero<0>();
  amx::zero<1>();
  if constexpr (kTwo) {
    amx::zero<2>();
    amx::zero<3>();
  }
  for (; inputs >= kStep; inputs -= kStep, w += kStepBytes, x += amx::kRowBytes) {
    fetch<_MM_HINT_T0>(w, kStepBytes);
    add_step<kTwo>(w, x, stride);
  }
  if (inputs) {  // padded with zeros: other shapes would clear the sums
    alignas(64) char w_rest[kStepBytes] = {}, x_rest[kMostTileRows * amx::kRowBytes] = {};
    std::memcpy(w_rest, w, inputs / 2 * kPairBytes);
    for (int r = 0; r < rows; ++r) {
      std::memcpy(x_rest + r * amx::kRowBytes, x + r * stride, inputs * 2);
    }
    add_step<kTwo>(w_rest, x_rest, amx::kRowBytes);
  }
  amx::store<0>(out, kOutBytes);
  amx::store<1>(out + kHalf, kOutBytes);
  if constexpr (kTwo) {
    amx::store<2>(out + amx::kRows * kPanel, kOutBytes);
    amx::store<3>(out + amx::kRows * kPanel + kHalf, kOutBytes);
  }
}

// --- int8 ---

template <int kSum, int kInput>
void multiply(const char *group, const char *x, int64_t stride) {
  amx::load<kInput>(x, stride);
  amx::zero<kSum>();
  amx::load<6>(group + Q8_0::kHeader, amx::kRowBytes);
  amx::dot_s8u8<kSum, kInput, 6>();
  amx::zero<kSum + 1>();
  amx::load<7>(group + Q8_0::kHeader + Q8_0::kHalf, amx::kRowBytes);
  amx::dot_s8u8<kSum + 1, kInput, 7>();
}

__m512i four_bytes(const void *from) {
  int32_t four;
  std::memcpy(&four, from, 4);
  return _mm512_set1_epi32(four);
}

// out += what the sums of a group stand for: AVX512's operations, so its bits.
void add_group(const char *group, const char *x, int64_t stride, int rows,
               const int32_t *sums, float *out) {
  __m512 scale[2];
  for (int h = 0; h < 2; ++h) {
    const __m256i *halves = reinterpret_cast<const __m256i *>(group + kHalf * h * 2);
    scale[h] = _mm512_cvtph_ps(_mm256_loadu_si256(halves));
  }
  for (int r = 0; r < rows; ++r, x += stride, sums += kPanel, out += kPanel) {
    const __m512i shift = four_bytes(x + offsetof(Group, shift));
    const __m512 of_row = _mm512_castsi512_ps(four_bytes(x + offsetof(Group, scale)));
    for (int h = 0; h < 2; ++h) {
      const __m512i sum = _mm512_add_epi32(_mm512_loadu_si512(sums + kHalf * h), shift);
      const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale[h]);
      const __m512 before = _mm512_loadu_ps(out + kHalf * h);
      _mm512_storeu_ps(out + kHalf * h, _mm512_fmadd_ps(scaled, of_row, before));
    }
  }
}

// --- attention ---

constexpr int kPairs = amx::kRows, kBeside = 4;
constexpr int kRowFloats = amx::kRowBytes / 4;
static_assert(kStep == kMostStep && kRowFloats == kLanes);

void configure_pairs(int pairs) {
  amx::configure(shapes_of(amx::kRowBytes, pairs, pairs));
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
  configure_pairs(pairs);
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

// Weights of a step as two bf16 each, whose sum is within 2^-16 of the weight: one alone would be
// within 2^-8, which text shows.
struct Split {
  alignas(64) uint16_t high[kPairs][kStep], low[kPairs][kStep];
};

void split(const float *weights, int64_t apart, int pairs, Split &to) {
  for (int p = 0; p < pairs; ++p, weights += apart) {
    for (int i = 0; i < kStep; ++i) {
      uint32_t bits, left;
      std::memcpy(&bits, weights + i, 4);
      const uint32_t cut = bits & 0xffff0000u;
      float high;
      std::memcpy(&high, &cut, 4);
      const float rest = weights[i] - high;
      std::memcpy(&left, &rest, 4);
      to.high[p][i] = uint16_t(bits >> 16);
      to.low[p][i] = uint16_t((left + 0x8000) >> 16);
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
  configure_pairs(pairs);
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

void amx_bf16(const char *panel, const char *x, int64_t stride, int inputs, int rows, float *out) {
  rows > amx::kRows ? bf16<true>(panel, x, stride, inputs, rows, out)
                    : bf16<false>(panel, x, stride, inputs, rows, out);
}

// Two blocks are on their way at once, because sums come long after their products began: two
// blocks of rows, or two groups of the only one.
void amx_int8(const char *panel, const char *x, int64_t stride, int inputs, int rows, float *out) {
  const bool two = rows > amx::kRows;
  const int first = two ? amx::kRows : rows, second = two ? rows - first : rows;
  amx::configure(shapes_of(kGroup, first, second));
  std::memset(out, 0, rows * kOutBytes);
  alignas(64) int32_t sums[2][amx::kRows * kPanel];
  const char *group = panel;
  const int groups = inputs / kGroup, step = two ? 1 : 2;
  for (int g = 0; g < groups; g += step, x += step * sizeof(Group)) {
    const bool both = two || g + 1 < groups;
    const char *beside = two ? group : group + Q8_0::kBytes;
    const char *x_beside = x + (two ? first * stride : int64_t(sizeof(Group)));
    fetch<_MM_HINT_T1>(group, step * Q8_0::kBytes);
    multiply<0, 4>(group, x, stride);
    if (both) multiply<2, 5>(beside, x_beside, stride);
    amx::store<0>(sums[0], kOutBytes);
    amx::store<1>(sums[0] + kHalf, kOutBytes);
    add_group(group, x, stride, first, sums[0], out);
    if (!both) break;
    amx::store<2>(sums[1], kOutBytes);
    amx::store<3>(sums[1] + kHalf, kOutBytes);
    add_group(beside, x_beside, stride, second, sums[1], two ? out + first * kPanel : out);
    group += step * Q8_0::kBytes;
  }
}
