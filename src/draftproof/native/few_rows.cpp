// Attention of a few rows of many texts in one call: where a pass of a small model over the next
// token of each spends most of its time on calls.
#include <cstdint>

#include "draftproof.h"
#include "kernels.h"

namespace {

bool fits(const dp_few &of, const dp_few_text *texts, int32_t count) {
  if (of.size < 1 || of.size > kMostHeadDim) return false;
  if (of.key_heads < 1 || of.heads < 1 || of.heads % of.key_heads) return false;
  for (int32_t i = 0; i < count; ++i) {
    const dp_few_text &text = texts[i];
    if (text.rows < 1 || text.slots < 1 || text.slots > DP_FEW_SLOTS) return false;
    if ((text.chain || of.new_keys) && text.slots < text.rows) return false;
  }
  return true;
}

}  // namespace

DP_API int32_t dp_few_rows(const dp_few *of, const dp_few_text *texts, int32_t count) {
  static const Kernels &kernels = *pick_kernels("");
  if (!of || count < 0 || (count && !texts) || !fits(*of, texts, count)) return DP_BAD_ARGUMENT;
  (of->wide ? kernels.few_doubles : kernels.few_floats)(*of, texts, count);
  return DP_OK;
}
