// Any little-endian machine. The slow twin that the other sets are compared with.
#include "kernels.h"

#if defined(__BYTE_ORDER__)
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "pairs of bf16 and files' blocks are read as they lie");
#endif

namespace {
inline float madd(float a, float b, float c) { return a * b + c; }
}  // namespace

#include "generic.inl"

namespace {
template <class F>
constexpr Tiles kTiles{kTileRows, prepare_groups, tile_blocks<F>};
}  // namespace

const Kernels kPortable = {
    "portable",
    {{kTileRows, prepare_bf16, tile_bf16}, kTiles<Q8_0>, kTiles<Q4_1>, kTiles<Q4_0>, kTiles<Q5_0>,
     kTiles<Q5_1>, kTiles<Q4_K>, kTiles<Q5_K>, kTiles<Q6_K>, kTiles<IQ4_NL>, kTiles<IQ4_XS>,
     kTiles<MXFP4>, kTiles<S4_128>, kTiles<Z4_32>, kTiles<Z4_128>},
    norm, to_bf16, rotate, swiglu, {4, 2, scores, weigh}, softmax, argmax, gumbel, bounds, mass, max_of,
    few_rows<float>, few_rows<double>};
