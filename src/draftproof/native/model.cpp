// Where weights lie, and the room that a pass works in.
#include "model.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>

#include "checks.h"

namespace {

// An output of a matrix in the panels of its own: those of q, k and v lie one behind the other, and
// half of a panel are gates, the other half what they are for.
struct Part {
  int format, outputs, begin = 0;
};

// Lays a matrix out behind the others, from `at` on; returns where the next one begins, or -1 where
// two formats would share a panel, or the activations of one with numbers, of another with integers.
int64_t lay_out(Matrix &m, std::initializer_list<Part> parts, int inputs, int64_t at, char *base) {
  int outputs = 0;
  for (const Part &part : parts) outputs = std::max(outputs, part.begin + part.outputs);
  m.panels.resize(round_up(outputs, kPanel) / kPanel, Panel{-1, nullptr});
  int multiple = 1;
  for (const Part &part : parts) {
    if ((part.format == DP_BF16) != (parts.begin()->format == DP_BF16)) return -1;
    multiple = std::max(multiple, kFormats[part.format].multiple);
    const int end = round_up(part.begin + part.outputs, kPanel) / kPanel;
    for (int panel = part.begin / kPanel; panel < end; ++panel) {
      int &format = m.panels[panel].format;
      if (format >= 0 && format != part.format) return -1;
      format = part.format;
    }
  }
  m.inputs = round_up(inputs, multiple);
  m.row_bytes = kFormats[m.activations()].row_bytes(m.inputs);
  const int64_t begin = at;
  for (Panel &panel : m.panels) {
    if (base) panel.data = base + at;
    at += panel.of().panel_bytes(m.inputs);
  }
  m.bytes = at - begin;
  return at;
}

// What a model lays out; bytes of all of it, or -1.
int64_t lay_out_all(const dp_shape &s, const int32_t *formats, std::vector<Layer> &layers,
                    Matrix &head, Matrix &embeddings, char *base) {
  const int act = round_up(s.intermediate, kPanel / 2);
  const int q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  int64_t at = 0;
  const auto lay = [&](Matrix &m, std::initializer_list<Part> parts, int inputs) {
    if (at >= 0) at = lay_out(m, parts, inputs, at, base);
  };
  const int32_t *of = formats + DP_Q;
  for (Layer &each : layers) {
    const auto format = [&](int which) { return int(of[which - DP_Q]); };
    lay(each.qkv, {{format(DP_Q), q}, {format(DP_K), kv, q}, {format(DP_V), kv, q + kv}}, s.hidden);
    lay(each.o, {{format(DP_O), s.hidden}}, q);
    lay(each.gate_up, {{format(DP_GATE), 2 * act}, {format(DP_UP), 2 * act}}, s.hidden);
    lay(each.down, {{format(DP_DOWN), s.hidden}}, act);
    of += DP_MATRICES - DP_Q;
  }
  lay(head, {{formats[DP_HEAD], head_rows(s)}}, s.hidden);
  if (formats[DP_EMBEDDINGS] >= 0) lay(embeddings, {{formats[DP_EMBEDDINGS], s.vocabulary}}, s.hidden);
  return at;
}

bool sound(const dp_shape &s, const int32_t *formats) {
  if (!formats || !sound(s) || formats[DP_EMBEDDINGS] < -1) return false;
  const int count = DP_Q + (DP_MATRICES - DP_Q) * s.layers;
  for (int i = 0; i < count; ++i) {
    if (formats[i] >= DP_FORMATS || (i != DP_EMBEDDINGS && formats[i] < 0)) return false;
  }
  return true;
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

// packed: where the weights lie, or null for room of the model's own.
dp_model *made(const dp_shape *shape, const int32_t *formats, const char *kernels,
               const char *packed) try {
  const int64_t bytes = dp_model_bytes(shape, formats);
  const Kernels *picked = pick_kernels(kernels);
  if (!picked || bytes < 0) return nullptr;
  auto model = std::make_unique<dp_model>();
  model->shape = *shape;
  model->kernels = picked;
  model->layers.resize(shape->layers);
  if (!packed) model->weights = Memory(bytes);
  model->packed = packed ? packed : model->weights.data();
  char *base = const_cast<char *>(model->packed);  // of the caller's nothing is written
  lay_out_all(*shape, formats, model->layers, model->head, model->embeddings, base);
  return model.release();
} catch (const std::exception &) {
  return nullptr;
}

}  // namespace

// A token's embedding: given as it is, or out of a panel; the head's serves both.
void dp_model::embed(int32_t token, float *out) const {
  const int n = shape.hidden;
  if (!given_embeddings) {
    return (embeddings.panels.empty() ? head : embeddings).unpack(token, n, out);
  }
  const uint16_t *row = given_embeddings + int64_t(token) * n;
  for (int i = 0; i < n; ++i) out[i] = from_bf16(row[i]);
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
    size_t ordered = 0;
    for (const Layer &each : layers) {
      input = std::max({input, each.qkv.row_bytes, each.o.row_bytes, each.gate_up.row_bytes});
      act_input = std::max(act_input, each.down.row_bytes);
      for (const Matrix *m : {&each.qkv, &each.o, &each.gate_up, &each.down}) {
        ordered = std::max(ordered, m->order.size());
      }
    }
    Room fresh;
    fresh.x = Memory(n * shape.hidden * 4);
    fresh.normed = Memory(n * shape.hidden * 4);
    fresh.qkv = Memory(n * (q_width() + 2 * kv_width()) * 4);
    fresh.rounded = Memory(n * (q_width() + 2 * kv_width()) * 2);
    fresh.attended = Memory(n * q_width() * 4);
    fresh.act = Memory(n * act_width() * 4);
    fresh.ordered = Memory(n * ordered * 4);
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

DP_API int64_t dp_model_bytes(const dp_shape *shape, const int32_t *formats) try {
  if (!sound(*shape, formats)) return DP_BAD_ARGUMENT;
  std::vector<Layer> layers(shape->layers);
  Matrix head, embeddings;
  const int64_t bytes = lay_out_all(*shape, formats, layers, head, embeddings, nullptr);
  return bytes < 0 ? int64_t(DP_BAD_ARGUMENT) : bytes;
} catch (const std::exception &) {
  return DP_NO_MEMORY;
}

DP_API dp_model *dp_model_new(const dp_shape *shape, const int32_t *formats, const char *kernels) {
  return made(shape, formats, kernels, nullptr);
}

DP_API dp_model *dp_model_over(const dp_shape *shape, const int32_t *formats, const char *kernels,
                               const void *packed) {
  if (!packed || reinterpret_cast<uintptr_t>(packed) % 64) return nullptr;
  return made(shape, formats, kernels, static_cast<const char *>(packed));
}

DP_API const void *dp_model_packed(const dp_model *model) { return model->packed; }

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
  model->given_embeddings = data;
  return DP_OK;
}

