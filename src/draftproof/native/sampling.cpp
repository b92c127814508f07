// The picks of coupled sampling: the same as chain.py's, of which this is the fast twin.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "draftproof.h"
#include "kernels.h"

namespace {

void words_of(uint64_t seed, uint32_t stream, uint32_t position, uint32_t block, uint32_t *words) {
  uint32_t c0 = block, c1 = position, c2 = stream, c3 = 0;
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(c0) * 0xD2511F53u, p1 = uint64_t(c2) * 0xCD9E8D57u;
    c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
    c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c1 = uint32_t(p1);
    c3 = uint32_t(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

// -log1p(-u), operation by operation as noise.py has it: the same bits.
double exponential(uint32_t word) {
  int exponent;
  double m = std::frexp((4294967295.5 - double(word)) * 0x1p-32, &exponent), e = exponent;
  if (m < 0.7071067811865476) {
    m = m + m;
    e = e - 1.0;
  }
  const double f = m - 1.0, s = f / (f + 2.0), z = s * s;
  double series = z * (1.0 / 19.0);
  for (int k = 17; k > 1; k -= 2) {
    series += 1.0 / k;
    series *= z;
  }
  series += 1.0;
  return -(e * 0.6931471805599453 + (s + s) * series);
}

// E of one token.
double exponential(uint64_t seed, uint32_t stream, uint32_t position, uint32_t id) {
  uint32_t words[4];
  words_of(seed, stream, position, id >> 2, words);
  return exponential(words[id & 3]);
}

struct Scored {
  double score;
  int32_t id;
  bool operator<(const Scored &other) const {  // better comes first
    return score != other.score ? score > other.score : id < other.id;
  }
};

constexpr int kBlock = 64;

// Keeps the k best of what is offered, best first.
void insert(std::vector<Scored> &best, const Scored &fresh, int k) {
  if (int(best.size()) == k && !(fresh < best.back())) return;
  best.insert(std::upper_bound(best.begin(), best.end(), fresh), fresh);
  if (int(best.size()) > k) best.pop_back();
}

// The k best of x (n), best first, without -inf.
std::vector<Scored> best_of(const Kernels &kernels, const float *x, int n, int k) {
  std::vector<Scored> best;
  for (int at = 0; at < n; at += kBlock) {
    const int count = std::min(kBlock, n - at);
    const bool full = int(best.size()) == k;
    if (full && !(kernels.max(x + at, count) > best.back().score)) continue;
    for (int i = at; i < at + count; ++i) {
      if (x[i] > -INFINITY) insert(best, {x[i], i}, k);
    }
  }
  return best;
}

// Of exp((x - top) / temperature), within 1e-5 relative.
double mass_of(const Kernels &kernels, const float *x, int n, float top, double temperature) {
  constexpr int kPiece = 1024;  // few enough for sums in single precision
  double total = 0;
  for (int at = 0; at < n; at += kPiece) {
    total += kernels.mass(x + at, top, float(temperature), std::min(kPiece, n - at));
  }
  return total;
}

// What temperature, min_p, top_k and top_p leave of a row, best first: chain.survivors.
class Survivors {
 public:
  Survivors(const Kernels &kernels, const float *logits, int n, const dp_cut &cut)
      : kernels_(kernels), logits_(logits), n_(n), cut_(cut) {}

  // 0; -1 where NaN or +inf is in the row, or nothing is finite; -2 where rounding could tell
  // another border than sums in another order, or the order would be dear to find here.
  int find() {
    int32_t first = -1, bad = 0;
    kernels_.argmax(logits_, n_, 0, &top_, &first, &bad);
    if (bad || first < 0) return -1;
    const bool some = cut_.top_k > 0 && cut_.top_k < n_;
    if (some && cut_.top_k > kMostRanked) return -2;
    if (some) {
      for (const Scored &each : best_of(kernels_, logits_, n_, cut_.top_k)) add(each.id);
      while (!kept.empty() && !(kept.back().score >= cut_.floor)) kept.pop_back();
    } else if (cut_.floor > -INFINITY) {
      gather(cut_.floor);
    } else {
      return cut_whole();
    }
    if (cut_.top_p == 1) return 0;
    return shorten(mass(), kExact);
  }

  double mass() const {
    double sum = 0;
    for (const Scored &each : kept) sum += std::exp(each.score);
    return sum;
  }

  std::vector<Scored> kept;  // scores: logits over the temperature, relative to the largest

 private:
  static constexpr int kMostRanked = 512;
  static constexpr double kExact = 1e-10, kSingle = 1e-5;  // relative errors of a sum, at most

  double scale(int32_t id) const { return (double(logits_[id]) - double(top_)) / cut_.temperature; }

  void add(int32_t id) { kept.push_back({scale(id), id}); }

  // All with that score at least, best first.
  void gather(double floor) {
    kept.clear();
    const double least = double(top_) + floor * cut_.temperature;
    const float border = float(least - 0x1p-20 * (std::fabs(least) + 1));
    for (int at = 0; at < n_; at += kBlock) {
      const int count = std::min(kBlock, n_ - at);
      if (kernels_.max(logits_ + at, count) < border) continue;
      for (int i = at; i < at + count; ++i) {
        if (logits_[i] >= border && logits_[i] > -INFINITY && scale(i) >= floor) add(i);
      }
    }
    // By logits: scaled ones may be equal where those are not.
    std::sort(kept.begin(), kept.end(), [this](const Scored &a, const Scored &b) {
      return logits_[a.id] != logits_[b.id] ? logits_[a.id] > logits_[b.id] : a.id < b.id;
    });
  }

  // Only top_p: the best are gathered until they hold enough.
  int cut_whole() {
    const double total = mass_of(kernels_, logits_, n_, top_, cut_.temperature);
    for (double floor = -4; floor > -64; floor *= 2) {
      gather(floor);
      if (mass() <= cut_.top_p * total * (1 + kSingle)) continue;
      const int code = shorten(total, kSingle);
      return code ? shorten(whole_mass(), kExact) : 0;
    }
    return -2;
  }

  double whole_mass() const {
    double sum = 0;
    for (int i = 0; i < n_; ++i) sum += std::exp(scale(i));
    return sum;
  }

  // The shortest beginning that holds top_p of a total that is known so well.
  int shorten(double total, double error) {
    const double wanted = cut_.top_p * total;
    double sum = 0;
    for (size_t i = 0; i < kept.size(); ++i) {
      const double before = sum;
      sum += std::exp(kept[i].score);
      if (sum < wanted * (1 - error)) continue;
      if (sum < wanted * (1 + error) || before > wanted * (1 - error)) return -2;
      kept.resize(i + 1);
      return 0;
    }
    return -2;
  }

  const Kernels &kernels_;
  const float *logits_;
  const int n_;
  const dp_cut cut_;
  float top_ = -INFINITY;
};

struct Where {
  uint64_t seed;
  uint32_t stream, position;
};

// The race of a row (n), whose largest logit is `top`. Noise is made only where it can still
// matter, and is exact only where a bound of the score says that it may win: chain._winners has the
// reasons, and the slack, which covers what rounding takes of these bounds too.
class Race {
 public:
  Race(const Kernels &kernels, const float *logits, int n, float top, double temperature,
       const Where &where)
      : kernels_(kernels), logits_(logits), n_(n), top_(top), temperature_(temperature),
        where_(where) {}

  // The k best; `first` is the id of the largest logit, which gives others something to beat.
  std::vector<Scored> best(int32_t first, int k) {
    k_ = k;
    take(first);
    const float scale = float(1 / temperature_);
    float bound[kBlock];
    for (int at = 0; at < n_; at += kBlock) {
      const int count = std::min(kBlock, n_ - at);
      if ((kernels_.max(logits_ + at, count) - top_) * scale + kMost < border_) continue;
      const float high = kernels_.bounds(where_.seed, where_.stream, where_.position, at / 4,
                                         logits_ + at, count, top_, scale, bound);
      if (high < border_) continue;
      for (int i = 0; i < count; ++i) {
        if (bound[i] >= border_ && at + i != first) take(at + i);
      }
    }
    return std::move(found_);
  }

 private:
  static constexpr float kMost = 24;  // of -log(E), and a little

  void take(int32_t id) {
    if (logits_[id] == -INFINITY) return;
    const double scaled = (double(logits_[id]) - double(top_)) / temperature_;
    const double e = exponential(where_.seed, where_.stream, where_.position, uint32_t(id));
    insert(found_, {scaled - std::log(e), id}, k_);
    if (int(found_.size()) < k_) return;
    const double least = found_.back().score;
    border_ = float(least - 0x1p-18 * (std::fabs(least) + 64.0));
  }

  const Kernels &kernels_;
  const float *logits_;
  const int n_;
  const float top_;
  const double temperature_;
  const Where where_;
  int k_ = 1;
  float border_ = -INFINITY;  // of a bound that may win
  std::vector<Scored> found_;
};

}  // namespace

DP_API void dp_gumbel(uint64_t seed, uint32_t stream, uint32_t position, int32_t blocks,
                      float *out) {
  pick_kernels("")->gumbel(seed, stream, position, 0, blocks, out);
}

DP_API void dp_exponential(uint64_t seed, uint32_t stream, uint32_t position, const int64_t *ids,
                           int32_t count, double *out) {
  for (int i = 0; i < count; ++i) out[i] = exponential(seed, stream, position, uint32_t(ids[i]));
}

DP_API int32_t dp_race(const float *logits, int32_t n, double temperature, uint64_t seed,
                       uint32_t stream, uint32_t position, int32_t k, int32_t *ids, double *scaled,
                       double *log_mass) try {
  if (n < 1 || k < 1) return -1;
  const Kernels &kernels = *pick_kernels("");
  float top = -INFINITY;
  int32_t first = -1, bad = 0;
  kernels.argmax(logits, n, 0, &top, &first, &bad);
  if (bad || first < 0) return -1;
  const bool races = temperature > 0;
  const double divisor = races ? temperature : 1.0;
  if (log_mass) *log_mass = std::log(mass_of(kernels, logits, n, top, divisor));
  const std::vector<Scored> best =
      races ? Race(kernels, logits, n, top, temperature, {seed, stream, position}).best(first, k)
            : best_of(kernels, logits, n, k);
  for (const Scored &each : best) {
    *ids++ = each.id;
    *scaled++ = (double(logits[each.id]) - double(top)) / divisor;
  }
  return int32_t(best.size());
} catch (const std::bad_alloc &) {
  return -1;
}

DP_API int32_t dp_survivors(const float *logits, int32_t n, const dp_cut *cut, int64_t *ids,
                            double *scaled) try {
  if (n < 1) return -1;
  Survivors survivors(*pick_kernels(""), logits, n, *cut);
  if (const int code = survivors.find()) return code;
  std::sort(survivors.kept.begin(), survivors.kept.end(),
            [](const Scored &a, const Scored &b) { return a.id < b.id; });
  for (const Scored &each : survivors.kept) {
    *ids++ = each.id;
    *scaled++ = each.score;
  }
  return int32_t(survivors.kept.size());
} catch (const std::bad_alloc &) {
  return -1;
}

DP_API int32_t dp_race_cut(const float *logits, int32_t n, const dp_cut *cut, uint64_t seed,
                           uint32_t stream, uint32_t position, int32_t k, int32_t *ids,
                           double *scaled, double *log_mass) try {
  if (n < 1 || k < 1) return -1;
  Survivors survivors(*pick_kernels(""), logits, n, *cut);
  if (const int code = survivors.find()) return code;
  *log_mass = std::log(survivors.mass());
  std::vector<std::pair<Scored, double>> raced;
  raced.reserve(survivors.kept.size());
  for (const Scored &each : survivors.kept) {
    const double late = std::log(exponential(seed, stream, position, uint32_t(each.id)));
    raced.push_back({{each.score - late, each.id}, each.score});
  }
  const auto count = std::min<size_t>(raced.size(), k);
  std::partial_sort(raced.begin(), raced.begin() + count, raced.end());
  for (size_t i = 0; i < count; ++i) {
    ids[i] = raced[i].first.id;
    scaled[i] = raced[i].second;
  }
  return int32_t(count);
} catch (const std::bad_alloc &) {
  return -1;
}
