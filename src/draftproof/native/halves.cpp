// Products of half precision as torch keeps it, on processors that have none of their own.
#include <algorithm>
#include <exception>
#include <vector>

#include "draftproof.h"
#include "kernels.h"
#include "team.h"

namespace {

constexpr int64_t kWeights = 1 << 15;  // that a thread multiplies at once: they stay near while it does
constexpr int64_t kOutputs = 12;       // a multiple of those that the kernel takes together
constexpr size_t kKept = 1 << 24;      // bytes of rows, for which room is kept

struct Work {
  const Halves &kernel;
  const dp_halves &of;
  char *x;
  int64_t x_row, together;  // outputs
  Phase reading, multiplying;
};

// A thread's part of it.
void take_part(void *argument) {
  Work &work = *static_cast<Work *>(argument);
  const dp_halves &of = work.of;
  share(work.reading, int(of.rows), 4, [&](int row) {
    const uint16_t *from = reinterpret_cast<const uint16_t *>(of.x) + row * of.inputs;
    work.kernel.read(from, int(of.inputs), work.x + row * work.x_row * work.kernel.bytes);
  });
  share(work.multiplying, int((of.outputs + work.together - 1) / work.together), 1, [&](int item) {
    const int64_t begin = item * work.together;
    work.kernel.multiply(of, work.x, work.x_row, begin, std::min(begin + work.together, of.outputs));
  });
}

bool fits(const dp_halves &of) {
  constexpr int64_t most = 1 << 30;
  for (int64_t size : {of.rows, of.inputs, of.outputs}) {
    if (size < 1 || size > most) return false;
  }
  return of.x && of.weights && of.out && of.weight_row >= 0;
}

}  // namespace

DP_API const void *dp_halves_set(const char *name, int32_t fp16) {
  const Kernels *kernels = pick_kernels(name);
  return kernels && kernels->halves[fp16 != 0].multiply ? &kernels->halves[fp16 != 0] : nullptr;
}

DP_API int32_t dp_halves_product(const void *set, dp_parallel parallel, int32_t threads,
                                 const dp_halves *of) try {
  if (!set || threads < 1 || !of || !fits(*of)) return DP_BAD_ARGUMENT;
  const Halves &kernel = *static_cast<const Halves *>(set);
  // New room would take as long as what is done in it, where that is little.
  static thread_local std::vector<char> kept;
  const int64_t x_row = (of->inputs + kHalvesPadding - 1) / kHalvesPadding * kHalvesPadding;
  const size_t size = of->rows * x_row * kernel.bytes;
  std::vector<char> once(size > kKept ? size : 0);
  if (size <= kKept && kept.size() < size) kept.resize(size);
  std::vector<char> &room = size > kKept ? once : kept;
  const int64_t together = std::max(kWeights / of->inputs / kOutputs, int64_t(1)) * kOutputs;
  Work work{kernel, *of, room.data(), x_row, together, {}, {}};
  if (parallel && threads > 1) {
    parallel(take_part, &work, threads, 0);
  } else {
    take_part(&work);
  }
  return DP_OK;
} catch (const std::exception &) {
  return DP_NO_MEMORY;
}
