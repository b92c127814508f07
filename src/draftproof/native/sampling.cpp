// The picks of coupled sampling: the same as chain.py's, of which this is the fast twin.
#include <algorithm>
#include <cmath>
#include <cstdint>
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

// The k best of x (n), best first, without -inf.
std::vector<Scored> best_of(const Kernels &kernels, const float *x, int n, int k) {
  std::vector<Scored> best;
  for (int at = 0; at < n; at += kBlock) {
    const int count = std::min(kBlock, n - at);
    const bool full = int(best.size()) == k;
    if (full && !(kernels.max(x + at, count) > best.back().score)) continue;
    for (int i = at; i < at + count; ++i) {
      if (int(best.size()) == k && !(x[i] > best.back().score)) continue;
      if (x[i] == -INFINITY) continue;
      const Scored fresh{x[i], i};
      best.insert(std::upper_bound(best.begin(), best.end(), fresh), fresh);
      if (int(best.size()) > k) best.pop_back();
    }
  }
  return best;
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
    constexpr int kPiece = 1024;  // few enough for sums in single precision
    float room[kPiece];
    double total = 0;
    for (int at = 0; at < n_; at += kPiece) {
      total += kernels_.soften(logits_ + at, nullptr, top_, float(cut_.temperature),
                               std::min(kPiece, n_ - at), room);
    }
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

}  // namespace

DP_API void dp_gumbel(uint64_t seed, uint32_t stream, uint32_t position, int32_t blocks,
                      float *out) {
  pick_kernels("")->gumbel(seed, stream, position, 0, blocks, out);
}

DP_API void dp_exponential(uint64_t seed, uint32_t stream, uint32_t position, const int64_t *ids,
                           int32_t count, double *out) {
  for (int i = 0; i < count; ++i) out[i] = exponential(seed, stream, position, uint32_t(ids[i]));
}

DP_API int32_t dp_race(const float *logits, const float *gumbel, int32_t n, double temperature,
                       uint64_t seed, uint32_t stream, uint32_t position, int32_t k, int32_t *ids,
                       double *scaled, double *log_mass) try {
  if (n < 1 || k < 1) return -1;
  const Kernels &kernels = *pick_kernels("");
  float top = -INFINITY;
  int32_t first = -1, bad = 0;
  kernels.argmax(logits, n, 0, &top, &first, &bad);
  if (bad || first < 0) return -1;
  // Kept: room of this size would be mapped and cleared anew for every row.
  static thread_local std::vector<float> bound;
  if (bound.size() < size_t(n)) bound.resize(n);
  *log_mass = std::log(double(
      kernels.soften(logits, gumbel, top, float(gumbel ? temperature : 1.0), n, bound.data())));
  if (!gumbel) {
    const auto best = best_of(kernels, logits, n, k);
    for (size_t i = 0; i < best.size(); ++i) {
      ids[i] = best[i].id;
      scaled[i] = best[i].score - double(top);
    }
    return int32_t(best.size());
  }
  const auto scale = [&](int32_t id) { return (double(logits[id]) - double(top)) / temperature; };
  const auto exact = [&](int32_t id) {
    return Scored{scale(id) - std::log(exponential(seed, stream, position, uint32_t(id))), id};
  };
  // As chain._winners: whoever can still win has a bound near the k-th best exact score.
  auto found = best_of(kernels, bound.data(), n, k);
  for (Scored &each : found) each = exact(each.id);
  std::sort(found.begin(), found.end());
  if (int(found.size()) == k && k < n) {
    const double t = found.back().score;
    const float border = float(t - 0x1p-18 * (std::fabs(t) + 64.0));
    found.clear();
    for (int at = 0; at < n; at += kBlock) {
      const int count = std::min(kBlock, n - at);
      if (kernels.max(bound.data() + at, count) < border) continue;
      for (int i = at; i < at + count; ++i) {
        if (bound[i] >= border) found.push_back(exact(i));
      }
    }
    std::sort(found.begin(), found.end());
    found.resize(std::min<size_t>(found.size(), k));
  }
  for (size_t i = 0; i < found.size(); ++i) {
    ids[i] = found[i].id;
    scaled[i] = scale(found[i].id);
  }
  return int32_t(found.size());
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
