// What the machine can do at best: how fast memory is read, how fast tiles run out of the cache.
#include <chrono>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "team.h"

namespace {

constexpr int kChunk = 1 << 20;  // bytes read at once by one thread
constexpr int kInputs = 512;     // a panel of so many inputs stays in the nearest caches

// What a thread multiplies is made before there is a region: there nobody could say that it failed.
struct Limits {
  Phase phase;
  const Kernels *kernels;
  Memory memory;
  std::vector<char> x, panel;
  int items, rows, format;
};

template <class Run>
double seconds_of(Run run) {
  const auto began = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace

// Reads by the kernel that reads weights, under so many rows, the panels in order.
DP_API double dp_read_rate(dp_team *team, int64_t bytes, int32_t rows) try {
  Limits limits{};
  limits.kernels = pick_kernels("");
  if (bytes < 1 || rows < 1 || rows > limits.kernels->tiles[DP_BF16].rows) return 0.0;
  limits.memory = Memory(bytes);
  limits.rows = rows;
  limits.x.assign(kMostTileRows * kInputs * 2, 0);
  limits.items = int(bytes / kChunk);
  std::memset(limits.memory.data(), 1, bytes);
  const auto read = [](void *argument, int) {
    auto &of = *static_cast<Limits *>(argument);
    float out[kMostTileRows * kPanel];
    share(of.phase, of.items, 1, [&](int item) {
      const char *chunk = of.memory.data() + int64_t(item) * kChunk;
      for (int at = 0; at < kChunk; at += kInputs * kPanel * 2) {
        of.kernels->tiles[DP_BF16].tile(chunk + at, of.x.data(), kInputs * 2, kInputs, of.rows, out);
      }
    });
  };
  return bytes / seconds_of([&] { team->run(read, &limits); });
} catch (const std::exception &) {
  return 0.0;
}

// Products (one weight, one input) a second of full tiles whose panels lie in the cache.
DP_API double dp_tile_rate(dp_team *team, int32_t format, int32_t tiles) try {
  if (tiles < 1 || format < 0 || format >= DP_FORMATS) return 0.0;
  Limits limits{};
  limits.kernels = pick_kernels("");
  limits.format = format;
  limits.rows = limits.kernels->tiles[format].rows;
  limits.x.assign(limits.rows * kFormats[format].row_bytes(kInputs), 1);
  limits.panel.assign(kFormats[format].panel_bytes(kInputs), 1);
  limits.items = tiles;
  const auto multiply = [](void *argument, int) {
    auto &of = *static_cast<Limits *>(argument);
    float out[kMostTileRows * kPanel];
    share(of.phase, of.items, 16, [&](int) {
      of.kernels->tiles[of.format].tile(of.panel.data(), of.x.data(),
                                        kFormats[of.format].row_bytes(kInputs), kInputs,
                                        of.rows, out);
    });
  };
  const double products = double(tiles) * limits.rows * kPanel * kInputs;
  return products / seconds_of([&] { team->run(multiply, &limits); });
} catch (const std::exception &) {
  return 0.0;
}
