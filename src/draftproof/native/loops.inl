// Loops that every instruction set shares: plain C++, vectorised by the compiler that includes it.
// The includer defines `madd(a, b, c)` for floats: fused or not, but the same everywhere; and where
// it has an instruction for it DP_OWN_TO_BF16, and `to_bf16` as it is below.
#include <cmath>
#include <cstring>
#include <limits>

#include "half.h"

namespace {

inline uint16_t round_bf16(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return uint16_t((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

// exp(x) within 2 ulp for |x| <= 87, beyond that the value there. (Cephes' polynomial.)
inline float exp_of(float x) {
  x = x < -87.0f ? -87.0f : (x > 87.0f ? 87.0f : x);
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = madd(x, 1.44269504088896341f, magic);
  const float n = shifted - magic;
  float r = madd(n, -0.693359375f, x);
  r = madd(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = madd(p, r, 1.3981999507e-3f);
  p = madd(p, r, 8.3334519073e-3f);
  p = madd(p, r, 4.1665795894e-2f);
  p = madd(p, r, 1.6666665459e-1f);
  p = madd(p, r, 5.0000001201e-1f);
  p = madd(p, r * r, r) + 1.0f;
  const uint32_t exponent = (bits_of(shifted) - bits_of(magic)) << 23;
  return float_of(bits_of(p) + exponent);
}

inline float sum_of_lanes(const float *lane) {
  float half[8], quarter[4];
  for (int i = 0; i < 8; ++i) half[i] = lane[i] + lane[i + 8];
  for (int i = 0; i < 4; ++i) quarter[i] = half[i] + half[i + 4];
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

// The largest of n >= 1 floats; NaN never wins. By lanes, as vectors: a loop would not become one.
inline float max_of(const float *x, int64_t n) {
  typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
  Lanes lane, some;
  for (int l = 0; l < kLanes; ++l) lane[l] = x[0];
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    std::memcpy(&some, x + i, sizeof(some));
    lane = some > lane ? some : lane;
  }
  float top = lane[0];
  for (int l = 1; l < kLanes; ++l) top = lane[l] > top ? lane[l] : top;
  for (; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

void norm(const float *x, const float *weight, float eps, int n, float *out) {
  float lane[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lane[l] = madd(x[i + l], x[i + l], lane[l]);
  }
  for (int l = 0; i + l < n; ++l) lane[l] = madd(x[i + l], x[i + l], lane[l]);
  const float scale = 1.0f / std::sqrt(sum_of_lanes(lane) / float(n) + eps);
  for (int j = 0; j < n; ++j) out[j] = x[j] * scale * weight[j];
}

#if !defined(DP_OWN_TO_BF16)
void to_bf16(const float *__restrict x, int n, uint16_t *__restrict out) {
  for (int i = 0; i < n; ++i) out[i] = round_bf16(x[i]);
}
#endif

void prepare_bf16(const float *x, int n, int inputs, char *out) {
  uint16_t *to = reinterpret_cast<uint16_t *>(out);
  to_bf16(x, n, to);
  for (int i = n; i < inputs; ++i) to[i] = 0;
}

void prepare_group(const float *__restrict x, Group *__restrict out) {
  float lane[kLanes], wrong[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const float a = std::fabs(x[l]), b = std::fabs(x[l + kLanes]);
    lane[l] = a > b ? a : b;
    wrong[l] = (x[l] + x[l + kLanes]) * 0.0f;  // 0, or NaN
  }
  float top = 0.0f;
  for (float most : lane) top = most > top ? most : top;
  const bool some = top > 1e-30f;  // less is nothing: its inverse would be infinite
  out->scale = (some ? top / 127.0f : 0.0f) + sum_of_lanes(wrong);
  const float inverse = some ? 127.0f / top : 0.0f;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  int32_t integers[kGroup], sums[2] = {};  // one loop would not become instructions of many lanes
  for (int i = 0; i < kGroup; ++i) {
    integers[i] = int32_t(bits_of(x[i] * inverse + magic) - bits_of(magic));
  }
  for (int i = 0; i < kGroup / 2; ++i) sums[0] += int8_t(integers[i]);
  for (int i = kGroup / 2; i < kGroup; ++i) sums[1] += int8_t(integers[i]);
  for (int i = 0; i < kGroup; ++i) out->x[i] = int8_t(integers[i]);
  out->total = out->scale * float(sums[0] + sums[1]);
  out->shift[0] = -128 * (sums[0] + sums[1]);
  out->shift[1] = -128 * sums[0];
}

void prepare_groups(const float *x, int n, int inputs, char *out) {
  Group *to = reinterpret_cast<Group *>(out);
  for (int first = 0; first < inputs; first += kGroup, ++to) {
    if (first + kGroup <= n) {
      prepare_group(x + first, to);
      continue;
    }
    float padded[kGroup] = {};
    if (first < n) std::memcpy(padded, x + first, (n - first) * sizeof(float));
    prepare_group(padded, to);
  }
}

void rotate(float *head, const float *__restrict cosine, const float *__restrict sine, int half) {
  float *__restrict first = head, *__restrict second = head + half;
  for (int i = 0; i < half; ++i) {
    const float a = first[i], b = second[i];
    first[i] = a * cosine[i] - b * sine[i];
    second[i] = b * cosine[i] + a * sine[i];
  }
}

void swiglu(const float *__restrict tile, float *__restrict out) {
  for (int i = 0; i < kPanel / 2; ++i) {
    const float gate = tile[i];
    out[i] = gate / (1.0f + exp_of(-gate)) * tile[i + kPanel / 2];
  }
}

// Lanes go by absolute place, so that a sum does not depend on where memory or a block begins.
float softmax(float *s, int64_t start, int64_t end, float scale) {
  const float top = max_of(s + start, end - start);
  float lane[kLanes] = {};
  int64_t j = start;
  for (; j < end && j % kLanes; ++j) {
    s[j] = exp_of((s[j] - top) * scale);
    lane[j % kLanes] += s[j];
  }
  for (; j + kLanes <= end; j += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      s[j + l] = exp_of((s[j + l] - top) * scale);
      lane[l] += s[j + l];
    }
  }
  for (; j < end; ++j) {
    s[j] = exp_of((s[j] - top) * scale);
    lane[j % kLanes] += s[j];
  }
  return sum_of_lanes(lane);
}

// Most calls find nothing better than before, so that is asked first, of all values at once.
void argmax(const float *x, int n, int32_t id, float *best, int32_t *best_id, int32_t *bad) {
  const float before = *best;
  int32_t better = 0, wrong = 0;
  for (int i = 0; i < n; ++i) {
    better |= x[i] > before;
    wrong |= !(x[i] < INFINITY);
  }
  *bad |= wrong;
  if (!better) return;
  const float top = max_of(x, n);
  for (int i = 0; i < n; ++i) {
    if (x[i] == top) {
      *best = top;
      *best_id = id + i;
      return;
    }
  }
}

// Within 2e-7 of log(x) or of it relative, for normal x > 0. (Cephes' polynomial.)
inline float log_of(float x) {
  const uint32_t bits = bits_of(x);
  // The exponent so that what is left lies in [sqrt(1/2), sqrt(2)).
  const int32_t exponent = int32_t(bits - 0x3f3504f3u) >> 23;
  const float f = float_of(bits - (uint32_t(exponent) << 23)) - 1.0f;
  float p = 7.0376836292e-2f;
  p = madd(p, f, -1.1514610310e-1f);
  p = madd(p, f, 1.1676998740e-1f);
  p = madd(p, f, -1.2420140846e-1f);
  p = madd(p, f, 1.4249322787e-1f);
  p = madd(p, f, -1.6668057665e-1f);
  p = madd(p, f, 2.0000714765e-1f);
  p = madd(p, f, -2.4999993993e-1f);
  p = madd(p, f, 3.3333331174e-1f);
  const float z = f * f, e = float(exponent);
  float y = f * z * p;
  y = madd(e, -2.12194440e-4f, y);
  y = madd(z, -0.5f, y);
  return madd(e, 0.693359375f, f + y);
}

// Philox4x32-10 of kLanes blocks: the four words of each, one block after another.
inline void words_of(uint64_t seed, uint32_t stream, uint32_t position, int block, uint32_t *words) {
  uint64_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];  // of 32 bits: lanes of a product
  for (int l = 0; l < kLanes; ++l) {
    c0[l] = uint32_t(block + l);
    c1[l] = position;
    c2[l] = stream;
    c3[l] = 0;
  }
  const uint64_t low = 0xffffffffu;
  uint64_t k0 = seed & low, k1 = seed >> 32;
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 1
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t p0 = c0[l] * 0xD2511F53u, p1 = c2[l] * 0xCD9E8D57u;
      c0[l] = (p1 >> 32) ^ c1[l] ^ k0;
      c2[l] = (p0 >> 32) ^ c3[l] ^ k1;
      c1[l] = p1 & low;
      c3[l] = p0 & low;
    }
    k0 = (k0 + 0x9E3779B9u) & low;
    k1 = (k1 + 0xBB67AE85u) & low;
  }
  for (int l = 0; l < kLanes; ++l) {
    words[4 * l] = uint32_t(c0[l]);
    words[4 * l + 1] = uint32_t(c1[l]);
    words[4 * l + 2] = uint32_t(c2[l]);
    words[4 * l + 3] = uint32_t(c3[l]);
  }
}

void gumbel(uint64_t seed, uint32_t stream, uint32_t position, int block, int blocks, float *out) {
  for (int first = 0; first < blocks; first += kLanes) {
    uint32_t words[4 * kLanes];
    float g[4 * kLanes];
    words_of(seed, stream, position, block + first, words);
    for (int i = 0; i < 4 * kLanes; ++i) {
      g[i] = -log_of((float(words[i]) + 0.5f) * 2.3283064365386963e-10f);
    }
    const int count = blocks - first < kLanes ? blocks - first : kLanes;
    std::memcpy(out + 4 * first, g, count * 4 * sizeof(float));
  }
}

// -log2(u) of 2^32 u = 2^e (1 + f) is at most 32 - e - f, as log2(1 + f) >= f; and e + f is what
// the bits of a float say, read as an integer.
float bounds(uint64_t seed, uint32_t stream, uint32_t position, int block, const float *x, int n,
             float top, float scale, float *out) {
  uint32_t words[4 * kLanes];
  words_of(seed, stream, position, block, words);
  for (int i = 0; i < n; ++i) {
    const int32_t late = 0x4f800000 - int32_t(bits_of(float(words[i]) + 0.5f));
    out[i] = (x[i] - top) * scale + float(late) * 8.2629582881927490e-8f;  // log(2) / 2^23
  }
  return max_of(out, n);
}

float mass(const float *x, float top, float temperature, int n) {
  float lane[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lane[l] += exp_of((x[i + l] - top) / temperature);
  }
  for (int l = 0; i + l < n; ++l) lane[l] += exp_of((x[i + l] - top) / temperature);
  return sum_of_lanes(lane);
}

}  // namespace

#include "few_rows.inl"
