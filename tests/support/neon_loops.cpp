// Every loop of the sets of NEON that run here, one by one, against the twin: equal bits. Products of
// bf16 by the matrix instructions against the manual's definition of these. Tiles read and write
// beside memory that is not there. Prints the sets; what is wrong, and ends with 1.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "neon_twin.h"

namespace {

int wrong = 0;

void check(bool holds, const Kernels &set, const char *what, int a, int b = 0) {
  if (holds) return;
  if (++wrong <= 20) std::printf("%s: %s %d %d\n", set.name, what, a, b);
}

bool same(const std::vector<float> &a, const std::vector<float> &b) {
  return a.size() == b.size() && !std::memcmp(a.data(), b.data(), a.size() * 4);
}

// Bytes that end where the process may not read.
struct Guarded {
  explicit Guarded(size_t count) {
    const size_t page = sysconf(_SC_PAGESIZE);
    size = (count + page - 1) / page * page;
    base = static_cast<char *>(mmap(nullptr, size + page, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base + size, page, PROT_NONE);
    data = base + size - count;
  }
  Guarded(const Guarded &) = delete;
  ~Guarded() { munmap(base, size + sysconf(_SC_PAGESIZE)); }

  size_t size;
  char *base, *data;
};

// --- BFDOT and BFMMLA: every sum is rounded to odd, denormals are zero -----------------------------

float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

float add_odd(float a, float b) {
  const double x = a, y = b, sum = x + y, part = sum - x;
  const double lost = (x - (sum - part)) + (y - part);  // exactly what the sum does not hold
  float near = float(sum);
  if (double(near) == sum && lost == 0.0) return flushed(near);
  // Towards zero, then the last bit is set.
  const bool beyond = std::fabs(double(near)) > std::fabs(sum) ||
                      (double(near) == sum && (lost > 0.0) != (sum > 0.0));
  if (beyond) near = std::nextafter(near, 0.0f);
  return flushed(float_of(bits_of(near) | 1));
}

float dot(float sum, const uint16_t *a, const uint16_t *b) {
  const float first = flushed(from_bf16(a[0]) * from_bf16(b[0]));
  const float second = flushed(from_bf16(a[1]) * from_bf16(b[1]));
  return add_odd(flushed(sum), add_odd(first, second));
}

void matrix_tile(const char *panel, const char *x, int64_t stride, int inputs, int rows, float *out) {
  const uint16_t *w = reinterpret_cast<const uint16_t *>(panel);
  for (int r = 0; r < rows; ++r) {
    const uint16_t *row = reinterpret_cast<const uint16_t *>(x + r * stride);
    for (int n = 0; n < kPanel; ++n) {
      float sum = 0.0f;
      for (int i = 0; i < inputs; i += 2) sum = dot(sum, row + i, w + i * kPanel + 2 * n);
      const uint16_t none[2] = {};  // beside the last pair of an odd number; -0 becomes 0
      if (inputs % 4) sum = dot(sum, none, none);
      out[r * kPanel + n] = sum;
    }
  }
}

void matrix_scores(const uint16_t *keys, int blocks, const uint16_t *q, int pairs, int head_dim,
                   float *out, int64_t apart) {
  for (int p = 0; p < pairs; ++p) {
    for (int slot = 0; slot < blocks * kLanes; ++slot) {
      const uint16_t *key = keys + slot / kLanes * head_dim * kLanes + slot % kLanes * 2;
      float sum = 0.0f;
      for (int i = 0; i < head_dim; i += 2) sum = dot(sum, q + p * head_dim + i, key + i * kLanes);
      out[p * apart + slot] = sum;
    }
  }
}

bool by_matrices(const Kernels &set) { return !std::strcmp(set.name, "neon-matrix"); }

// --- tiles ---------------------------------------------------------------------------------------

void fill(int format, int inputs, float scale, char *panel, Random &random) {
  const Format &of = kFormats[format];
  const auto blocks = of.source_bytes ? blocks_of(format, kPanel, inputs, random, 0.0f, 1e30f)
                                      : std::vector<uint8_t>();
  for (int n = 0; n < kPanel; ++n) {
    if (of.source_bytes) {
      const int row = inputs / of.multiple * of.source_bytes;
      of.repack(blocks.data() + n * row, inputs, n, panel);
    } else {
      of.pack(random.numbers(inputs, scale).data(), inputs, inputs, n, panel);
    }
  }
}

void tiles(const Kernels &set, int format, int inputs, float scale) {
  const Format &of = kFormats[format];
  const Tiles &tiles = set.tiles[format], &twin = kTwin.tiles[format];
  Random random{uint64_t(31 * inputs + format)};
  Guarded panel(of.panel_bytes(inputs));
  fill(format, inputs, scale, panel.data, random);
  const int64_t stride = of.row_bytes(inputs);
  std::vector<char> rows(tiles.rows * stride), again(rows);
  for (int r = 0; r < tiles.rows; ++r) {
    auto x = random.numbers(inputs, scale);
    if (r % 3 == 1) {
      for (float &each : x) each = std::copysign(scale, each);  // the largest integers of a group
    }
    x[r % inputs] *= r % 3 == 2 ? 3000.0f : 1.0f;
    tiles.prepare(x.data(), inputs - 1, inputs, rows.data() + r * stride);
    twin.prepare(x.data(), inputs - 1, inputs, again.data() + r * stride);
  }
  check(rows == again, set, "prepares a row", format, inputs);
  const bool own = format == DP_BF16 && by_matrices(set);
  std::vector<float> want(tiles.rows * kPanel);
  (own ? matrix_tile : twin.tile)(panel.data, rows.data(), stride, inputs, tiles.rows, want.data());
  for (int count = 1; count <= tiles.rows; ++count) {
    const int first = 5 * count % (tiles.rows - count + 1);
    Guarded x(count * stride), out(count * kPanel * 4);
    std::memcpy(x.data, rows.data() + first * stride, count * stride);
    std::memset(out.data, 255, count * kPanel * 4);
    tiles.tile(panel.data, x.data, stride, inputs, count, reinterpret_cast<float *>(out.data));
    const float *from = want.data() + first * kPanel;
    check(!std::memcmp(out.data, from, count * kPanel * 4), set, "a tile of format", format, inputs);
  }
}

// --- the rest ------------------------------------------------------------------------------------

void attention(const Kernels &set, int head_dim, int pairs, int blocks) {
  Random random{uint64_t(head_dim + 7 * pairs + blocks)};
  const int slots = blocks * kLanes;
  std::vector<uint16_t> keys(slots * head_dim), values(keys.size()), queries(pairs * head_dim);
  for (auto *each : {&keys, &values, &queries}) {
    to_bf16(random.numbers(each->size()).data(), int(each->size()), each->data());
  }
  const int64_t apart = slots + 5;
  std::vector<float> made(pairs * apart), want(made), sums(random.numbers(pairs * head_dim)), more(sums);
  const auto twin_scores = by_matrices(set) ? matrix_scores : kTwin.attention.scores;
  set.attention.scores(keys.data(), blocks, queries.data(), pairs, head_dim, made.data(), apart);
  twin_scores(keys.data(), blocks, queries.data(), pairs, head_dim, want.data(), apart);
  check(same(made, want), set, "scores", head_dim, pairs);
  const int n = slots - 2 * set.attention.step;
  set.attention.weigh(values.data(), n, made.data(), apart, pairs, head_dim, sums.data());
  kTwin.attention.weigh(values.data(), n, made.data(), apart, pairs, head_dim, more.data());
  check(same(sums, more), set, "weigh", head_dim, pairs);
}

void rows_of(const Kernels &set, int n) {
  Random random{uint64_t(n)};
  const auto x = random.numbers(n, 4.0f), weight = random.numbers(n), add = random.numbers(n);
  const auto twice = [&](const char *what, auto call) {
    std::vector<float> made(2 * n + kPanel), want(made);
    made[0] = call(set, made.data() + 1), want[0] = call(kTwin, want.data() + 1);
    check(same(made, want), set, what, n);
  };
  twice("norm", [&](const Kernels &k, float *out) {
    return k.norm(x.data(), weight.data(), 1e-5f, n, out), 0.0f;
  });
  twice("to_bf16", [&](const Kernels &k, float *out) {
    return k.to_bf16(x.data(), n, reinterpret_cast<uint16_t *>(out)), 0.0f;
  });
  twice("rotate", [&](const Kernels &k, float *out) {
    std::copy(x.begin(), x.end(), out);
    return k.rotate(out, weight.data(), add.data(), n / 2), 0.0f;
  });
  twice("softmax", [&](const Kernels &k, float *out) {
    std::copy(x.begin(), x.end(), out);
    return k.softmax(out, n / 5, n, 0.7f);
  });
  twice("mass", [&](const Kernels &k, float *) { return k.mass(x.data(), 3.0f, 0.8f, n); });
  twice("bounds", [&](const Kernels &k, float *out) {
    return k.bounds(0x123456789abcdef0u + n, 3, n, 5, x.data(), std::min(n, 64), 3.0f, 1.2f, out);
  });
  twice("max", [&](const Kernels &k, float *) { return k.max(x.data(), n); });
  twice("argmax", [&](const Kernels &k, float *out) {
    int32_t id = -1, bad = 0;
    out[0] = n % 3 ? -INFINITY : 3.0f;
    k.argmax(x.data(), n, 100, out, &id, &bad);
    k.argmax(std::vector<float>(n, n % 2 ? NAN : INFINITY).data(), n, 100, out + 1, &id, &bad);
    return float(id + 1000 * bad);
  });
  twice("gumbel", [&](const Kernels &k, float *out) {
    return k.gumbel(0x123456789abcdef0u + n, 3, n, 5, n / 4, out), 0.0f;
  });
  if (n >= kPanel) {
    twice("swiglu", [&](const Kernels &k, float *out) { return k.swiglu(x.data(), out), 0.0f; });
  }
}

}  // namespace

int main() {
  for (const char *name : {"neon-matrix", "neon-dot", "neon"}) {
    const Kernels *set = pick_kernels(name);
    if (!set) continue;
    std::printf("%s\n", name);
    for (int format = 0; format < DP_FORMATS; ++format) {
      const int multiple = kFormats[format].multiple;
      for (int steps : {1, 2, 3, 8, 9, 17, 64, 65, 67, 129}) {
        if (multiple * steps <= 1024) tiles(*set, format, multiple * steps, 1.0f);
      }
    }
    for (float scale : {0x1p-62f, 0x1p-66f}) tiles(*set, DP_BF16, 134, scale);  // among denormals
    for (int pairs = 1; pairs <= set->attention.pairs; ++pairs) {
      for (int head_dim : {16, 48, 64, 128, 512}) attention(*set, head_dim, pairs, 1 + head_dim % 5);
    }
    for (int n : {1, 2, 15, 16, 17, 32, 33, 64, 100, 257, 1000}) rows_of(*set, n);
  }
  return wrong ? 1 : 0;
}
