// Any machine. The slow twin that the other sets are compared with.
#include "kernels.h"

namespace {
inline float madd(float a, float b, float c) { return a * b + c; }
}  // namespace

#include "generic.inl"

const Kernels kPortable = {
    "portable", 12, {{prepare_bf16, tile_bf16}, {prepare_int8, tile_int8}},
    norm, to_bf16, rotate, swiglu, scores, softmax, weigh, argmax, gumbel, soften, max_of};
