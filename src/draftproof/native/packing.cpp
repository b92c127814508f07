// Weights from a checkpoint's layout into panels.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <thread>

#include "model.h"

namespace {

float source_value(const void *data, int32_t source, int64_t at) {
  return source == DP_SOURCE_FP32 ? static_cast<const float *>(data)[at]
                                  : from_bf16(static_cast<const uint16_t *>(data)[at]);
}

// Where an output of a projection stands in its matrix.
int place_of(const dp_model &model, int which, int output) {
  const int half = kPanel / 2;
  switch (which) {
    case DP_K: return model.q_width() + output;
    case DP_V: return model.q_width() + model.kv_width() + output;
    case DP_GATE: return output / half * kPanel + output % half;
    case DP_UP: return output / half * kPanel + half + output % half;
    default: return output;
  }
}

struct Size {
  int outputs, inputs;
};

Size size_of(const dp_shape &s, int which) {
  switch (which) {
    case DP_HEAD: return {head_rows(s), s.hidden};
    case DP_EMBEDDINGS: return {s.vocabulary, s.hidden};
    case DP_Q: return {s.heads * s.head_dim, s.hidden};
    case DP_K:
    case DP_V: return {s.kv_heads * s.head_dim, s.hidden};
    case DP_O: return {s.hidden, s.heads * s.head_dim};
    case DP_GATE:
    case DP_UP: return {s.intermediate, s.hidden};
    case DP_DOWN: return {s.hidden, s.intermediate};
    default: return {0, 0};
  }
}

constexpr int kBlock = kPanel / 2;  // outputs that lie side by side in a panel, whatever they are

// `count` <= kBlock outputs from `first` on into their panel; false if a weight is not finite.
bool pack_block(const dp_model &model, const Matrix &m, int which, int first, int count,
                const void *data, int32_t source, std::vector<float> &row) {
  const int place = place_of(model, which, first);
  const Panel &panel = m.panels[place / kPanel];
  const Format &format = panel.of();
  const int inputs = int(row.size());
  for (int n = 0; n < count; ++n) {
    if (source == DP_SOURCE_BLOCKS) {
      const int64_t bytes = int64_t(inputs) / format.multiple * format.source_bytes;
      const uint8_t *blocks = static_cast<const uint8_t *>(data) + (first + n) * bytes;
      if (!format.repack(blocks, inputs, place % kPanel + n, panel.data)) return false;
      continue;
    }
    const int64_t from = int64_t(first + n) * inputs;
    float wrong = 0.0f;
    for (int i = 0; i < inputs; ++i) {
      row[i] = source_value(data, source, from + i);
      wrong += row[i] * 0.0f;  // 0, or NaN
    }
    if (!(wrong == 0.0f)) return false;
    if (!format.pack(row.data(), inputs, m.inputs, place % kPanel + n, panel.data)) return false;
  }
  return true;
}

// Whether a matrix can be packed from this.
bool takes(const Format &format, int32_t source, int inputs) {
  if (source == DP_SOURCE_BLOCKS) return format.source_bytes && inputs % format.multiple == 0;
  return (source == DP_SOURCE_FP32 || source == DP_SOURCE_BF16) && format.pack;
}

}  // namespace

Matrix *dp_model::matrix(int which, int layer) {
  if (which == DP_HEAD) return &head;
  if (which == DP_EMBEDDINGS) return embeddings.panels.empty() ? nullptr : &embeddings;
  if (layer < 0 || layer >= shape.layers) return nullptr;
  Layer &at = layers[layer];
  switch (which) {
    case DP_Q:
    case DP_K:
    case DP_V: return &at.qkv;
    case DP_O: return &at.o;
    case DP_GATE:
    case DP_UP: return &at.gate_up;
    case DP_DOWN: return &at.down;
    default: return nullptr;
  }
}

DP_API int32_t dp_model_matrix(dp_model *model, int32_t which, int32_t layer, const void *data,
                               int32_t source, int32_t outputs, int32_t inputs) try {
  Matrix *m = model->matrix(which, layer);
  const Size size = size_of(model->shape, which);
  if (!m || outputs != size.outputs || inputs != size.inputs) return DP_BAD_ARGUMENT;
  if (model->packed != model->weights.data()) return DP_BAD_ARGUMENT;  // not ours to write
  const Panel &first = m->panels[place_of(*model, which, 0) / kPanel];
  if (!takes(first.of(), source, inputs)) return DP_BAD_ARGUMENT;
  std::atomic<int> next{0};
  std::atomic<bool> finite{true};
  const bool small = int64_t(outputs) * inputs < 1 << 18;
  const unsigned most = small ? 0 : std::min(7u, std::thread::hardware_concurrency() - 1);
  std::vector<std::vector<float>> rows(most + 1, std::vector<float>(inputs));  // of each thread
  std::vector<std::thread> others;
  others.reserve(most);
  const auto pack = [&](std::vector<float> &row) {
    for (int n; (n = next.fetch_add(kBlock)) < outputs && finite;) {
      const int count = std::min(kBlock, outputs - n);
      if (!pack_block(*model, *m, which, n, count, data, source, row)) finite = false;
    }
  };
  try {
    while (others.size() < most) others.emplace_back(pack, std::ref(rows[others.size()]));
  } catch (const std::exception &) {
    // The system gives no more threads: those that there are do it.
  }
  pack(rows[most]);
  for (auto &each : others) each.join();
  return finite ? DP_OK : DP_NOT_FINITE;
} catch (const std::exception &) {
  return DP_NO_MEMORY;
}

DP_API int32_t dp_blocks(int32_t format, const float *weights, int64_t count, uint8_t *blocks) {
  if (format < 0 || format >= DP_FORMATS || !kFormats[format].round || count % kGroup) {
    return DP_BAD_ARGUMENT;
  }
  const Format &to = kFormats[format];
  for (int64_t i = 0; i < count; i += kGroup, blocks += to.source_bytes) {
    for (int j = 0; j < kGroup; ++j) {
      if (!std::isfinite(weights[i + j])) return DP_NOT_FINITE;
    }
    if (!to.round(weights + i, blocks)) return DP_NOT_FINITE;
  }
  return DP_OK;
}

DP_API int32_t dp_model_weights(const dp_model *model, int32_t which, int32_t layer, int32_t output,
                                float *weights) try {
  const Matrix *m = const_cast<dp_model *>(model)->matrix(which, layer);
  const Size size = size_of(model->shape, which);
  if (!m || output < 0 || output >= size.outputs) return DP_BAD_ARGUMENT;
  m->unpack(place_of(*model, which, output), size.inputs, weights);
  return DP_OK;
} catch (const std::exception &) {
  return DP_NO_MEMORY;
}

DP_API int32_t dp_model_order(dp_model *model, int32_t which, int32_t layer, const int32_t *order,
                              int32_t inputs) try {
  Matrix *m = which == DP_HEAD || which == DP_EMBEDDINGS ? nullptr : model->matrix(which, layer);
  if (!m || inputs != size_of(model->shape, which).inputs || m->activations() == DP_BF16) {
    return DP_BAD_ARGUMENT;
  }
  // Activations may be padded to half a panel: what is there stays behind.
  std::vector<int32_t> given(order, order + inputs);
  for (int i = inputs; i < round_up(inputs, kPanel / 2); ++i) given.push_back(i);
  std::vector<bool> seen(given.size());
  for (const int32_t each : given) {
    if (each < 0 || each >= int(given.size()) || seen[each]) return DP_BAD_ARGUMENT;
    seen[each] = true;
  }
  if (model->room.rows || (!m->order.empty() && m->order != given)) return DP_BAD_ARGUMENT;
  m->order = std::move(given);
  return DP_OK;
} catch (const std::exception &) {
  return DP_NO_MEMORY;
}

DP_API int32_t dp_model_bias(dp_model *model, int32_t which, int32_t layer, const float *bias,
                             int32_t outputs) try {
  Matrix *m = model->matrix(which, layer);
  if (!m || outputs != size_of(model->shape, which).outputs) return DP_BAD_ARGUMENT;
  for (int n = 0; n < outputs; ++n) {
    if (!std::isfinite(bias[n])) return DP_NOT_FINITE;
  }
  if (m->bias.empty()) m->bias.assign(m->panels.size() * kPanel, 0.0f);
  for (int n = 0; n < outputs; ++n) m->bias[place_of(*model, which, n)] = bias[n];
  return DP_OK;
} catch (const std::exception &) {
  return DP_NO_MEMORY;
}
