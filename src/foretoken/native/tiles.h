// How threads share the panels of a product, and what a worker of a pass carries.
#pragma once
#include <algorithm>

#include "pass.h"

struct Pass::Worker {
  ft_team &team;
  std::atomic<int> *counter;  // of this phase; the next phase has its own
  int thread, threads;
  unsigned sense;

  void meet() { team.barrier(sense); }
  int take(int count) { return counter->fetch_add(count, std::memory_order_relaxed); }
  void next() { ++counter; }
};

// Panels go to whoever is free: another process on the machine slows one thread, not the pass.
// Which thread takes a panel, and how its rows are cut into tiles, changes no bit.
template <class Done>
void Pass::multiply(Worker &worker, const Matrix &m, const Input &input, int rows, Done done) {
  constexpr int64_t kGrain = 128 << 10;  // bytes taken at once, so that streams are long
  const int share = std::max(1, m.panels / (4 * worker.threads));
  const int grain = std::clamp(int(kGrain / m.panel_bytes), 1, share);
  const int tiles = (rows + kRows - 1) / kRows;
  alignas(64) float tile[kRows * kPanel];
  alignas(64) int32_t sums[kRows * kPanel];
  for (int begin; rows > 0 && (begin = worker.take(grain)) < m.panels;) {
    for (int panel = begin; panel < std::min(begin + grain, m.panels); ++panel) {
      const char *weights = m.data + panel * m.panel_bytes;
      for (int t = 0; t < tiles; ++t) {
        const int first = int(int64_t(rows) * t / tiles);
        const int count = int(int64_t(rows) * (t + 1) / tiles) - first;
        if (input.scales) {
          const uint8_t *x = reinterpret_cast<const uint8_t *>(input.data);
          k_.tile_int8(reinterpret_cast<const int8_t *>(weights), x + first * input.stride,
                       input.stride, m.inputs, count, sums);
          const float *scale = m.scale.data() + panel * kPanel;
          const int32_t *shift = m.shift.data() + panel * kPanel;
          for (int r = 0; r < count; ++r) {
            for (int i = 0; i < kPanel; ++i) {
              const float exact = float(sums[r * kPanel + i] - shift[i]);
              tile[r * kPanel + i] = exact * (input.scales[first + r] * scale[i]);
            }
          }
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
    }
  }
  worker.next();
}
