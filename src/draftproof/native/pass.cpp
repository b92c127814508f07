#include "pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>

Pass::Pass(dp_model &model, dp_team &team, const dp_pass &pass, const float *given)
    : model_(model), team_(team), pass_(pass), given_(given), k_(*model.kernels),
      room_(model.room) {
  place();
  phases_ = std::make_unique<Phase[]>(10 * model.shape.layers + pass.taps + 8);
}

// Positions, slots and pasts of all rows; the tasks of attention; room for everything.
void Pass::place() {
  int64_t slots = 0, positions = 0;
  const int group = model_.shape.heads / model_.shape.kv_heads;
  // Enough items to share, each of as many rows as go over the keys together.
  const int shared = int(int64_t(pass_.rows) * model_.shape.kv_heads / (8 * team_.count()));
  const int least = std::max(1, k_.attention.pairs / group), most = std::max(1, kTogether / group);
  const int rows_of_item = std::clamp(shared, least, most);
  places_.resize(pass_.rows);
  for (int s = 0; s < pass_.segments; ++s) {
    const dp_segment &seg = pass_.segment[s];
    const int root = seg.cached + seg.fresh;
    const int *parents = pass_.parents + seg.parents;
    std::vector<int> depths(seg.nodes);
    for (int i = 0; i < seg.nodes; ++i) depths[i] = i ? depths[parents[i]] + 1 : 0;
    for (int r = seg.begin; r < seg.end; ++r) {
      const int fresh = r - seg.begin;
      if (fresh < seg.fresh) {
        const int position = seg.cached + fresh;
        places_[r] = {&seg, position, position, position + 1, 0, 0};
        continue;
      }
      const int node = seg.first + fresh - seg.fresh, length = depths[node] + 1;
      const int path = int(paths_.size());
      paths_.resize(path + length);
      for (int at = node, i = length; i-- > 0; at = parents[at]) paths_[path + i] = at;
      places_[r] = {&seg, root + depths[node], root + node, root, path, length};
    }
    for (int r = seg.begin; r < seg.end; r += rows_of_item) {
      items_.insert(items_.end(), {s, r, std::min(rows_of_item, seg.end - r)});
      positions = std::max<int64_t>(positions, root + seg.nodes + 1);
    }
    slots = std::max<int64_t>(slots, round_up(root + seg.nodes, kMostStep));
  }
  model_.ensure_positions(positions);
  model_.ensure_room(std::max(pass_.rows, pass_.wanted));
  model_.ensure_scores(team_.count(), slots);
  best_.assign(size_t(team_.count()) * apart(), -INFINITY);
  best_ids_.assign(best_.size(), -1);
  bad_.assign(best_.size(), 0);
}

void Pass::run() {
  team_.run([](void *self, int thread) { static_cast<Pass *>(self)->work(thread); }, this);
  for (int r = 0; pass_.best && r < pass_.wanted; ++r) {  // threads took their panels in any order
    float best = -INFINITY;
    int32_t id = -1, bad = 0;
    for (size_t at = r; at < best_.size(); at += apart()) {
      bad |= bad_[at];
      const bool first = best_[at] == best && best_ids_[at] < id;
      if (best_ids_[at] >= 0 && (best_[at] > best || first)) {
        best = best_[at];
        id = best_ids_[at];
      }
    }
    pass_.best[r] = bad ? -1 : id;
  }
}

void Pass::work(int thread) {
  Worker worker{phases_.get(), thread};
  const int n = model_.shape.hidden;
  if (given_) {
    worker.rows(pass_.wanted, [&](int r) {
      std::memcpy(room_.normed.as<float>() + int64_t(r) * n, given_ + int64_t(r) * n, n * 4);
    });
  } else {
    worker.rows(pass_.rows, [&](int r) {
      model_.embed(pass_.tokens[r], room_.x.as<float>() + int64_t(r) * n);
    });
    for (int i = 0; i < pass_.layers; ++i) layer(worker, i);
    last(worker);
  }
  if (pass_.best) head(worker);
}

void Pass::layer(Worker &worker, int number) {
  const dp_shape &s = model_.shape;
  const Layer &layer = model_.layers[number];
  const int rows = pass_.rows, width = model_.q_width() + 2 * model_.kv_width();
  float *x = room_.x.as<float>(), *qkv = room_.qkv.as<float>(), *act = room_.act.as<float>();
  char *in = room_.input.data(), *act_in = room_.act_input.data();

  tap(worker, number);
  prepare(worker, layer.qkv, x, s.hidden, &layer.norm_in, rows, in);
  product(worker, layer.qkv, in, rows, [&](int panel, int first, int count, const float *tile) {
    const int at = panel * kPanel, n = std::min(kPanel, width - at);
    for (int r = 0; r < count; ++r) {
      std::memcpy(qkv + int64_t(first + r) * width + at, tile + r * kPanel, n * 4);
    }
  });
  const int blocks = (rows + kLanes - 1) / kLanes;
  worker.items(s.kv_heads * blocks, [&](int at) {
    const int first = at % blocks * kLanes;
    heads(number, at / blocks, first, std::min(first + kLanes, rows));
  });
  attention(worker, number);
  const auto add = [&](int panel, int first, int count, const float *tile) {
    const int at = panel * kPanel, n = std::min(kPanel, s.hidden - at);
    for (int r = 0; r < count; ++r) {
      float *to = x + int64_t(first + r) * s.hidden + at;
      for (int i = 0; i < n; ++i) to[i] += tile[r * kPanel + i];
    }
  };
  prepare(worker, layer.o, room_.attended.as<float>(), model_.q_width(), nullptr, rows, in);
  product(worker, layer.o, in, rows, add);
  prepare(worker, layer.gate_up, x, s.hidden, &layer.norm_post, rows, in);
  const int act_width = model_.act_width(), piece = kFormats[layer.down.activations()].piece_bytes;
  const auto activate = [&](int panel, int first, int count, const float *tile) {
    for (int r = 0; r < count; ++r) {
      if (!piece) {  // is prepared when its row is whole
        float *to = act + int64_t(first + r) * act_width + panel * kPanel / 2;
        k_.swiglu(tile + r * kPanel, to);
        continue;
      }
      float some[kPanel / 2];
      k_.swiglu(tile + r * kPanel, some);
      char *prepared = act_in + int64_t(first + r) * layer.down.row_bytes + panel * piece;
      k_.tiles[layer.down.activations()].prepare(some, kPanel / 2, kPanel / 2, prepared);
    }
  };
  product(worker, layer.gate_up, in, rows, activate);
  if (!piece) prepare(worker, layer.down, act, act_width, nullptr, rows, act_in);
  product(worker, layer.down, act_in, rows, add);
}

void Pass::prepare(Worker &worker, const Matrix &m, const float *from, int width,
                   const std::vector<float> *norm, int rows, char *to) {
  float *normed = room_.normed.as<float>();
  worker.rows(rows, [&](int r) {
    const float *row = from + int64_t(r) * width;
    if (norm) {
      float *out = normed + int64_t(r) * width;
      k_.norm(row, norm->data(), model_.shape.eps, width, out);
      row = out;
    }
    if (!m.order.empty()) {
      float *ordered = room_.ordered.as<float>() + int64_t(r) * int64_t(m.order.size());
      for (int i = 0; i < width; ++i) ordered[i] = row[m.order[i]];
      row = ordered;
    }
    k_.tiles[m.activations()].prepare(row, width, m.inputs, to + r * m.row_bytes);
  });
}

// The queries and the key of a group, normalised and rotated, keys and values into their slots: a
// group at a time, because neighbouring slots of one head share their cache lines.
void Pass::heads(int number, int kv_head, int first, int end) {
  const dp_shape &s = model_.shape;
  const Layer &layer = model_.layers[number];
  const int dim = s.head_dim, half = dim / 2, group = s.heads / s.kv_heads;
  const int width = model_.q_width() + 2 * model_.kv_width();
  const int query = kv_head * group * dim, key = model_.q_width() + kv_head * dim;
  const int value = key + model_.kv_width();
  float normed[kMostHeadDim];
  for (int r = first; r < end; ++r) {
    const Place &place = places_[r];
    float *row = room_.qkv.as<float>() + int64_t(r) * width;
    uint16_t *rounded = room_.rounded.as<uint16_t>() + int64_t(r) * width;
    const float *cosine = model_.cosine.data() + int64_t(place.position) * half;
    const float *sine = model_.sine.data() + int64_t(place.position) * half;
    const auto turn = [&](int at, const std::vector<float> &norm) {
      float *head = row + at;
      if (s.has_qk_norm) {
        k_.norm(head, norm.data(), s.eps, dim, normed);
        head = normed;
      }
      k_.rotate(head, cosine, sine, half);
      k_.to_bf16(head, dim, rounded + at);
    };
    for (int h = 0; h < group; ++h) turn(query + h * dim, layer.norm_q);
    turn(key, layer.norm_k);
    k_.to_bf16(row + value, dim, rounded + value);
    place.segment->row->store(number, kv_head, place.slot, rounded + key, rounded + value);
  }
}

void Pass::attention(Worker &worker, int number) {
  const int heads = model_.shape.kv_heads, items = int(items_.size()) / 3;
  worker.items(items * heads, [&](int at) {
    const int *item = &items_[at / heads * 3];
    attend({model_, places_, paths_}, worker.thread, number, pass_.segment[item[0]], at % heads,
           item[1], item[2]);
  });
}

// What enters a layer, or leaves the last norm, of the rows that are tapped.
void Pass::tap(Worker &worker, int layer) {
  const int n = model_.shape.hidden;
  const bool inside = layer < model_.shape.layers;
  for (int t = 0; t < pass_.taps; ++t) {
    if (pass_.tap_layers[t] != layer) continue;
    worker.rows(pass_.tapped, [&](int r) {
      const float *from = room_.x.as<float>() + int64_t(pass_.tapped_rows[r]) * n;
      float *to = pass_.hidden + (int64_t(t) * pass_.tapped + r) * n;
      if (inside) {
        std::memcpy(to, from, n * 4);
      } else {
        k_.norm(from, model_.norm_last.data(), model_.shape.eps, n, to);
      }
    });
  }
}

// The last norm, for the rows that are asked for.
void Pass::last(Worker &worker) {
  const int n = model_.shape.hidden;
  worker.rows(pass_.wanted, [&](int r) {
    const float *from = room_.x.as<float>() + int64_t(pass_.wanted_rows[r]) * n;
    k_.norm(from, model_.norm_last.data(), model_.shape.eps, n,
            room_.normed.as<float>() + int64_t(r) * n);
  });
  tap(worker, model_.shape.layers);
}

// Logits where they are asked for; the best token of every row on the way, without them.
void Pass::head(Worker &worker) {
  const dp_shape &s = model_.shape;
  char *in = room_.input.data();
  prepare(worker, model_.head, room_.normed.as<float>(), s.hidden, nullptr, pass_.wanted, in);
  float *best = best_.data() + worker.thread * apart();
  int32_t *ids = best_ids_.data() + worker.thread * apart();
  int32_t *bad = bad_.data() + worker.thread * apart();
  product(worker, model_.head, in, pass_.wanted,
           [&](int panel, int first, int count, const float *tile) {
             const int at = panel * kPanel, n = std::min(kPanel, head_rows(s) - at);
             for (int r = 0; r < count; ++r) {
               const int row = first + r;
               k_.argmax(tile + r * kPanel, n, at, best + row, ids + row, bad + row);
               if (pass_.logits_rows[row] < 0) continue;
               std::memcpy(pass_.logits + int64_t(pass_.logits_rows[row]) * head_rows(s) + at,
                           tile + r * kPanel, n * 4);
             }
           });
}
