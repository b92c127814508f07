// AVX2 and FMA: the generic loops, for registers of eight floats.
#include "kernels.h"

#include <immintrin.h>

namespace {
inline float madd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
}  // namespace

#include "generic.inl"

const Kernels kAvx2 = {
    "avx2", 12, {{prepare_bf16, tile_bf16}, {prepare_int8, tile_int8}},
    norm, to_bf16, rotate, swiglu, scores, softmax, weigh, argmax, gumbel, soften, max_of};
