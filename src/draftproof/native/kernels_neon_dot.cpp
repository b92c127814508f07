// NEON with dot products of bytes (FEAT_DotProd). Its bits are those of kNeon.
#include "neon.inl"

constexpr Kernels kSet = set_of<Floats, DotSums>("neon-dot");
static_assert(complete(kSet));
const Kernels kNeonDot = kSet;
