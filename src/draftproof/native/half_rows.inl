// Attention of a few rows in half precision, for `dp_half_rows`. Included behind halves.inl and loops.inl.
//
// A row's scores, weights and sums go by the positions that it sees, each sum in one order: neither
// what stands beside it nor the slot of a drafted token changes a bit of it.
#include <algorithm>
#include <vector>

namespace {

constexpr int64_t kScores = 1 << 16;  // that are worked on at once: they stay near meanwhile

inline int64_t whole(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// sums (kSome, kColumns registers) += the values of n slots, each times the rows' weights of it.
template <class In, int kSome, int kColumns>
void weigh_some(const uint16_t *values, int64_t slot, int64_t n, const float *weights, int64_t apart,
                float *sums, int64_t sums_row) {
  typename In::Register sum[kSome][kColumns];
#pragma GCC unroll 6
  for (int r = 0; r < kSome; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) sum[r][c] = In::floats_at(sums + r * sums_row + c * In::kFloats);
  }
  for (int64_t j = 0; j < n; ++j, values += slot) {
    typename In::Register value[kColumns];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) value[c] = In::widened(values + c * In::kFloats);
#pragma GCC unroll 6
    for (int r = 0; r < kSome; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) In::weigh(sum[r][c], value[c], weights[r * apart + j]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kSome; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) In::keep_at(sums + r * sums_row + c * In::kFloats, sum[r][c]);
  }
}

// Some rows of one text and key head, of all its heads: row i is head `i / text.rows` of them.
template <class In>
class HalfRows {
 public:
  HalfRows(const dp_half_attention &of, const dp_half_text &text, int64_t key_head)
      : of_(of),
        text_(text),
        first_head_(key_head * (of.heads / of.key_heads)),
        keys_(reinterpret_cast<const uint16_t *>(text.keys) + key_head * text.head),
        values_(reinterpret_cast<const uint16_t *>(text.values) + key_head * text.head),
        x_row_(whole(of.size, kHalvesPadding)),
        apart_(whole(text.before + longest(text), kLanes)) {}

  void run() {
    const int64_t all = of_.heads / of_.key_heads * text_.rows;
    const int64_t most = std::max(kScores / apart_ / In::kRows, int64_t(1)) * In::kRows;
    const int64_t together = std::min(most, all);
    x_.resize(together * x_row_);
    scores_.resize(together * apart_);
    sums_.resize(together * of_.size);
    for (int64_t first = 0; first < all; first += together) some(first, std::min(together, all - first));
  }

 private:
  struct Path {  // of a row: the slots that it sees behind those that all see, itself the last
    const int32_t *slots;
    int64_t count;
    int64_t next;  // without `slots`: they follow one another from here on
    int64_t operator[](int64_t i) const { return slots ? slots[i] : next + i; }
  };

  static int64_t longest(const dp_half_text &text) {
    const int32_t *ends = reinterpret_cast<const int32_t *>(text.ends);
    if (!ends) return text.rows;
    int64_t most = ends[0];
    for (int64_t r = 1; r < text.rows; ++r) most = std::max(most, int64_t(ends[r] - ends[r - 1]));
    return most;
  }

  Path path(int64_t row) const {
    const int32_t *ends = reinterpret_cast<const int32_t *>(text_.ends);
    if (!ends) return {nullptr, row + 1, text_.before};
    const int32_t begin = row ? ends[row - 1] : 0;
    return {reinterpret_cast<const int32_t *>(text_.paths) + begin, ends[row] - begin, 0};
  }

  void some(int64_t first, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t head = first_head_ + (first + i) / text_.rows, row = (first + i) % text_.rows;
      const uint16_t *q = reinterpret_cast<const uint16_t *>(of_.q) + head * of_.q_head;
      read_halves<In>(q + (text_.begin + row) * of_.q_row, int(of_.size), x_.data() + i * x_row_);
    }
    score(first, rows);
    std::fill_n(sums_.data(), rows * of_.size, 0.0f);
    std::vector<float> inverse(rows);
    int64_t start = text_.before;  // the first slot that any row sees
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t n = text_.before + path((first + i) % text_.rows).count;
      const int64_t own = of_.window ? std::max(n - of_.window, int64_t(0)) : 0;
      float *scores = scores_.data() + i * apart_;
      inverse[i] = 1.0f / weights(scores, own, n);
      std::fill_n(scores, own, 0.0f);
      start = std::min(start, own);
    }
    weigh(start, first, rows);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t head = first_head_ + (first + i) / text_.rows, row = (first + i) % text_.rows;
      float *sums = sums_.data() + i * of_.size;
      for (int64_t d = 0; d < of_.size; ++d) sums[d] *= inverse[i];
      uint16_t *out = reinterpret_cast<uint16_t *>(of_.out);
      In::round(sums, int(of_.size), out + ((text_.begin + row) * of_.heads + head) * of_.size);
    }
  }

  // By position: those that all rows see, and behind them each row's own path.
  void score(int64_t first, int64_t rows) {
    const int64_t slot = text_.slot;
    evenly<In::kRows>(rows, [&](int64_t row, auto count) {
      constexpr int kSome = decltype(count)::value;
      const auto *x = x_.data() + row * x_row_;
      float *scores = scores_.data() + row * apart_;
      const auto add = [&](int64_t j, auto outs) {
        constexpr int kOuts = decltype(outs)::value;
        float found[kOuts][In::kRows];
        multiply_some<In, kSome, kOuts>(keys_ + j * slot, slot, x, x_row_, of_.size, found);
        for (int o = 0; o < kOuts; ++o) {
          for (int r = 0; r < kSome; ++r) scores[r * apart_ + j + o] = found[o][r];
        }
      };
      int64_t j = 0;
      for (; j + In::kOutputs <= text_.before; j += In::kOutputs) {
        add(j, std::integral_constant<int, In::kOutputs>{});
      }
      for (; j < text_.before; ++j) add(j, std::integral_constant<int, 1>{});
    });
    for (int64_t i = 0; i < rows; ++i) {
      const Path path = this->path((first + i) % text_.rows);
      float found[1][In::kRows], *scores = scores_.data() + i * apart_ + text_.before;
      for (int64_t k = 0; k < path.count; ++k) {
        multiply_some<In, 1, 1>(keys_ + path[k] * slot, slot, x_.data() + i * x_row_, x_row_, of_.size,
                                found);
        scores[k] = found[0][0];
      }
    }
  }

  // The scores from `start` to `end` become weights; returns their sum.
  float weights(float *scores, int64_t start, int64_t end) const {
    const float scale = float(of_.scale), cap = float(of_.cap);
    if (cap <= 0.0f) return softmax(scores, start, end, scale);
    for (int64_t j = start; j < end; ++j) {  // cap * tanh(score / cap)
      scores[j] = cap - 2.0f * cap / (exp_of(2.0f * (scores[j] * scale / cap)) + 1.0f);
    }
    return softmax(scores, start, end, 1.0f);
  }

  void weigh(int64_t start, int64_t first, int64_t rows) {
    const int64_t size = of_.size, slot = text_.slot;
    columns([&](int64_t d, auto count) {
      constexpr int kColumns = decltype(count)::value;
      const uint16_t *values = values_ + d;
      evenly<In::kWeighed>(rows, [&](int64_t row, auto some) {
        weigh_some<In, decltype(some)::value, kColumns>(
            values + start * slot, slot, text_.before - start, scores_.data() + row * apart_ + start, apart_,
            sums_.data() + row * size + d, size);
      });
      for (int64_t i = 0; i < rows; ++i) {
        const Path path = this->path((first + i) % text_.rows);
        const float *weights = scores_.data() + i * apart_ + text_.before;
        for (int64_t k = 0; k < path.count; ++k) {
          weigh_some<In, 1, kColumns>(values + path[k] * slot, slot, 1, weights + k, apart_,
                                      sums_.data() + i * size + d, size);
        }
      }
    });
  }

  // Calls work with the columns of a head, as many registers at a time as can be.
  template <class Work>
  void columns(const Work &work) const {
    constexpr int kWide = In::kColumns * In::kFloats;
    int64_t d = 0;
    for (; d + kWide <= of_.size; d += kWide) work(d, std::integral_constant<int, In::kColumns>{});
    for (; d < of_.size; d += In::kFloats) work(d, std::integral_constant<int, 1>{});
  }

  const dp_half_attention &of_;
  const dp_half_text &text_;
  const int64_t first_head_;
  const uint16_t *keys_, *values_;
  const int64_t x_row_, apart_;  // numbers of a row of queries, and of scores
  std::vector<typename In::Input> x_;
  std::vector<float> scores_, sums_;
};

template <class In>
void half_rows(const dp_half_attention &of, const dp_half_text &text, int64_t key_head) {
  const Denormals denormals;
  HalfRows<In>(of, text, key_head).run();
}

template <class In>
constexpr Halves kHalves{read_halves<In>, sizeof(typename In::Input), multiply_halves<In>, half_rows<In>};

}  // namespace
