// Products and attention of half precision as torch keeps it, for passes over few rows of it, and for
// processors without instructions of it.
#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
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

struct Attending {
  const Halves &kernel;
  const dp_half_attention &of;
  const dp_half_text *texts;
  int64_t parts, items;  // parts of the rows of a text and key head, and all parts
  Phase phase;
  std::atomic<bool> failed;
};

void attend_part(void *argument) {
  Attending &work = *static_cast<Attending *>(argument);
  share(work.phase, int(work.items), 1, [&](int item) {
    const int64_t part = item % work.parts, which = item / work.parts, heads = work.of.key_heads;
    const dp_half_text &text = work.texts[which / heads];
    const int64_t rows = work.of.heads / heads * text.rows;
    try {
      work.kernel.attend(work.of, text, which % heads, rows * part / work.parts,
                         rows * (part + 1) / work.parts);
    } catch (const std::exception &) {
      work.failed = true;
    }
  });
}

bool fits(const dp_half_attention &of, const dp_half_text *texts, int32_t count) {
  if (of.size < 1 || of.size > kMostHeadDim || of.size % kLanes || of.window < 0) return false;
  if (of.key_heads < 1 || of.heads < 1 || of.heads % of.key_heads || !of.q || !of.out) return false;
  return std::all_of(texts, texts + count, [](const dp_half_text &text) {
    const bool paths = text.paths && text.ends;
    if (text.begin < 0 || text.rows < 1 || text.before < 0 || !text.keys || !text.values) return false;
    if (!paths) return !text.paths && !text.ends;
    const int32_t *ends = reinterpret_cast<const int32_t *>(text.ends), *end = ends + text.rows;
    return ends[0] > 0 && std::adjacent_find(ends, end, std::greater_equal<int32_t>()) == end;
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

DP_API int32_t dp_half_rows(const void *set, dp_parallel parallel, int32_t threads,
                            const dp_half_attention *of, const dp_half_text *texts, int32_t count) {
  if (!set || threads < 1 || !of || count < 1 || !texts || !fits(*of, texts, count)) {
    return DP_BAD_ARGUMENT;
  }
  const int64_t whole = count * of->key_heads, parts = (threads + whole - 1) / whole;
  Attending work{*static_cast<const Halves *>(set), *of, texts, parts, parts * whole, {}, {false}};
  if (parallel && threads > 1) {
    parallel(attend_part, &work, threads, 0);
  } else {
    attend_part(&work);
  }
  return work.failed ? DP_NO_MEMORY : DP_OK;
}
