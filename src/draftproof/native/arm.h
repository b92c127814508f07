// What an ARM processor can do beyond NEON, which every one of 64 bits has. Asked of the system.
#pragma once

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace arm {

#if defined(__linux__)
// By number, because the C library's headers may be older than the processor.
inline bool has_dot() { return getauxval(AT_HWCAP) >> 20 & 1; }
inline bool has_matrix() {
  const unsigned long int8 = 1ul << 13, bf16 = 1ul << 14;
  return has_dot() && !(~getauxval(AT_HWCAP2) & (int8 | bf16));
}
#elif defined(__APPLE__)
inline bool has(const char *feature) {
  int there = 0;
  size_t size = sizeof(there);
  return !sysctlbyname(feature, &there, &size, nullptr, 0) && size == sizeof(there) && there;
}
inline bool has_dot() { return has("hw.optional.arm.FEAT_DotProd"); }
inline bool has_matrix() {
  return has_dot() && has("hw.optional.arm.FEAT_I8MM") && has("hw.optional.arm.FEAT_BF16");
}
#else
inline bool has_dot() { return false; }
inline bool has_matrix() { return false; }
#endif

}  // namespace arm
