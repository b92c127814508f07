#include "model.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

namespace {

float source_value(const void *data, int32_t source, int64_t at) {
  if (source == FT_SOURCE_FP32) return static_cast<const float *>(data)[at];
  const uint32_t bits = uint32_t(static_cast<const uint16_t *>(data)[at]) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Where an output of a projection stands in its matrix.
int place_of(const ft_model &model, int which, int output) {
  const int half = kPanel / 2;
  switch (which) {
    case FT_K: return model.q_width() + output;
    case FT_V: return model.q_width() + model.kv_width() + output;
    case FT_GATE: return output / half * kPanel + output % half;
    case FT_UP: return output / half * kPanel + half + output % half;
    default: return output;
  }
}

struct Size {
  int outputs, inputs;
};

Size size_of(const ft_shape &s, int which) {
  switch (which) {
    case FT_HEAD: return {s.vocabulary, s.hidden};
    case FT_Q: return {s.heads * s.head_dim, s.hidden};
    case FT_K:
    case FT_V: return {s.kv_heads * s.head_dim, s.hidden};
    case FT_O: return {s.hidden, s.heads * s.head_dim};
    case FT_GATE:
    case FT_UP: return {s.intermediate, s.hidden};
    case FT_DOWN: return {s.hidden, s.intermediate};
    default: return {0, 0};
  }
}

Matrix *matrix_of(ft_model &model, int which, int layer) {
  if (which == FT_HEAD) return &model.head;
  if (layer < 0 || layer >= model.shape.layers) return nullptr;
  Layer &at = model.layers[layer];
  switch (which) {
    case FT_Q:
    case FT_K:
    case FT_V: return &at.qkv;
    case FT_O: return &at.o;
    case FT_GATE:
    case FT_UP: return &at.gate_up;
    case FT_DOWN: return &at.down;
    default: return nullptr;
  }
}

// Lays a matrix out behind the others, from `at` on; returns where the next one begins.
int64_t lay_out(Matrix &m, int outputs, int inputs, int precision, int64_t at, char *base) {
  const int step = precision == FT_INT8 ? 4 : 2;
  m.outputs = outputs;
  m.inputs = round_up(inputs, step);
  m.panels = round_up(outputs, kPanel) / kPanel;
  m.panel_bytes = int64_t(m.inputs) / step * 128;
  if (base) {
    m.data = base + at;
    if (precision == FT_INT8) {
      m.scale.assign(m.panels * kPanel, 0.0f);
      m.shift.assign(m.panels * kPanel, 0);
    }
  }
  return at + m.panel_bytes * m.panels;
}

int64_t lay_out_all(const ft_shape &s, std::vector<Layer> &layers, Matrix &head, char *base) {
  const int half = kPanel / 2, act = round_up(s.intermediate, half);
  int64_t at = 0;
  for (Layer &each : layers) {
    const int qkv = (s.heads + 2 * s.kv_heads) * s.head_dim;
    at = lay_out(each.qkv, qkv, s.hidden, s.precision, at, base);
    at = lay_out(each.o, s.hidden, s.heads * s.head_dim, s.precision, at, base);
    at = lay_out(each.gate_up, 2 * act, s.hidden, s.precision, at, base);
    at = lay_out(each.down, s.hidden, s.intermediate, s.precision, at, base);
  }
  return lay_out(head, s.vocabulary, s.hidden, s.precision, at, base);
}

constexpr int kBlock = kPanel / 2;  // outputs that lie side by side in a panel, whatever they are

// `count` <= kBlock outputs from `first` on into their panel; false if a weight is not finite.
bool pack_block(const ft_model &model, Matrix &m, int which, int first, int count,
                const void *data, int32_t source, int inputs) {
  const int place = place_of(model, which, first), step = model.step();
  char *panel = m.data + place / kPanel * m.panel_bytes;
  const int lane = place % kPanel;
  std::vector<float> row(inputs);
  for (int n = 0; n < count; ++n) {
    const int64_t from = int64_t(first + n) * inputs;
    float top = 0.0f, wrong = 0.0f;
    for (int i = 0; i < inputs; ++i) {
      row[i] = source_value(data, source, from + i);
      wrong += row[i] * 0.0f;  // 0, or NaN
      top = std::fabs(row[i]) > top ? std::fabs(row[i]) : top;
    }
    if (!(wrong == 0.0f)) return false;
    if (!model.int8()) {
      uint16_t *to = reinterpret_cast<uint16_t *>(panel) + (lane + n) * step;
      for (int i = 0; i < inputs; ++i) to[i / 2 * kPanel * 2 + i % 2] = to_bf16(row[i]);
      continue;
    }
    int8_t *to = reinterpret_cast<int8_t *>(panel) + (lane + n) * step;
    const float inverse = top > 0.0f ? 127.0f / top : 0.0f;
    int32_t sum = 0;
    for (int i = 0; i < inputs; ++i) {
      const int8_t integer = int8_t(std::lrintf(row[i] * inverse));
      to[i / 4 * kPanel * 4 + i % 4] = integer;
      sum += integer;
    }
    m.scale[place + n] = top / 127.0f;
    m.shift[place + n] = 128 * sum;
  }
  return true;
}

}  // namespace

// A token's embedding out of the head's panel: one copy of the weights serves both.
void ft_model::embed(int32_t token, float *out) const {
  const int n = shape.hidden;
  if (embeddings) {
    const uint16_t *row = embeddings + int64_t(token) * n;
    for (int i = 0; i < n; ++i) out[i] = source_value(row, FT_SOURCE_BF16, i);
    return;
  }
  const char *panel = head.data + token / kPanel * head.panel_bytes;
  const int lane = token % kPanel;
  if (int8()) {
    for (int i = 0; i < n; ++i) {
      out[i] = head.scale[token] * float(panel[(i / 4 * kPanel + lane) * 4 + i % 4]);
    }
  } else {
    for (int i = 0; i < n; ++i) {
      out[i] = source_value(panel, FT_SOURCE_BF16, (i / 2 * kPanel + lane) * 2 + i % 2);
    }
  }
}

void ft_model::ensure_positions(int64_t count) {
  const int64_t half = shape.head_dim / 2;
  int64_t have = int64_t(cosine.size()) / half;
  if (count <= have) return;
  count = std::max<int64_t>(count, 2 * have);
  cosine.resize(count * half);
  sine.resize(count * half);
  for (; have < count; ++have) {
    for (int i = 0; i < half; ++i) {
      const float angle = float(have) * inv_freq[i];  // rounded, as transformers rounds it
      cosine[have * half + i] = float(std::cos(double(angle))) * shape.rope_scale;
      sine[have * half + i] = float(std::sin(double(angle))) * shape.rope_scale;
    }
  }
}

void ft_model::ensure_room(int rows, int threads, int64_t slots) {
  if (rows > room.rows) {
    rows = std::max(rows, 2 * room.rows);
    const int64_t n = rows, item = int8() ? 1 : 2, step = 4;
    const int64_t hidden = round_up(shape.hidden, step), q = round_up(q_width(), step);
    room.rows = 0;  // until all of it is there
    room.x = Memory(n * hidden * 4);
    room.normed = Memory(n * hidden * 4);
    room.last = Memory(n * hidden * 4);
    room.qkv = Memory(n * (q_width() + 2 * kv_width()) * 4);
    room.queries = Memory(n * q_width() * 2);
    room.attended = Memory(n * q * 4);
    room.act = Memory(n * act_width() * 4);
    room.input = Memory(n * hidden * item);
    room.attended_input = Memory(n * q * item);
    room.act_input = Memory(n * round_up(act_width(), step) * item);
    room.scales = Memory(n * 4);
    room.rows = rows;
  }
  if (threads > room.threads || slots > room.slots) {
    room.threads = std::max(threads, room.threads);
    room.slots = std::max(slots, slots > room.slots ? 2 * room.slots : room.slots);
    room.scores = Memory(room.threads * room.slots * kPairs * 4);
  }
}

void ft_row::store(int layer, int head, int slot, const float *key, const float *value) {
  const int dim = model->shape.head_dim;
  uint16_t *k = key_blocks(layer, head) + int64_t(slot / kLanes) * kLanes * dim;
  uint16_t *v = value_slots(layer, head) + int64_t(slot) * dim;
  for (int i = 0; i < dim; ++i) {
    k[(i / 2 * kLanes + slot % kLanes) * 2 + i % 2] = to_bf16(key[i]);
    v[i] = to_bf16(value[i]);
  }
}

FT_API int64_t ft_model_bytes(const ft_shape *shape) {
  std::vector<Layer> layers(shape->layers);
  Matrix head;
  return lay_out_all(*shape, layers, head, nullptr);
}

FT_API ft_model *ft_model_new(const ft_shape *shape, const char *kernels) try {
  auto *model = new ft_model{};
  model->shape = *shape;
  model->kernels = pick_kernels(kernels);
  model->layers.resize(shape->layers);
  try {
    model->weights = Memory(ft_model_bytes(shape) + 4096);  // what is fetched ahead of the last
    lay_out_all(*shape, model->layers, model->head, model->weights.data());
  } catch (const std::bad_alloc &) {
    delete model;
    throw;
  }
  return model;
} catch (const std::bad_alloc &) {
  return nullptr;
}

FT_API void ft_model_free(ft_model *model) { delete model; }

FT_API int32_t ft_model_matrix(ft_model *model, int32_t which, int32_t layer, const void *data,
                               int32_t source, int32_t outputs, int32_t inputs) {
  Matrix *m = matrix_of(*model, which, layer);
  const Size size = size_of(model->shape, which);
  if (!m || outputs != size.outputs || inputs != size.inputs) return FT_BAD_ARGUMENT;
  std::atomic<int> next{0};
  std::atomic<bool> finite{true};
  const auto pack = [&] {
    for (int n; (n = next.fetch_add(kBlock)) < outputs && finite;) {
      const int count = std::min(kBlock, outputs - n);
      if (!pack_block(*model, *m, which, n, count, data, source, inputs)) finite = false;
    }
  };
  const bool small = int64_t(outputs) * inputs < 1 << 18;
  std::vector<std::thread> others(small ? 0 : std::min(7u, std::thread::hardware_concurrency() - 1));
  for (auto &each : others) each = std::thread(pack);
  pack();
  for (auto &each : others) each.join();
  return finite ? FT_OK : FT_NOT_FINITE;
}

FT_API int32_t ft_model_bias(ft_model *model, int32_t which, int32_t layer, const float *bias,
                             int32_t outputs) {
  Matrix *m = matrix_of(*model, which, layer);
  if (!m || outputs != size_of(model->shape, which).outputs) return FT_BAD_ARGUMENT;
  if (m->bias.empty()) m->bias.assign(m->panels * kPanel, 0.0f);
  for (int n = 0; n < outputs; ++n) {
    if (!std::isfinite(bias[n])) return FT_NOT_FINITE;
    m->bias[place_of(*model, which, n)] = bias[n];
  }
  return FT_OK;
}

FT_API int32_t ft_model_vector(ft_model *model, int32_t which, int32_t layer, const float *data,
                               int32_t size) {
  const ft_shape &s = model->shape;
  if (layer < 0 || layer >= s.layers) return FT_BAD_ARGUMENT;
  for (int i = 0; i < size; ++i) {
    if (!std::isfinite(data[i])) return FT_NOT_FINITE;
  }
  Layer &at = model->layers[layer];
  struct Slot {
    std::vector<float> *to;
    int size;
  };
  const Slot slots[] = {{&at.norm_in, s.hidden},       {&at.norm_post, s.hidden},
                        {&at.norm_q, s.head_dim},      {&at.norm_k, s.head_dim},
                        {&model->norm_last, s.hidden}, {&model->inv_freq, s.head_dim / 2}};
  if (which == FT_WINDOW && size == 1) {
    at.window = int(data[0]);
    return FT_OK;
  }
  if (which < 0 || which > FT_INV_FREQ || slots[which].size != size) return FT_BAD_ARGUMENT;
  slots[which].to->assign(data, data + size);
  return FT_OK;
}

FT_API int32_t ft_model_embeddings(ft_model *model, const uint16_t *data) {
  model->embeddings = data;
  return FT_OK;
}

FT_API ft_row *ft_row_new(const ft_model *model) {
  auto *row = new (std::nothrow) ft_row{};
  if (row) row->model = model;
  return row;
}

FT_API void ft_row_free(ft_row *row) { delete row; }

FT_API int64_t ft_row_bytes(const ft_model *model, int32_t slots) {
  const ft_shape &s = model->shape;
  return int64_t(2) * 2 * s.layers * s.kv_heads * s.head_dim * round_up(slots, kLanes);
}

FT_API int32_t ft_row_reserve(ft_row *row, int32_t slots) try {
  if (slots <= row->slots) return FT_OK;
  const ft_model &model = *row->model;
  ft_row grown{};
  grown.model = row->model;
  grown.slots = round_up(slots, kLanes);
  grown.keys = Memory(ft_row_bytes(&model, slots) / 2);
  grown.values = Memory(ft_row_bytes(&model, slots) / 2);
  const size_t bytes = size_t(row->slots) * model.shape.head_dim * 2;
  for (int layer = 0; row->slots && layer < model.shape.layers; ++layer) {
    for (int head = 0; head < model.shape.kv_heads; ++head) {
      std::memcpy(grown.key_blocks(layer, head), row->key_blocks(layer, head), bytes);
      std::memcpy(grown.value_slots(layer, head), row->value_slots(layer, head), bytes);
    }
  }
  *row = std::move(grown);
  return FT_OK;
} catch (const std::bad_alloc &) {
  return FT_NO_MEMORY;
}

FT_API void ft_row_move(ft_row *row, const int32_t *sources, int32_t count, int32_t to) {
  const ft_shape &s = row->model->shape;
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
}
