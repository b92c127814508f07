// The picks of coupled sampling: the same as sampling.py's, of which this is the fast twin.
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

}  // namespace

DP_API void dp_gumbel(uint64_t seed, uint32_t stream, uint32_t position, int32_t blocks,
                      float *out) {
  pick_kernels("")->gumbel(seed, stream, position, 0, blocks, out);
}

DP_API void dp_exponential(uint64_t seed, uint32_t stream, uint32_t position, const int64_t *ids,
                           int32_t count, double *out) {
  for (int i = 0; i < count; ++i) {
    uint32_t words[4];
    words_of(seed, stream, position, uint32_t(ids[i] >> 2), words);
    out[i] = exponential(words[ids[i] & 3]);
  }
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
  std::vector<float> bound(n);
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
    uint32_t words[4];
    words_of(seed, stream, position, uint32_t(id) >> 2, words);
    return Scored{scale(id) - std::log(exponential(words[id & 3])), id};
  };
  // As sampling._winners: whoever can still win has a bound near the k-th best exact score.
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
