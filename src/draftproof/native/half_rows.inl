// Attention of a few rows in half precision, for `dp_half_rows`. Included behind halves.inl and loops.inl.
//
// A row's scores, weights and sums go by the positions that it sees, each sum in one order: neither
// what stands beside it nor the slot of a drafted token changes a bit of it.
#include <cstdlib>
#include <new>

namespace {

constexpr int64_t kScores = 1 << 16;  // that are worked on at once: they stay near meanwhile

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

// Room of a thread. Not a container of the library: its functions would be compiled for this set of
// instructions, and could become those of the whole program.
template <class T>
class Room {
 public:
  explicit Room(int64_t count) : at(static_cast<T *>(std::malloc(count * sizeof(T)))) {
    if (!at) throw std::bad_alloc();
  }
  ~Room() { std::free(at); }
  Room(const Room &) = delete;
  Room &operator=(const Room &) = delete;
  T *const at;
};

inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t whole(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// Of one text and key head some of the rows of all its heads: row i is head `i / text.rows` of them.
template <class In>
class HalfRows {
 public:
  HalfRows(const dp_half_attention &of, const dp_half_text &text, int64_t key_head, int64_t rows)
      : of_(of),
        text_(text),
        first_head_(key_head * (of.heads / of.key_heads)),
        keys_(reinterpret_cast<const uint16_t *>(text.keys) + key_head * text.head),
        values_(reinterpret_cast<const uint16_t *>(text.values) + key_head * text.head),
        x_row_(whole(of.size, kHalvesPadding)),
        apart_(whole(text.before + longest(text), kLanes)),
        together_(smaller(larger(kScores / apart_ / In::kRows, 1) * In::kRows, rows)),
        x_(together_ * x_row_),
        scores_(together_ * apart_),
        sums_(together_ * of.size) {}

  void run(int64_t begin, int64_t end) {
    for (first_ = begin; first_ < end; first_ += rows_) {
      rows_ = smaller(together_, end - first_);
      attend();
    }
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
    for (int64_t r = 1; r < text.rows; ++r) most = larger(most, ends[r] - ends[r - 1]);
    return most;
  }

  // Of those that are worked on, row i: its head, its place in the text, what it sees.
  int64_t head(int64_t i) const { return first_head_ + (first_ + i) / text_.rows; }
  int64_t row(int64_t i) const { return (first_ + i) % text_.rows; }

  Path path(int64_t i) const {
    const int32_t *ends = reinterpret_cast<const int32_t *>(text_.ends);
    const int64_t r = row(i);
    if (!ends) return {nullptr, r + 1, text_.before};
    const int32_t begin = r ? ends[r - 1] : 0;
    return {reinterpret_cast<const int32_t *>(text_.paths) + begin, ends[r] - begin, 0};
  }

  // The first position that it sees.
  int64_t start(int64_t i) const {
    return of_.window ? larger(text_.before + path(i).count - of_.window, 0) : 0;
  }

  void attend() {
    for (int64_t i = 0; i < rows_; ++i) {
      const uint16_t *q = reinterpret_cast<const uint16_t *>(of_.q) + head(i) * of_.q_head;
      read_halves<In>(q + (text_.begin + row(i)) * of_.q_row, int(of_.size), x_.at + i * x_row_);
    }
    score();
    Room<float> inverse(rows_);
    for (int64_t i = 0; i < rows_; ++i) {
      inverse.at[i] = 1.0f / to_weights(scores_.at + i * apart_, start(i), text_.before + path(i).count);
    }
    for (int64_t d = 0; d < rows_ * of_.size; ++d) sums_.at[d] = 0.0f;
    weigh();
    for (int64_t i = 0; i < rows_; ++i) {
      float *sums = sums_.at + i * of_.size;
      for (int64_t d = 0; d < of_.size; ++d) sums[d] *= inverse.at[i];
      uint16_t *out = reinterpret_cast<uint16_t *>(of_.out);
      In::round(sums, int(of_.size), out + ((text_.begin + row(i)) * of_.heads + head(i)) * of_.size);
    }
  }

  // By position: those that all rows see, and behind them each row's own path.
  void score() {
    const int64_t slot = text_.slot;
    int64_t least = text_.before;
    for (int64_t i = 0; i < rows_; ++i) least = smaller(least, start(i));
    evenly<In::kRows>(rows_, [&](int64_t first, auto count) {
      constexpr int kSome = decltype(count)::value;
      const auto *x = x_.at + first * x_row_;
      float *scores = scores_.at + first * apart_;
      const auto add = [&](int64_t j, auto outs) {
        constexpr int kOuts = decltype(outs)::value;
        float found[kOuts][In::kRows];
        multiply_some<In, kSome, kOuts>(keys_ + j * slot, slot, x, x_row_, of_.size, found);
        for (int o = 0; o < kOuts; ++o) {
          for (int r = 0; r < kSome; ++r) scores[r * apart_ + j + o] = found[o][r];
        }
      };
      int64_t j = least;
      for (; j + In::kOutputs <= text_.before; j += In::kOutputs) {
        add(j, std::integral_constant<int, In::kOutputs>{});
      }
      for (; j < text_.before; ++j) add(j, std::integral_constant<int, 1>{});
    });
    for (int64_t i = 0; i < rows_; ++i) {
      const Path own = path(i);
      float found[1][In::kRows], *scores = scores_.at + i * apart_ + text_.before;
      for (int64_t k = 0; k < own.count; ++k) {
        multiply_some<In, 1, 1>(keys_ + own[k] * slot, slot, x_.at + i * x_row_, x_row_, of_.size, found);
        scores[k] = found[0][0];
      }
    }
  }

  // The scores from `begin` to `end` become weights; returns their sum.
  float to_weights(float *scores, int64_t begin, int64_t end) const {
    const float scale = float(of_.scale), cap = float(of_.cap);
    if (cap <= 0.0f) return softmax(scores, begin, end, scale);
    for (int64_t j = begin; j < end; ++j) {  // cap * tanh(score / cap)
      scores[j] = cap - 2.0f * cap / (exp_of(2.0f * (scores[j] * scale / cap)) + 1.0f);
    }
    return softmax(scores, begin, end, 1.0f);
  }

  // Values that a row does not see are not multiplied by 0 either: they may be infinite.
  void weigh() {
    const int64_t size = of_.size, slot = text_.slot, before = text_.before;
    columns([&](int64_t d, auto count) {
      constexpr int kColumns = decltype(count)::value;
      const uint16_t *values = values_ + d;
      const auto one = [&](int64_t i, int64_t at, int64_t n, int64_t position) {
        weigh_some<In, 1, kColumns>(values + at * slot, slot, n, scores_.at + i * apart_ + position, apart_,
                                    sums_.at + i * size + d, size);
      };
      evenly<In::kWeighed>(rows_, [&](int64_t first, auto some) {
        constexpr int kSome = decltype(some)::value;
        int64_t shared = 0;
        for (int64_t i = first; i < first + kSome; ++i) shared = larger(shared, smaller(start(i), before));
        for (int64_t i = first; i < first + kSome; ++i) {
          if (start(i) < shared) one(i, start(i), shared - start(i), start(i));
        }
        weigh_some<In, kSome, kColumns>(values + shared * slot, slot, before - shared,
                                        scores_.at + first * apart_ + shared, apart_,
                                        sums_.at + first * size + d, size);
      });
      for (int64_t i = 0; i < rows_; ++i) {
        const Path own = path(i);
        for (int64_t k = larger(start(i) - before, 0); k < own.count; ++k) one(i, own[k], 1, before + k);
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
  const int64_t x_row_, apart_, together_;  // numbers of a row of queries, and of scores; rows at once
  Room<typename In::Input> x_;
  Room<float> scores_, sums_;
  int64_t first_ = 0, rows_ = 0;  // that are worked on
};

template <class In>
void half_rows(const dp_half_attention &of, const dp_half_text &text, int64_t key_head, int64_t begin,
               int64_t end) {
  const KeptDenormals denormals;
  if (begin < end) HalfRows<In>(of, text, key_head, end - begin).run(begin, end);
}

template <class In>
constexpr Halves kHalves{read_halves<In>, sizeof(typename In::Input), multiply_halves<In>, half_rows<In>};

}  // namespace
