// Tiles and attention in plain C++, for sets without dot-product instructions.
#include "loops.inl"

namespace {

// One row of a tile: both elements of a pair one after the other, the pairs in order.
void tile_bf16(const char *panel, const char *x, int64_t stride, int inputs, int rows, float *out) {
  for (int first = 0; first < rows; first += 2) {
    const int count = rows - first < 2 ? 1 : 2;
    const uint16_t *a = reinterpret_cast<const uint16_t *>(x + first * stride);
    const uint16_t *b = reinterpret_cast<const uint16_t *>(x + (first + count - 1) * stride);
    float sum[2][kPanel] = {};
    const uint32_t *w = reinterpret_cast<const uint32_t *>(panel);
    for (int i = 0; i < inputs; i += 2, w += kPanel) {
      const float a0 = from_bf16(a[i]), a1 = from_bf16(a[i + 1]);
      const float b0 = from_bf16(b[i]), b1 = from_bf16(b[i + 1]);
      for (int n = 0; n < kPanel; ++n) {
        const float low = as_float(w[n] << 16), high = as_float(w[n] & 0xffff0000u);
        sum[0][n] = madd(high, a1, madd(low, a0, sum[0][n]));
        sum[1][n] = madd(high, b1, madd(low, b0, sum[1][n]));
      }
    }
    std::memcpy(out + first * kPanel, sum, count * sizeof(sum[0]));
  }
}

// Sums of a group are exact; groups come in order.
void tile_int8(const char *panel, const char *x, int64_t stride, int inputs, int rows, float *out) {
  for (int row = 0; row < rows; ++row, x += stride, out += kPanel) {
    const WeightGroup *weights = reinterpret_cast<const WeightGroup *>(panel);
    const Group *groups = reinterpret_cast<const Group *>(x);
    float acc[kPanel] = {};
    for (int g = 0; g < inputs / kGroup; ++g) {
      for (int half = 0; half < 2; ++half) {
        int32_t sum[16];
        for (int &each : sum) each = groups[g].shift;
        for (int i = 0; i < kGroup; i += 4) {
          const uint8_t *w = weights[g].w[half][i / 4][0];
          const int8_t *a = groups[g].x + i;
          for (int n = 0; n < 16; ++n) {
            sum[n] += w[4 * n] * a[0] + w[4 * n + 1] * a[1] + w[4 * n + 2] * a[2] +
                      w[4 * n + 3] * a[3];
          }
        }
        const float of_row = groups[g].scale;
        for (int n = 0; n < 16; ++n) {
          float &to = acc[16 * half + n];
          to = madd(float(sum[n]) * from_bf16(weights[g].scale[16 * half + n]), of_row, to);
        }
      }
    }
    std::memcpy(out, acc, sizeof(acc));
  }
}

void scores(const uint16_t *keys, int blocks, const uint16_t *const *q, int pairs, int head_dim,
            float *const *out) {
  for (int b = 0; b < blocks; ++b) {
    const uint32_t *k = reinterpret_cast<const uint32_t *>(keys) + b * head_dim / 2 * kLanes;
    for (int p = 0; p < pairs; ++p) {
      float sum[kLanes] = {};
      for (int i = 0; i < head_dim; i += 2) {
        const float q0 = from_bf16(q[p][i]), q1 = from_bf16(q[p][i + 1]);
        for (int l = 0; l < kLanes; ++l) {
          const uint32_t pair = k[i / 2 * kLanes + l];
          sum[l] = madd(as_float(pair & 0xffff0000u), q1, madd(as_float(pair << 16), q0, sum[l]));
        }
      }
      std::memcpy(out[p] + b * kLanes, sum, sizeof(sum));
    }
  }
}

void weigh(const uint16_t *values, int64_t n, const float *const *weights, int pairs, int head_dim,
           float *const *acc) {
  for (int64_t j = 0; j < n; ++j, values += head_dim) {
    for (int p = 0; p < pairs; ++p) {
      const float weight = weights[p][j];
      float *sum = acc[p];
      for (int i = 0; i < head_dim; ++i) sum[i] = madd(weight, from_bf16(values[i]), sum[i]);
    }
  }
}

}  // namespace
