#include "checks.h"

namespace {

constexpr int kMostWidth = 1 << 26;  // of a layer's widest matrix, so that 32 bits count its outputs

bool between(int64_t least, int64_t n, int64_t most) { return least <= n && n <= most; }

bool complete(const dp_model &model) {
  const dp_shape &s = model.shape;
  const size_t hidden = s.hidden, dim = s.head_dim;
  bool all = model.norm_last.size() == hidden && model.inv_freq.size() == dim / 2;
  // A head that lacks rows cannot stand for the embeddings.
  const bool own = model.given_embeddings || !model.embeddings.panels.empty();
  all = all && (own || head_rows(s) == s.vocabulary);
  for (const Layer &each : model.layers) {
    all = all && each.norm_in.size() == hidden && each.norm_post.size() == hidden;
    if (s.has_qk_norm) all = all && each.norm_q.size() == dim && each.norm_k.size() == dim;
  }
  return all;
}

bool sound(const dp_model &model, const dp_segment &segment) {
  const int64_t slots = int64_t(segment.cached) + segment.fresh + segment.nodes;
  return segment.row && segment.row->model == &model && segment.cached >= 0 && segment.fresh >= 0 &&
         between(0, segment.first, segment.nodes) && slots <= segment.row->slots &&
         int64_t(segment.end) - segment.begin == int64_t(segment.fresh) + segment.nodes - segment.first;
}

// Segments share the rows out in order, and so the parents, of which each comes before its child.
bool segments_sound(const dp_model &model, const dp_pass &pass) {
  int64_t rows = 0, nodes = 0;
  for (int s = 0; s < pass.segments; ++s) {
    const dp_segment &segment = pass.segment[s];
    if (segment.begin != rows || segment.parents != nodes || !sound(model, segment)) return false;
    if (segment.nodes && !pass.parents) return false;
    for (int i = 0; i < segment.nodes; ++i) {
      const int parent = pass.parents[nodes + i];
      if (i ? !between(0, parent, i - 1) : parent != -1) return false;
    }
    rows = segment.end;
    nodes += segment.nodes;
  }
  return rows == pass.rows;
}

// Some of the packed rows, ascending.
bool rows_sound(int count, const int32_t *some, int rows) {
  if (!between(0, count, rows) || (count && !some)) return false;
  for (int i = 0; i < count; ++i) {
    if (!between(i ? some[i - 1] + 1 : 0, some[i], rows - 1)) return false;
  }
  return true;
}

// What is asked for is in the pass, and there is room for it.
bool wanted_sound(const dp_model &model, const dp_pass &pass) {
  const bool rows = rows_sound(pass.wanted, pass.wanted_rows, pass.rows) &&
                    rows_sound(pass.tapped, pass.tapped_rows, pass.rows);
  if (!rows) return false;
  if (pass.best) {
    if (pass.wanted && !pass.logits_rows) return false;
    int asked = 0;
    for (int i = 0; i < pass.wanted; ++i) asked += pass.logits_rows[i] != -1;
    if (asked && !pass.logits) return false;
    for (int i = 0; i < pass.wanted; ++i) {
      if (!between(-1, pass.logits_rows[i], asked - 1)) return false;
    }
  }
  if (pass.taps && (!pass.tap_layers || (pass.tapped && !pass.hidden))) return false;
  for (int t = 0; t < pass.taps; ++t) {
    const int layer = pass.tap_layers[t];
    if (!between(0, layer, pass.layers - 1) && layer != model.shape.layers) return false;
  }
  return true;
}

}  // namespace

bool sound(const dp_shape &s) {
  const bool each = between(0, s.layers, 1 << 16) && between(1, s.hidden, kMostWidth) &&
                    between(1, s.heads, kMostWidth) && between(1, s.kv_heads, s.heads) &&
                    between(2, s.head_dim, kMostHeadDim) && between(1, s.vocabulary, kMostWidth) &&
                    between(1, s.intermediate, kMostWidth) && between(0, s.outputs, s.vocabulary);
  if (!each || s.heads % s.kv_heads) return false;
  if (s.layers && s.head_dim % kLanes) return false;  // attention goes by so many elements
  return (int64_t(s.heads) + 2 * int64_t(s.kv_heads)) * s.head_dim <= kMostWidth;
}

bool sound(dp_model &model, const dp_pass &pass) {
  const bool counts = between(0, pass.rows, kMostRows) && between(0, pass.segments, kMostRows) &&
                      between(0, pass.taps, kMostRows) &&
                      between(0, pass.layers, model.shape.layers);
  if (!counts || (pass.rows && !pass.tokens) || (pass.segments && !pass.segment)) return false;
  for (int r = 0; r < pass.rows; ++r) {
    if (!between(0, pass.tokens[r], model.shape.vocabulary - 1)) return false;
  }
  if (!model.complete) model.complete = complete(model);
  return model.complete && segments_sound(model, pass) && wanted_sound(model, pass);
}
