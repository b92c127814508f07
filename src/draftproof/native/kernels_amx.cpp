// Products by AMX tiles, of bf16 and of int8; attention's are in kernels_amx_attention.cpp, and the
// rest of the set is that of AVX512.
//
// bf16 of any number of rows, one included, goes through the same instruction, TDPBF16PS: it adds
// in an order of its own (of each 32 inputs the even ones, the odd ones, then both to what was
// there), and a row's bits must not depend on how many rows stand beside it.
//
// Tiles 4 and 5 hold inputs of up to 16 rows each, 6 and 7 the weights of the first and the last 16
// outputs of a panel, 0 and 1 the sums of 4 with both, 2 and 3 those of 5.
#include <immintrin.h>

#include <cstddef>

#include "amx.h"
#include "kernels.h"

namespace {

constexpr int kAhead = 8192;  // bytes of the panel that are fetched before they are needed
constexpr int kHalf = kPanel / 2;
constexpr int kFew = 8;  // rows of int8
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

}  // namespace

void amx_bf16(const char *panel, const char *x, int64_t stride, int inputs, int rows, float *out) {
  rows > amx::kRows ? bf16<true>(panel, x, stride, inputs, rows, out)
                    : bf16<false>(panel, x, stride, inputs, rows, out);
}

// Of few rows AVX512's kernel is faster, as floats are added for every group whatever multiplies.
// Two blocks are on their way at once, because sums come long after their products began: two
// blocks of rows, or two groups of the only one.
void amx_int8(const char *panel, const char *x, int64_t stride, int inputs, int rows, float *out) {
  if (rows <= kFew) return kAvx512.tiles[DP_INT8].tile(panel, x, stride, inputs, rows, out);
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
