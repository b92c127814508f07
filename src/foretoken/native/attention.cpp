// Attention of a few packed rows over one head of keys and values.
//
// A row's past is a sequence of logical positions: the committed slots, then its path through the
// tree. Scores are made slot by slot, laid out by position, and everything after that goes by
// position: so a node of a tree computes what plain decoding computes at the same place.
#include <algorithm>
#include <cstring>

#include "pass.h"

void Pass::attend(int thread, int number, const ft_segment &segment, int kv_head, int first,
                  int count) {
  const ft_shape &s = model_.shape;
  const int dim = s.head_dim, group = s.heads / s.kv_heads;
  const int width = model_.q_width() + 2 * model_.kv_width();
  const int window = model_.layers[number].window;
  const uint16_t *keys = segment.row->key_blocks(number, kv_head);
  const uint16_t *values = segment.row->value_slots(number, kv_head);
  float *room = room_.scores.as<float>() + int64_t(thread) * room_.slots * kPairs;
  constexpr int kMost = 512;  // head_dim
  alignas(64) float sums[kPairs][kMost];

  for (int pair = 0; pair < count * group; pair += kPairs) {
    const int pairs = std::min(kPairs, count * group - pair);
    const uint16_t *q[kPairs];
    float *score[kPairs], *sum[kPairs];
    const float *weight[kPairs];
    const Place *place[kPairs];
    int begin[kPairs], from = 1 << 30, to = 0, shared_from = 0, shared_to = 1 << 30;
    for (int p = 0; p < pairs; ++p) {
      const int row = first + (pair + p) / group, head = kv_head * group + (pair + p) % group;
      place[p] = &places_[row];
      q[p] = room_.rounded.as<uint16_t>() + int64_t(row) * width + head * dim;
      score[p] = room + p * room_.slots;
      sum[p] = sums[p];
      std::fill(sums[p], sums[p] + dim, 0.0f);
      begin[p] = window ? std::max(0, place[p]->position + 1 - window) : 0;
      const int last = place[p]->length ? segment.cached + segment.fresh + segment.nodes
                                        : place[p]->committed;
      from = std::min(from, begin[p]);
      to = std::max(to, last);
      shared_from = std::max(shared_from, begin[p]);
      shared_to = std::min(shared_to, place[p]->committed);
    }
    const int block = from / kLanes;
    float *score_at[kPairs];
    for (int p = 0; p < pairs; ++p) score_at[p] = score[p] + block * kLanes;
    k_.scores(keys + int64_t(block) * kLanes * dim, round_up(to, kLanes) / kLanes - block, q, pairs,
              dim, score_at);
    float inverse[kPairs];
    for (int p = 0; p < pairs; ++p) {
      const int *path = paths_.data() + place[p]->path;
      float *tail = score[p] + place[p]->committed;
      for (int i = 0; i < place[p]->length; ++i) tail[i] = tail[path[i]];  // path[i] >= i
      inverse[p] = 1.0f / k_.softmax(score[p], begin[p], place[p]->position + 1, s.attention_scale);
    }
    // In order of position: what only some pairs see, what all see, the rest of each.
    const auto alone = [&](int p, int at, int end, const uint16_t *slot) {
      if (at >= end) return;
      weight[0] = score[p] + at;
      k_.weigh(slot, end - at, weight, 1, dim, &sum[p]);
    };
    const auto value = [&](int slot) { return values + int64_t(slot) * dim; };
    const bool sharing = shared_from < shared_to;
    for (int p = 0; p < pairs; ++p) {
      const int end = sharing ? shared_from : place[p]->committed;
      alone(p, begin[p], end, value(begin[p]));
    }
    if (sharing) {
      for (int p = 0; p < pairs; ++p) weight[p] = score[p] + shared_from;
      k_.weigh(value(shared_from), shared_to - shared_from, weight, pairs, dim, sum);
    }
    for (int p = 0; p < pairs; ++p) {
      const Place &at = *place[p];
      if (sharing) alone(p, shared_to, at.committed, value(shared_to));
      const int *path = paths_.data() + at.path;
      for (int i = std::max(0, begin[p] - at.committed); i < at.length; ++i) {
        const int position = at.committed + i;
        alone(p, position, position + 1, value(at.committed + path[i]));
      }
      const int row = first + (pair + p) / group, head = kv_head * group + (pair + p) % group;
      float *out = room_.attended.as<float>() + int64_t(row) * model_.q_width() + head * dim;
      for (int i = 0; i < dim; ++i) out[i] = sums[p][i] * inverse[p];
    }
  }
}
