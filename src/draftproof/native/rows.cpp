// Keys and values of a sequence: kept, moved, grown.
#include <cstring>

#include "model.h"

void dp_row::store(int layer, int head, int slot, const uint16_t *key, const uint16_t *value) {
  const int dim = model->shape.head_dim;
  uint16_t *k = key_blocks(layer, head) + int64_t(slot / kLanes) * kLanes * dim;
  std::memcpy(value_slots(layer, head) + int64_t(slot) * dim, value, dim * 2);
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
  grown.keys = Memory(dp_row_bytes(&model, slots) / 2);
  grown.values = Memory(dp_row_bytes(&model, slots) / 2);
  const size_t bytes = size_t(row->slots) * model.shape.head_dim * 2;
  for (int layer = 0; row->slots && layer < model.shape.layers; ++layer) {
    for (int head = 0; head < model.shape.kv_heads; ++head) {
      std::memcpy(grown.key_blocks(layer, head), row->key_blocks(layer, head), bytes);
      std::memcpy(grown.value_slots(layer, head), row->value_slots(layer, head), bytes);
    }
  }
  *row = std::move(grown);
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
      uint16_t *k = row->key_blocks(layer, head), *v = row->value_slots(layer, head);
      for (int n = 0; n < count; ++n) {
        const int from = sources[n], at = to + n;
        std::memmove(v + int64_t(at) * dim, v + int64_t(from) * dim, dim * 2);
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
  const dp_shape &s = to->model->shape;
  const size_t bytes = size_t(round_up(slots, kLanes)) * s.head_dim * 2;  // keys lie in blocks
  for (int layer = 0; slots && layer < s.layers; ++layer) {
    for (int head = 0; head < s.kv_heads; ++head) {
      std::memcpy(to->key_blocks(layer, head), from->key_blocks(layer, head), bytes);
      std::memcpy(to->value_slots(layer, head), from->value_slots(layer, head), bytes);
    }
  }
  return DP_OK;
}
