// How threads share the panels of a product. Does not know what a pass is.
#pragma once
#include <algorithm>

#include "model.h"
#include "team.h"

// What a thread of a region carries from one phase to the next.
struct Worker {
  Phase *phase;  // the one that it is in; all workers go through the same ones
  int thread;

  // A phase of `count` items, of which none is long.
  template <class Do>
  void items(int count, Do work) {
    share(*phase++, count, 1, work);
  }

  // A phase of rows, each of which takes less than a microsecond: of many several at once, or the
  // threads would wait for the counter that they share.
  template <class Do>
  void rows(int count, Do work) {
    share(*phase++, count, std::clamp(count / 32, 1, 16), work);
  }
};

// Calls done(panel, first row, rows, tile (rows, 32)) for every tile of a product with `input`, rows
// of activations as the matrix's format has them.
//
// Panels go to whoever is free: another process on the machine slows one thread, not the pass.
// Which thread takes a panel, and how its rows are cut into tiles, changes no bit. Of a few rows as
// many bytes are taken at once as make long streams; many rows keep a panel for long, so fewer panels
// are taken, and only some of the rows, lest one thread wait for the other's last ones. A tile of
// rows goes over all of them while it lies in the nearest cache.
template <class Done>
void multiply(const Kernels &k, int threads, Worker &worker, const Matrix &m, const char *input,
              int rows, Done done) {
  constexpr int64_t kGrain = 128 << 10;
  constexpr int kManyRows = 2 * kMostTileRows;
  const int panels = int(m.panels.size()), runs = (rows > kManyRows ? 16 : 4) * threads;
  const int grain = std::clamp(int(kGrain * m.panels.size() / std::max<int64_t>(m.bytes, 1)), 1,
                               std::max(1, panels / runs));
  const int parts = (rows + 2 * kManyRows - 1) / (2 * kManyRows);  // of the rows
  alignas(64) float tile[kMostTileRows * kPanel];
  const auto multiplied = [&](int number, int first, int count) {
    const Panel &panel = m.panels[number];
    k.tiles[panel.format].tile(panel.data, input + first * m.row_bytes, m.row_bytes, m.inputs, count,
                               tile);
    if (!m.bias.empty()) {
      const float *bias = m.bias.data() + number * kPanel;
      for (int r = 0; r < count; ++r) {
        for (int i = 0; i < kPanel; ++i) tile[r * kPanel + i] += bias[i];
      }
    }
    done(number, first, count, tile);
  };
  share(*worker.phase++, (panels + grain - 1) / grain * parts, 1, [&](int item) {
    const int part = item % parts, first_panel = item / parts * grain;
    const int end = std::min(first_panel + grain, panels);
    for (int begin = first_panel, same = begin; begin < end; begin = same) {
      const int format = m.panels[begin].format, most = k.tiles[format].rows;
      while (same < end && m.panels[same].format == format) ++same;  // tiles of as many rows
      const int tiles = (rows + most - 1) / most;
      for (int t = tiles * part / parts; t < tiles * (part + 1) / parts; ++t) {
        const int first = int(int64_t(rows) * t / tiles);
        const int count = int(int64_t(rows) * (t + 1) / tiles) - first;
        for (int number = begin; number < same; ++number) multiplied(number, first, count);
      }
    }
  });
}
