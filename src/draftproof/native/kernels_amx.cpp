// Products by AMX tiles; attention's are in kernels_amx_attention.cpp, and the rest of the set is that
// of AVX512.
//
// bf16 of any number of rows, one included, goes through the same instruction, TDPBF16PS: it adds
// in an order of its own (of each 32 inputs the even ones, the odd ones, then both to what was
// there), and a row's bits must not depend on how many rows stand beside it.
//
// Tiles 4 and 5 hold inputs of up to 16 rows each, 6 and 7 the weights of the first and the last 16
// outputs of a panel, 0 and 1 the sums of 4 with both, 2 and 3 those of 5.
#include <immintrin.h>

#include <algorithm>

#include "amx.h"
#include "kernels.h"

#include "tiles_avx512.inl"
#include "blocks_avx512.inl"

namespace {

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

// --- integers in groups ---

// A part of a group, whose sums are exact: the weights' scales, and where the rows' integers begin.
template <class F>
struct Part {
  static constexpr int kBytes = kGroup / F::kParts;  // inputs, of a byte each

  const char *block, *group, *x;
  int number;

  template <int kSum, int kInput>
  void multiply(const char *weights, int apart, const char *rows, int64_t stride) const {
    weights += number * kBytes / 4 * amx::kRowBytes;
    amx::load<kInput>(rows + number * kBytes, stride);
    amx::zero<kSum>();
    amx::load<6>(weights, amx::kRowBytes);
    amx::dot_s8u8<kSum, kInput, 6>();
    amx::zero<kSum + 1>();
    amx::load<7>(weights + apart, amx::kRowBytes);
    amx::dot_s8u8<kSum + 1, kInput, 7>();
  }

  // out += what the sums stand for.
  template <int kSum>
  void add(const char *rows, int64_t stride, int count, float *out) const {
    alignas(64) int32_t sums[amx::kRows * kPanel];
    amx::store<kSum>(sums, kOutBytes);
    amx::store<kSum + 1>(sums + kHalf, kOutBytes);
    int r = 0;
    for (; r + kAtOnce <= count; r += kAtOnce) {
      some<kAtOnce>(rows + r * stride, stride, sums + r * kPanel, out + r * kPanel);
    }
    for (; r < count; ++r) some<1>(rows + r * stride, stride, sums + r * kPanel, out + r * kPanel);
  }

 private:
  static constexpr int kAtOnce = 4;

  // AVX512's operations, so its bits.
  template <int kCount>
  void some(const char *rows, int64_t stride, const int32_t *sums, float *out) const {
    __m512i sum[kCount][2];
    __m512 acc[kCount][2];
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
      const __m512i begin = Whole<F>::begin(rows + r * stride, number);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        sum[r][h] = _mm512_add_epi32(_mm512_loadu_si512(sums + r * kPanel + kHalf * h), begin);
        acc[r][h] = _mm512_loadu_ps(out + r * kPanel + kHalf * h);
      }
    }
    Whole<F>::template add<kCount>(block, group, number, rows, stride, sum, acc);
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) _mm512_storeu_ps(out + r * kPanel + kHalf * h, acc[r][h]);
    }
  }
};

// The integers of both halves of a group: where they lie, or, below 8 bits, unpacked.
template <class F>
const char *unpacked(const char *group, char *room) {
  if constexpr (F::kBits == 8) return group;
  for (int h = 0; h < 2; ++h) {
    Integers<F> integers{group + h * F::kHalf};
#pragma GCC unroll 8
    for (int i = 0; i < kSteps; ++i, room += kRegister) {
      _mm512_storeu_si512(room, integers.step(i));
    }
  }
  return room - 2 * kSteps * kRegister;
}

// Of few rows AVX512's kernel is faster, as floats are added for every group whatever multiplies, and
// below 8 bits unpacking takes its time too.
// Two blocks are on their way at once, because sums come long after their products began: two
// blocks of rows, or two parts of the weights with the only one.
template <class F, int kFormat>
void integers(const char *panel, const char *x, int64_t stride, int inputs, int rows, float *out) {
  constexpr int kFew = F::kBits == 8 ? 8 : 12;
  if (rows <= kFew) return kAvx512.tiles[kFormat].tile(panel, x, stride, inputs, rows, out);
  constexpr int kApart = F::kBits == 8 ? F::kHalf : kSteps * kRegister;
  constexpr int kFetched = F::kGroupBytes + (F::kGroups == 1 ? F::kHeader : 0);
  const int first = std::min(rows, amx::kRows), second = rows - first;
  amx::configure(shapes_of(Part<F>::kBytes, first, second ? second : first));
  std::memset(out, 0, rows * kOutBytes);
  alignas(64) char room[2 * kSteps * kRegister];
  Part<F> before{};  // whose sums wait, where there is one block of rows
  bool odd = false, waits = false;
  const char *block = panel;
  for (int b = 0; b < inputs / F::kInputs; ++b, block += F::kBytes) {
    const char *group = block + F::kHeader;
    for (int g = 0; g < F::kGroups; ++g, group += F::kGroupBytes, x += sizeof(Group)) {
      fetch<_MM_HINT_T1>(group, kFetched);
      const char *weights = unpacked<F>(group, room);
      for (int number = 0; number < F::kParts; ++number) {
        const Part<F> now{block, group, x, number};
        if (second) {
          const char *more = x + first * stride;
          now.template multiply<0, 4>(weights, kApart, x, stride);
          now.template multiply<2, 5>(weights, kApart, more, stride);
          now.template add<0>(x, stride, first, out);
          now.template add<2>(more, stride, second, out + first * kPanel);
          continue;
        }
        if (odd) {
          now.template multiply<2, 5>(weights, kApart, x, stride);
          before.template add<0>(before.x, stride, rows, out);
        } else {
          now.template multiply<0, 4>(weights, kApart, x, stride);
          if (waits) before.template add<2>(before.x, stride, rows, out);
        }
        before = now;
        odd = !odd;
        waits = true;
      }
    }
  }
  if (!waits) return;
  odd ? before.template add<0>(before.x, stride, rows, out)
      : before.template add<2>(before.x, stride, rows, out);
}

void bf16_of_any(const char *panel, const char *x, int64_t stride, int inputs, int rows,
                 float *out) {
  rows > amx::kRows ? bf16<true>(panel, x, stride, inputs, rows, out)
                    : bf16<false>(panel, x, stride, inputs, rows, out);
}

}  // namespace

Tile *const kAmxTiles[DP_FORMATS] = {
    bf16_of_any,
    integers<Q8_0, DP_INT8>,
    integers<Q4_1, DP_INT4>,
    integers<Q4_0, DP_Q4_0>,
    integers<Q5_0, DP_Q5_0>,
    integers<Q5_1, DP_Q5_1>,
    integers<Q4_K, DP_Q4_K>,
    integers<Q5_K, DP_Q5_K>,
    integers<Q6_K, DP_Q6_K>,
    integers<IQ4_NL, DP_IQ4_NL>,
    integers<IQ4_XS, DP_IQ4_XS>,
    integers<MXFP4, DP_MXFP4>,
    integers<S4_128, DP_S4_128>,
    integers<Z4_32, DP_Z4_32>,
    integers<Z4_128, DP_Z4_128>,
};
