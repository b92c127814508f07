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
        const float low = float_of(w[n] << 16), high = float_of(w[n] & 0xffff0000u);
        sum[0][n] = madd(high, a1, madd(low, a0, sum[0][n]));
        sum[1][n] = madd(high, b1, madd(low, b0, sum[1][n]));
      }
    }
    std::memcpy(out + first * kPanel, sum, count * sizeof(sum[0]));
  }
}

// The integers of a group: 4 inputs of 16 outputs side by side, step by step.
template <class F>
void integers(const uint8_t *half, uint8_t (*q)[kRegister]) {
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kRegister; ++i) {
      if (F::kBits == 8) {
        q[step][i] = half[step * kRegister + i];
        continue;
      }
      int value = half[step / 2 * kRegister + i] >> step % 2 * 4 & 15;
      const uint8_t *high = half + F::kLow + i;
      if (F::kBits == 5) value |= (high[0] >> step & 1) << 4;
      if (F::kBits == 6) value |= (high[step / 4 * kRegister] >> step % 4 * 2 & 3) << 4;
      if (F::kTable) value = F::table().of[value];
      q[step][i] = uint8_t(value);
    }
  }
}

// Sums of a part are exact; parts come in order.
template <class F>
void tile_half(const char *panel, int half, const char *x, int64_t stride, int inputs, int rows,
               float *out) {
  constexpr int kPartSteps = kSteps / F::kParts;
  float acc[kMostTileRows][16] = {};
  uint8_t q[kSteps][kRegister];
  float scale[16], minimum[16];
  for (int g = 0; g < inputs / kGroup; ++g) {
    const char *block = panel + int64_t(g / F::kGroups) * F::kBytes;
    const uint16_t *header = reinterpret_cast<const uint16_t *>(block) + 16 * half;
    const char *group = block + F::kHeader + g % F::kGroups * F::kGroupBytes;
    const char *fine = group + 2 * F::kHalf + 16 * half;
    integers<F>(reinterpret_cast<const uint8_t *>(group) + half * F::kHalf, q);
    for (int part = 0; part < F::kParts; ++part) {
      for (int n = 0; n < 16; ++n) {
        scale[n] = scale_of<F>(header[n]);
        minimum[n] = F::kMinimum ? from_half(header[kPanel + n]) : 0.0f;
        if (!F::kFine) continue;
        scale[n] *= float(int8_t(fine[part * kPanel + n]));
        if (F::kMinimum) minimum[n] *= float(int8_t(fine[F::kParts * kPanel + n]));
      }
      for (int r = 0; r < rows; ++r) {
        const Group &row = reinterpret_cast<const Group *>(x + r * stride)[g];
        const int32_t all = row.shift[0], first = row.shift[1];
        const int32_t shift = F::kParts == 1 ? all : part == 0 ? first : all - first;
        int32_t sum[16];
        for (int &each : sum) each = shift / 128 * F::kZero;
        for (int step = part * kPartSteps; step < (part + 1) * kPartSteps; ++step) {
          const int8_t *a = row.x + 4 * step;
          for (int n = 0; n < 16; ++n) {
            const uint8_t *w = q[step] + 4 * n;
            sum[n] += w[0] * a[0] + w[1] * a[1] + w[2] * a[2] + w[3] * a[3];
          }
        }
        for (int n = 0; n < 16; ++n) {
          if (F::kZeros) sum[n] += shift / 128 * int16_t(header[kPanel + n]);
          acc[r][n] = madd(float(sum[n]) * scale[n], row.scale, acc[r][n]);
          if (F::kMinimum) acc[r][n] = madd(minimum[n], row.total, acc[r][n]);
        }
      }
    }
  }
  for (int r = 0; r < rows; ++r) std::memcpy(out + r * kPanel + 16 * half, acc[r], sizeof(acc[r]));
}

template <class F>
void tile_blocks(const char *panel, const char *x, int64_t stride, int inputs, int rows,
                 float *out) {
  for (int half = 0; half < 2; ++half) tile_half<F>(panel, half, x, stride, inputs, rows, out);
}

void scores(const uint16_t *keys, int blocks, const uint16_t *q, int pairs, int head_dim, float *out,
            int64_t apart) {
  for (int b = 0; b < blocks; ++b) {
    const uint32_t *k = reinterpret_cast<const uint32_t *>(keys) + b * head_dim / 2 * kLanes;
    for (int p = 0; p < pairs; ++p) {
      const uint16_t *of = q + p * head_dim;
      float sum[kLanes] = {};
      for (int i = 0; i < head_dim; i += 2) {
        const float q0 = from_bf16(of[i]), q1 = from_bf16(of[i + 1]);
        for (int l = 0; l < kLanes; ++l) {
          const uint32_t pair = k[i / 2 * kLanes + l];
          sum[l] = madd(float_of(pair & 0xffff0000u), q1, madd(float_of(pair << 16), q0, sum[l]));
        }
      }
      std::memcpy(out + p * apart + b * kLanes, sum, sizeof(sum));
    }
  }
}

void weigh(const uint16_t *values, int n, const float *weights, int64_t apart, int pairs,
           int head_dim, float *acc) {
  const uint32_t *value = reinterpret_cast<const uint32_t *>(values);
  for (int j = 0; j < n; j += 2, value += head_dim) {
    for (int p = 0; p < pairs; ++p) {
      const float first = weights[p * apart + j], second = weights[p * apart + j + 1];
      float *sum = acc + p * head_dim;
      for (int i = 0; i < head_dim; ++i) {
        const float low = float_of(value[i] << 16), high = float_of(value[i] & 0xffff0000u);
        sum[i] = madd(second, high, madd(first, low, sum[i]));
      }
    }
  }
}

}  // namespace
