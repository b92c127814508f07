#include "kernels.h"

#include <cstring>
#if defined(DP_X86)
#include <cpuid.h>

#include "amx.h"
#elif defined(DP_ARM)
#include "arm.h"
#endif
#if defined(DP_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#if defined(DP_X86)
bool has_avx2() {
  unsigned a, b, c = 0, d;
  const bool halves = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && halves;
}

bool has_avx512() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}

bool has_amx() { return has_avx512() && amx::there(); }
#endif

#if defined(DP_AMX)
// A process asks once for the room that the system needs to save tiles; its threads then have it.
bool may_use_tiles() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  static const bool given = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return given;
}

const Kernels *amx_set() {
  static const Kernels set = [] {
    Kernels made = kAvx512;
    made.name = "amx";
    made.attention = kAmxAttention;
    for (int format = 0; format < DP_FORMATS; ++format) {
      made.tiles[format] = {kMostTileRows, made.tiles[format].prepare, kAmxTiles[format]};
    }
    return made;
  }();
  return &set;
}
#endif

}  // namespace

const Kernels *pick_kernels(const char *name) {
  const Kernels *runnable[4];
  int count = 0;
#if defined(DP_AMX)
  if (has_amx() && may_use_tiles()) runnable[count++] = amx_set();
#endif
#if defined(DP_X86)
  if (has_avx512()) runnable[count++] = &kAvx512;
  if (has_avx2()) runnable[count++] = &kAvx2;
#elif defined(DP_ARM)
#if defined(DP_ARM_MORE)
  if (arm::has_matrix()) runnable[count++] = &kNeonMatrix;
  if (arm::has_dot()) runnable[count++] = &kNeonDot;
#endif
  runnable[count++] = &kNeon;
#endif
  runnable[count++] = &kPortable;
  if (!*name) return runnable[0];
  for (int i = 0; i < count; ++i) {
    if (!std::strcmp(runnable[i]->name, name)) return runnable[i];
  }
  return nullptr;
}

const char *missed_kernels() {
#if defined(DP_AMX)
  if (has_amx() && !may_use_tiles()) {
    return "AMX is there, but this system does not let programs use it";
  }
#elif defined(DP_X86)
  if (has_amx()) return "AMX is there, but the kernels were built without it";
#elif defined(DP_ARM) && !defined(DP_ARM_MORE)
  if (arm::has_dot()) return "dot products are there, but the kernels were built without them";
#endif
  return "";
}
