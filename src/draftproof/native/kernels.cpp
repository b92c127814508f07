#include "kernels.h"

#include <cstring>

const Kernels *pick_kernels(const char *name) {
  const Kernels *runnable[3];
  int count = 0;
#if defined(DP_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16")) {
    runnable[count++] = &kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) runnable[count++] = &kAvx2;
#endif
  runnable[count++] = &kPortable;
  if (!*name) return runnable[0];
  for (int i = 0; i < count; ++i) {
    if (!std::strcmp(runnable[i]->name, name)) return runnable[i];
  }
  return nullptr;
}
