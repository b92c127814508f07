// NEON as every ARM processor of 64 bits has it.
#include "neon.inl"

constexpr Kernels kSet = set_of<Floats, WideSums>("neon");
static_assert(complete(kSet));
const Kernels kNeon = kSet;
