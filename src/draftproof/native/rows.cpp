// Keys and values of a sequence: kept, moved, grown.
#include <cstring>

#include "model.h"

// Bytes of a head's keys that are filled sooner or later. Every head of every layer begins in a page
// of its own where there are more: the first token of a long row would touch, and zero, all of it.
constexpr size_t kFilled = 64 << 10;

void dp_row::store(int layer, int head, int slot, const uint16_t *key, const uint16_t *value) {
  const int dim = model->shape.head_dim;
  uint16_t *k = key_blocks(layer, head) + int64_t(slot / kLanes) * kLanes * dim;
  uint16_t *v = value_pairs(layer, head) + int64_t(slot / 2) * 2 * dim + slot % 2;
  uint32_t bad = 0;
  for (int i = 0; i < dim; ++i) {
    v[2 * i] = value[i];
    bad |= (value[i] & 0x7f80u) == 0x7f80u;
  }
  if (bad) finite.store(false, std::memory_order_relaxed);
  for (int i = 0; i < dim; i += 2) std::memcpy(k + i * kLanes + slot % kLanes * 2, key + i, 4);
}

DP_API dp_row *dp_row_new(const dp_model *model) {
  if (!model) return nullptr;
  auto *row = new (std::nothrow) dp_row{};
  if (row) row->model = model;
  return row;
}

DP_API void dp_row_free(dp_row *row) { delete row; }

DP_API int64_t dp_row_bytes(const dp_model *model, int32_t slots) {
  const dp_shape &s = model->shape;
  if (slots < 0 || slots > kMostRows) return DP_BAD_ARGUMENT;
  return int64_t(2) * 2 * s.layers * s.kv_heads * s.head_dim * round_up(slots, kLanes);
}

DP_API int32_t dp_row_reserve(dp_row *row, int32_t slots) try {
  if (!row || slots < 0 || slots > kMostRows) return DP_BAD_ARGUMENT;
  if (slots <= row->slots) return DP_OK;
  const dp_model &model = *row->model;
  dp_row grown{};
  grown.model = row->model;
  grown.slots = round_up(slots, kLanes);
  const bool large_pages = size_t(grown.slots) * model.shape.head_dim * 2 <= kFilled;
  grown.keys = Memory(dp_row_bytes(&model, slots) / 2, large_pages);
  grown.values = Memory(dp_row_bytes(&model, slots) / 2, large_pages);
  const size_t bytes = size_t(row->slots) * model.shape.head_dim * 2;
  for (int layer = 0; row->slots && layer < model.shape.layers; ++layer) {
    for (int head = 0; head < model.shape.kv_heads; ++head) {
      std::memcpy(grown.key_blocks(layer, head), row->key_blocks(layer, head), bytes);
      std::memcpy(grown.value_pairs(layer, head), row->value_pairs(layer, head), bytes);
    }
  }
  row->keys = std::move(grown.keys);
  row->values = std::move(grown.values);
  row->slots = grown.slots;
  return DP_OK;
} catch (const std::bad_alloc &) {
  return DP_NO_MEMORY;
}

DP_API int32_t dp_row_move(dp_row *row, const int32_t *sources, int32_t count, int32_t to) {
  if (!row || count < 0 || to < 0 || (count && !sources)) return DP_BAD_ARGUMENT;
  for (int n = 0; n < count; ++n) {
    const int least = n ? sources[n - 1] + 1 : to;
    if (sources[n] < least || sources[n] >= row->slots) return DP_BAD_ARGUMENT;
  }
  const dp_shape &s = row->model->shape;
  const int dim = s.head_dim;
  for (int layer = 0; layer < s.layers; ++layer) {
    for (int head = 0; head < s.kv_heads; ++head) {
      uint16_t *k = row->key_blocks(layer, head), *v = row->value_pairs(layer, head);
      for (int n = 0; n < count; ++n) {
        const int from = sources[n], at = to + n;
        uint16_t *value = v + int64_t(at / 2) * 2 * dim + at % 2;
        const uint16_t *moved = v + int64_t(from / 2) * 2 * dim + from % 2;
        for (int i = 0; i < dim; ++i) value[2 * i] = moved[2 * i];
        const uint32_t *old = reinterpret_cast<uint32_t *>(k + int64_t(from) / kLanes * kLanes * dim);
        uint32_t *fresh = reinterpret_cast<uint32_t *>(k + int64_t(at) / kLanes * kLanes * dim);
        for (int i = 0; i < dim / 2; ++i) {
          fresh[i * kLanes + at % kLanes] = old[i * kLanes + from % kLanes];
        }
      }
    }
  }
  return DP_OK;
}

DP_API int32_t dp_row_copy(dp_row *to, const dp_row *from, int32_t slots) {
  if (!to || !from || to == from || to->model != from->model) return DP_BAD_ARGUMENT;
  if (slots < 0 || slots > from->slots || slots > to->slots) return DP_BAD_ARGUMENT;
  if (!from->finite) to->finite = false;
  const dp_shape &s = to->model->shape;
  const size_t bytes = size_t(round_up(slots, kLanes)) * s.head_dim * 2;  // keys lie in blocks
  for (int layer = 0; slots && layer < s.layers; ++layer) {
    for (int head = 0; head < s.kv_heads; ++head) {
      std::memcpy(to->key_blocks(layer, head), from->key_blocks(layer, head), bytes);
      std::memcpy(to->value_pairs(layer, head), from->value_pairs(layer, head), bytes);
    }
  }
  return DP_OK;
}
