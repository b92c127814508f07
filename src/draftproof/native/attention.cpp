// Attention of a few packed rows over one head of keys and values.
//
// A row's past is a sequence of logical positions: the committed slots, then its path through the
// tree. Scores are made slot by slot, laid out by position, and everything after that goes by
// position: so a node of a tree computes what plain decoding computes at the same place.
#include <algorithm>
#include <cstring>

#include "attention.h"

namespace {

constexpr int kChunk = 128;  // slots whose keys or values stay in the nearest caches meanwhile

// A (row, head) pair and what it looks at: positions begin .. place->position.
struct Pair {
  const Place *place;
  int begin;
  float *out;
};

// Up to kPairs of them, next to one another: all see the positions from .. to.
struct Group {
  int first, count, from, to;
};

void attend_pairs(const Pasts &pasts, int thread, int number, const dp_segment &segment,
                  int kv_head, int first, int pair, int pairs) {
  dp_model &model = pasts.model;
  const Kernels &k = *model.kernels;
  const dp_shape &s = model.shape;
  const int dim = s.head_dim, group = s.heads / s.kv_heads;
  const int width = model.q_width() + 2 * model.kv_width();
  const int window = model.layers[number].window;
  const uint16_t *keys = segment.row->key_blocks(number, kv_head);
  const uint16_t *values = segment.row->value_slots(number, kv_head);
  float *room = model.scores.data.as<float>() + int64_t(thread) * model.scores.slots * kTogether;
  alignas(64) float sums[kTogether][kMostHeadDim];
  Pair of[kTogether];
  const uint16_t *q[kTogether];
  float *score[kTogether], *sum[kTogether];
  Group groups[kTogether / kPairs];
  int from = 1 << 30, to = 0, count = 0;
  for (int p = 0; p < pairs; ++p) {
    const int row = first + (pair + p) / group, head = kv_head * group + (pair + p) % group;
    const Place &place = pasts.places[row];
    const int begin = window ? std::max(0, place.position + 1 - window) : 0;
    of[p] = {&place, begin,
             model.room.attended.as<float>() + int64_t(row) * model.q_width() + head * dim};
    q[p] = model.room.rounded.as<uint16_t>() + int64_t(row) * width + head * dim;
    score[p] = room + p * model.scores.slots;
    sum[p] = sums[p];
    std::fill(sums[p], sums[p] + dim, 0.0f);
    if (p % kPairs == 0) groups[count++] = {p, 0, 0, 1 << 30};
    Group &last = groups[count - 1];
    last = {last.first, last.count + 1, std::max(last.from, begin),
            std::min(last.to, place.committed)};
    from = std::min(from, begin);
    to = std::max(to, place.length ? segment.cached + segment.fresh + segment.nodes
                                   : place.committed);
  }
  for (int at = from - from % kLanes; at < to; at += kChunk) {
    const int blocks = round_up(std::min(kChunk, to - at), kLanes) / kLanes;
    for (int p = 0; p < pairs; p += kPairs) {
      float *score_at[kPairs];
      const int n = std::min(kPairs, pairs - p);
      for (int i = 0; i < n; ++i) score_at[i] = score[p + i] + at;
      k.scores(keys + int64_t(at) * dim, blocks, q + p, n, dim, score_at);
    }
  }
  float inverse[kTogether];
  for (int p = 0; p < pairs; ++p) {
    const Place &at = *of[p].place;
    const int *path = pasts.paths.data() + at.path;
    float *tail = score[p] + at.committed;
    for (int i = 0; i < at.length; ++i) tail[i] = tail[path[i]];  // path[i] >= i
    inverse[p] = 1.0f / k.softmax(score[p], of[p].begin, at.position + 1, s.attention_scale);
  }
  // In order of position: what only some of a group see, what all see, the rest of each.
  const auto weigh = [&](int p, int n, int position, int end, int slot) {
    if (position >= end) return;
    const float *weight[kPairs];
    for (int i = 0; i < n; ++i) weight[i] = score[p + i] + position;
    k.weigh(values + int64_t(slot) * dim, end - position, weight, n, dim, sum + p);
  };
  const auto each = [&](auto work) {
    for (int g = 0; g < count; ++g) {
      for (int i = 0; i < groups[g].count; ++i) work(groups[g], groups[g].first + i);
    }
  };
  each([&](const Group &all, int p) {
    weigh(p, 1, of[p].begin, std::min(all.from, of[p].place->committed), of[p].begin);
  });
  for (int at = from; at < to; at += kChunk) {
    for (int g = 0; g < count; ++g) {
      const int begin = std::max(at, groups[g].from);
      weigh(groups[g].first, groups[g].count, begin, std::min(at + kChunk, groups[g].to), begin);
    }
  }
  each([&](const Group &all, int p) {
    const Place &at = *of[p].place;
    const int seen = std::max(all.from, all.to);
    weigh(p, 1, seen, at.committed, seen);
    const int *path = pasts.paths.data() + at.path;
    for (int i = std::max(0, of[p].begin - at.committed), end; i < at.length; i = end) {
      for (end = i + 1; end < at.length && path[end] == path[end - 1] + 1;) ++end;
      weigh(p, 1, at.committed + i, at.committed + end, at.committed + path[i]);
    }
    for (int i = 0; i < dim; ++i) of[p].out[i] = sums[p][i] * inverse[p];
  });
}

}  // namespace

void attend(const Pasts &pasts, int thread, int number, const dp_segment &segment, int kv_head,
            int first, int count) {
  const int group = pasts.model.shape.heads / pasts.model.shape.kv_heads;
  for (int pair = 0; pair < count * group; pair += kTogether) {
    const int pairs = std::min(kTogether, count * group - pair);
    attend_pairs(pasts, thread, number, segment, kv_head, first, pair, pairs);
  }
}
