// How threads share the panels of a product, and what a worker of a pass carries.
#pragma once
#include <algorithm>

#include "pass.h"

struct Pass::Worker {
  Phase *phase;  // the one that it is in; all workers go through the same ones
  int thread;

  // A phase of `count` items, of which none is long.
  template <class Do>
  void items(int count, Do work) {
    share(*phase++, count, 1, work);
  }
};

// Panels go to whoever is free: another process on the machine slows one thread, not the pass.
// Which thread takes a panel, and how its rows are cut into tiles, changes no bit.
template <class Done>
void Pass::multiply(Worker &worker, const Matrix &m, const Input &input, int rows, Done done) {
  constexpr int64_t kGrain = 128 << 10;  // bytes taken at once, so that streams are long
  const int least = std::max(1, m.panels / (4 * team_.count()));
  const int grain = std::clamp(int(kGrain / m.panel_bytes), 1, least);
  const int tiles = (rows + kRows - 1) / kRows;
  alignas(64) float tile[kRows * kPanel];
  alignas(64) int32_t sums[kRows * kPanel];
  share(*worker.phase++, rows ? m.panels : 0, grain, [&](int panel) {
    const char *weights = m.data + panel * m.panel_bytes;
    for (int t = 0; t < tiles; ++t) {
      const int first = int(int64_t(rows) * t / tiles);
      const int count = int(int64_t(rows) * (t + 1) / tiles) - first;
      if (input.scales) {
        const uint8_t *x = reinterpret_cast<const uint8_t *>(input.data);
        k_.tile_int8(reinterpret_cast<const int8_t *>(weights), x + first * input.stride,
                     input.stride, m.inputs, count, sums);
        k_.unscale(sums, m.shift.data() + panel * kPanel, input.scales + first,
                   m.scale.data() + panel * kPanel, count, tile);
      } else {
        const uint16_t *x = reinterpret_cast<const uint16_t *>(input.data);
        k_.tile_bf16(reinterpret_cast<const uint16_t *>(weights), x + first * input.stride,
                     input.stride, m.inputs, count, tile);
      }
      if (!m.bias.empty()) {
        const float *bias = m.bias.data() + panel * kPanel;
        for (int r = 0; r < count; ++r) {
          for (int i = 0; i < kPanel; ++i) tile[r * kPanel + i] += bias[i];
        }
      }
      done(panel, first, count, tile);
    }
  });
}
