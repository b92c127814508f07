// The picks of coupled sampling: the same as chain.py's, of which this is the fast twin.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "draftproof.h"
#include "races.h"

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

// Keeps the k best of what is offered, best first.
void insert(std::vector<Scored> &best, const Scored &fresh, int k) {
  if (int(best.size()) == k && !(fresh < best.back())) return;
  best.insert(std::upper_bound(best.begin(), best.end(), fresh), fresh);
  if (int(best.size()) > k) best.pop_back();
}

}  // namespace

double exponential(const Where &where, uint32_t id) {
  uint32_t words[4];
  words_of(where.seed, where.stream, where.position, id >> 2, words);
  return exponential(words[id & 3]);
}

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

double mass_of(const Kernels &kernels, const float *x, int n, float top, double temperature) {
  constexpr int kPiece = 1024;  // few enough for sums in single precision
  double total = 0;
  for (int at = 0; at < n; at += kPiece) {
    total += kernels.mass(x + at, top, float(temperature), std::min(kPiece, n - at));
  }
  return total;
}

namespace {

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
    const double e = exponential(where_, uint32_t(id));
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
  for (int i = 0; i < count; ++i) out[i] = exponential({seed, stream, position}, uint32_t(ids[i]));
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
