// Where weights lie, and the room that a pass works in.
#include "model.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "checks.h"

namespace {

// Lays a matrix out behind the others, from `at` on; returns where the next one begins.
int64_t lay_out(Matrix &m, int outputs, int inputs, int format, int64_t at, char *base) {
  m.format = format;
  m.outputs = outputs;
  m.inputs = round_up(inputs, m.of().multiple);
  m.panels = round_up(outputs, kPanel) / kPanel;
  m.panel_bytes = m.of().panel_bytes(m.inputs);
  m.row_bytes = m.of().row_bytes(m.inputs);
  if (base) m.data = base + at;
  return at + m.panel_bytes * m.panels;
}

int64_t lay_out_all(const dp_shape &s, std::vector<Layer> &layers, Matrix &head, char *base) {
  const int half = kPanel / 2, act = round_up(s.intermediate, half);
  int64_t at = 0;
  for (Layer &each : layers) {
    const int qkv = (s.heads + 2 * s.kv_heads) * s.head_dim;
    at = lay_out(each.qkv, qkv, s.hidden, s.formats[DP_OF_QKV], at, base);
    at = lay_out(each.o, s.hidden, s.heads * s.head_dim, s.formats[DP_OF_O], at, base);
    at = lay_out(each.gate_up, 2 * act, s.hidden, s.formats[DP_OF_GATE_UP], at, base);
    at = lay_out(each.down, s.hidden, act, s.formats[DP_OF_DOWN], at, base);
  }
  return lay_out(head, s.vocabulary, s.hidden, s.formats[DP_OF_HEAD], at, base);
}

// Grows from `have` to what is wanted: to twice of what there was, so that growing is rare, or to
// just that where so much is refused.
template <class To>
void grow(int64_t wanted, int64_t have, To to) {
  if (2 * have > wanted) {
    try {
      return to(2 * have);
    } catch (const std::bad_alloc &) {
    }
  }
  to(wanted);
}

}  // namespace

// A token's embedding out of the head's panel: one copy of the weights serves both.
void dp_model::embed(int32_t token, float *out) const {
  const int n = shape.hidden;
  if (embeddings) {
    const uint16_t *row = embeddings + int64_t(token) * n;
    for (int i = 0; i < n; ++i) out[i] = from_bf16(row[i]);
    return;
  }
  const char *panel = head.data + token / kPanel * head.panel_bytes;
  head.of().unpack(panel, head.inputs, token % kPanel, n, out);
}

void dp_model::ensure_positions(int64_t count) {
  const int64_t half = shape.head_dim / 2, have = int64_t(cosine.size()) / half;
  if (count <= have) return;
  grow(count, have, [&](int64_t size) {
    std::vector<float> cosines, sines;
    cosines.reserve(size * half);
    sines.reserve(size * half);
    cosines = cosine;
    sines = sine;
    for (int64_t position = have; position < size; ++position) {
      for (int i = 0; i < half; ++i) {
        const float angle = float(position) * inv_freq[i];  // rounded, as transformers rounds it
        cosines.push_back(float(std::cos(double(angle))) * shape.rope_scale);
        sines.push_back(float(std::sin(double(angle))) * shape.rope_scale);
      }
    }
    cosine.swap(cosines);
    sine.swap(sines);
  });
}

void dp_model::ensure_room(int rows) {
  if (rows <= room.rows) return;
  grow(rows, room.rows, [&](int64_t n) {
    int64_t input = head.row_bytes, act_input = 0;
    for (const Layer &each : layers) {
      input = std::max({input, each.qkv.row_bytes, each.o.row_bytes, each.gate_up.row_bytes});
      act_input = std::max(act_input, each.down.row_bytes);
    }
    Room fresh;
    fresh.x = Memory(n * shape.hidden * 4);
    fresh.normed = Memory(n * shape.hidden * 4);
    fresh.qkv = Memory(n * (q_width() + 2 * kv_width()) * 4);
    fresh.rounded = Memory(n * (q_width() + 2 * kv_width()) * 2);
    fresh.attended = Memory(n * q_width() * 4);
    fresh.act = Memory(n * act_width() * 4);
    fresh.input = Memory(n * input);
    fresh.act_input = Memory(n * act_input);
    fresh.rows = int(n);
    room = std::move(fresh);
  });
}

void dp_model::ensure_scores(int threads, int64_t slots) {
  if (threads <= scores.threads && slots <= scores.slots) return;
  threads = std::max(threads, scores.threads);
  const int64_t have = slots > scores.slots ? scores.slots : 0;  // only threads: nothing doubles
  grow(std::max(slots, scores.slots), have, [&](int64_t size) {
    scores = Scores{Memory(threads * size * kTogether * 4), threads, size};
  });
}

DP_API int64_t dp_model_bytes(const dp_shape *shape) try {
  if (!sound(*shape)) return DP_BAD_ARGUMENT;
  std::vector<Layer> layers(shape->layers);
  Matrix head;
  return lay_out_all(*shape, layers, head, nullptr);
} catch (const std::exception &) {
  return DP_NO_MEMORY;
}

DP_API dp_model *dp_model_new(const dp_shape *shape, const char *kernels) try {
  const Kernels *picked = pick_kernels(kernels);
  if (!picked || !sound(*shape)) return nullptr;
  auto model = std::make_unique<dp_model>();
  model->shape = *shape;
  model->kernels = picked;
  model->layers.resize(shape->layers);
  model->weights = Memory(lay_out_all(*shape, model->layers, model->head, nullptr));
  lay_out_all(*shape, model->layers, model->head, model->weights.data());
  return model.release();
} catch (const std::exception &) {
  return nullptr;
}

DP_API void dp_model_free(dp_model *model) { delete model; }

DP_API int32_t dp_model_vector(dp_model *model, int32_t which, int32_t layer, const float *data,
                               int32_t size) try {
  const dp_shape &s = model->shape;
  if (layer < 0 || layer >= s.layers) return DP_BAD_ARGUMENT;
  Layer &at = model->layers[layer];
  struct Slot {
    std::vector<float> *to;
    int size;
  };
  const Slot slots[] = {{&at.norm_in, s.hidden},       {&at.norm_post, s.hidden},
                        {&at.norm_q, s.head_dim},      {&at.norm_k, s.head_dim},
                        {&model->norm_last, s.hidden}, {&model->inv_freq, s.head_dim / 2}};
  if (which < 0 || which > DP_WINDOW) return DP_BAD_ARGUMENT;
  if (size != (which == DP_WINDOW ? 1 : slots[which].size)) return DP_BAD_ARGUMENT;
  for (int i = 0; i < size; ++i) {
    if (!std::isfinite(data[i])) return DP_NOT_FINITE;
  }
  if (which == DP_WINDOW) {
    if (data[0] < 0.0f || data[0] > kMostWindow) return DP_BAD_ARGUMENT;
    at.window = int(data[0]);
  } else {
    slots[which].to->assign(data, data + size);
  }
  return DP_OK;
} catch (const std::exception &) {
  return DP_NO_MEMORY;
}

DP_API int32_t dp_model_embeddings(dp_model *model, const uint16_t *data) {
  model->embeddings = data;
  return DP_OK;
}

