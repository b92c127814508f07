// What temperature, min_p, top_k and top_p leave of a row, and picks among that: the same as chain.py's,
// of which this is the fast twin.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "draftproof.h"
#include "races.h"

namespace {

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

}  // namespace

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
    const double late = std::log(exponential({seed, stream, position}, uint32_t(each.id)));
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
