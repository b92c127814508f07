// Attention of a few packed rows over one head of keys and values.
//
// A row's past is a sequence of logical positions: the committed slots, then its path through the
// tree. Scores are made slot by slot, laid out by position, and everything after that goes by
// position: so a node of a tree computes what plain decoding computes at the same place.
//
// Weighted values are added in steps of a few positions, counted from the first of all. In steps
// that some row beside this one does not see whole, what it does not see has weight 0. That adds 0
// to a sum, which changes at most the sign of a zero; and where some value is not finite, every row
// gets a copy of those it sees instead.
#include "attention.h"

#include <algorithm>
#include <cstring>

namespace {

constexpr int kChunk = 128;  // slots whose keys or values stay in the nearest caches meanwhile
static_assert(kChunk % kMostStep == 0 && kMostStep % 2 == 0);

int round_down(int n, int multiple) { return n - n % multiple; }

// A (row, head) pair and what it looks at: positions begin .. end, in order of slots up to `straight`.
struct Pair {
  const Place *place;
  int begin, end, straight;
  float *out;
};

// Pairs next to one another. All see the slots from .. to; what any sees is first .. last, in steps.
struct Group {
  int at, count, from, to, first, last;
};

// Pairs of one head of keys: their scores, which become weights, and their sums.
class Together {
 public:
  Together(const Pasts &pasts, int thread, int number, const dp_segment &segment, int kv_head)
      : pasts_(pasts), model_(pasts.model), k_(*model_.kernels), step_(k_.attention.step),
        dim_(model_.shape.head_dim), row_(*segment.row), keys_(row_.key_blocks(number, kv_head)),
        values_(row_.value_pairs(number, kv_head)), apart_(model_.scores.slots),
        room_(model_.scores.data.as<float>() + thread * apart_ * kTogether), kv_head_(kv_head),
        window_(model_.layers[number].window), slots_(segment.cached + segment.fresh + segment.nodes) {}

  void attend(int first, int pair, int pairs) {
    begin(first, pair, pairs);
    int from = groups_[0].first, to = 0;
    for (int g = 0; g < count_; ++g) {
      from = std::min(from, groups_[g].first);
      to = std::max(to, groups_[g].last);
    }
    score(from);
    for (int g = 0; g < count_; ++g) soften(groups_[g]);
    for (int at = round_down(from, kChunk); at < to; at += kChunk) {
      for (int g = 0; g < count_; ++g) {
        const Group &group = groups_[g];
        weigh(group, std::max(at, group.first), std::min(at + kChunk, group.last));
      }
    }
    for (int p = 0; p < pairs; ++p) {  // + 0: no zero has a sign
      for (int i = 0; i < dim_; ++i) of_[p].out[i] = sums_[p * dim_ + i] * inverse_[p] + 0.0f;
    }
  }

 private:
  void begin(int first, int pair, int pairs) {
    const dp_shape &s = model_.shape;
    const int group = s.heads / s.kv_heads, width = model_.q_width() + 2 * model_.kv_width();
    count_ = limit_ = 0;
    for (int p = 0; p < pairs; ++p) {
      const int row = first + (pair + p) / group, head = kv_head_ * group + (pair + p) % group;
      const Place &place = pasts_.places[row];
      const int *path = pasts_.paths.data() + place.path;
      int straight = 0;
      while (straight < place.length && path[straight] == straight) ++straight;
      of_[p] = {&place, window_ ? std::max(0, place.position + 1 - window_) : 0,
                place.position + 1, place.committed + straight,
                model_.room.attended.as<float>() + int64_t(row) * model_.q_width() + head * dim_};
      const Pair &of = of_[p];
      const uint16_t *q = model_.room.rounded.as<uint16_t>() + int64_t(row) * width + head * dim_;
      std::memcpy(q_ + p * dim_, q, dim_ * sizeof(*q));
      std::fill_n(sums_ + p * dim_, dim_, 0.0f);
      if (p % k_.attention.pairs == 0) groups_[count_++] = {p, 0, 0, of.straight, of.begin, 0};
      Group &last = groups_[count_ - 1];
      last = {last.at, last.count + 1, std::max(last.from, of.begin),
              std::min(last.to, of.straight), std::min(last.first, round_down(of.begin, step_)),
              std::max(last.last, round_up(of.end, step_))};
      limit_ = std::max(limit_, of.straight < of.end ? slots_ : of.end);
    }
  }

  void score(int from) {
    for (int at = round_down(from, kLanes); at < limit_; at += kChunk) {
      const int blocks = round_up(std::min(kChunk, limit_ - at), kLanes) / kLanes;
      for (int g = 0; g < count_; ++g) {
        const Group &of = groups_[g];
        k_.attention.scores(keys_ + int64_t(at) * dim_, blocks, q_ + of.at * dim_, of.count, dim_,
                            room_ + of.at * apart_ + at, apart_);
      }
    }
  }

  // Scores by position become weights, zeros around them.
  void soften(const Group &group) {
    for (int p = group.at; p < group.at + group.count; ++p) {
      const Pair &of = of_[p];
      const int *path = pasts_.paths.data() + of.place->path;
      float *score = room_ + p * apart_, *tail = score + of.place->committed;
      for (int i = of.straight - of.place->committed; i < of.place->length; ++i) {
        tail[i] = tail[path[i]];  // path[i] >= i
      }
      inverse_[p] = 1.0f / k_.softmax(score, of.begin, of.end, model_.shape.attention_scale);
      std::fill(score + group.first, score + of.begin, 0.0f);
      std::fill(score + of.end, score + group.last, 0.0f);
    }
  }

  // Whole steps of positions, of which all pairs see those in the middle.
  void weigh(const Group &group, int from, int to) {
    const int begin = std::min(std::max(from, round_up(group.from, step_)), std::max(from, to));
    const int end = std::max(begin, std::min(to, round_down(group.to, step_)));
    if (from < begin) edge(group, from, begin);
    if (begin < end) add(values_ + int64_t(begin) * dim_, begin, end, group.at, group.count);
    if (end < to) edge(group, end, to);
  }

  void add(const uint16_t *values, int from, int to, int at, int count) {
    k_.attention.weigh(values, to - from, room_ + at * apart_ + from, apart_, count, dim_,
                       sums_ + at * dim_);
  }

  void edge(const Group &group, int from, int to) {
    bool shared = to <= row_.slots && row_.finite.load(std::memory_order_relaxed);
    for (int p = group.at; shared && p < group.at + group.count; ++p) {
      shared = std::min(to, of_[p].end) <= std::max(from, of_[p].straight);
    }
    if (shared) return add(values_ + int64_t(from) * dim_, from, to, group.at, group.count);
    for (int at = from; at < to; at += kMostStep) {
      for (int p = group.at, n; p < group.at + group.count; p += n) {
        for (n = 1; p + n < group.at + group.count && of_[p + n].place == of_[p].place;) ++n;
        own(of_[p], at, std::min(at + kMostStep, to), p, n);
      }
    }
  }

  // Of the pairs of one row: the values that it sees, zeros around them.
  void own(const Pair &of, int from, int to, int at, int count) {
    const int begin = std::max(from, of.begin), end = std::min(to, of.end);
    if (begin >= end) return;
    alignas(64) uint32_t copied[kMostStep / 2 * kMostHeadDim];
    std::fill_n(copied, (to - from) / 2 * dim_, 0u);
    const uint32_t *values = reinterpret_cast<const uint32_t *>(values_);
    const int *path = pasts_.paths.data() + of.place->path;
    for (int position = begin; position < end; ++position) {
      const int behind = position - of.place->committed;
      const int slot = behind < 0 ? position : of.place->committed + path[behind];
      const uint32_t *value = values + int64_t(slot / 2) * dim_;
      uint32_t *copy = copied + (position - from) / 2 * dim_;
      const int down = slot % 2 * 16, up = position % 2 * 16;
      for (int i = 0; i < dim_; ++i) copy[i] |= (value[i] >> down & 0xffffu) << up;
    }
    add(reinterpret_cast<const uint16_t *>(copied), from, to, at, count);
  }

  const Pasts &pasts_;
  dp_model &model_;
  const Kernels &k_;
  const int step_, dim_;
  const dp_row &row_;
  const uint16_t *keys_, *values_;
  const int64_t apart_;
  float *room_;  // (pairs, apart_)
  const int kv_head_, window_, slots_;
  int count_ = 0, limit_ = 0;
  Group groups_[kTogether];
  Pair of_[kTogether];
  float inverse_[kTogether];
  alignas(64) uint16_t q_[kTogether * kMostHeadDim];  // (pairs, dim_)
  alignas(64) float sums_[kTogether * kMostHeadDim];  // (pairs, dim_)
};

}  // namespace

void attend(const Pasts &pasts, int thread, int number, const dp_segment &segment, int kv_head,
            int first, int count) {
  const int group = pasts.model.shape.heads / pasts.model.shape.kv_heads;
  Together together(pasts, thread, number, segment, kv_head);
  for (int pair = 0; pair < count * group; pair += kTogether) {
    together.attend(first, pair, std::min(kTogether, count * group - pair));
  }
}
