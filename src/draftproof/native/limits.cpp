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
  std::vector<uint8_t> x, panel;
  int items, rows;
  bool int8;
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
  if (bytes < 1 || rows < 1 || rows > kRows) return 0.0;
  Limits limits{};
  limits.kernels = pick_kernels("");
  limits.memory = Memory(bytes);
  limits.x.assign(kRows * kInputs * 2, 0);
  limits.items = int(bytes / kChunk);
  limits.rows = rows;
  std::memset(limits.memory.data(), 1, bytes);
  const auto read = [](void *argument, int) {
    auto &of = *static_cast<Limits *>(argument);
    const auto *x = reinterpret_cast<const uint16_t *>(of.x.data());
    float out[kRows * kPanel];
    share(of.phase, of.items, 1, [&](int item) {
      const auto *chunk = of.memory.as<uint16_t>() + int64_t(item) * kChunk / 2;
      for (int at = 0; at < kChunk / 2; at += kInputs * kPanel) {
        of.kernels->tile_bf16(chunk + at, x, kInputs, kInputs, of.rows, out);
      }
    });
  };
  return bytes / seconds_of([&] { team->run(read, &limits); });
} catch (const std::exception &) {
  return 0.0;
}

// Products (one weight, one input) a second of full tiles whose panels lie in the cache.
DP_API double dp_tile_rate(dp_team *team, int32_t precision, int32_t tiles) try {
  if (tiles < 1) return 0.0;
  Limits limits{};
  limits.kernels = pick_kernels("");
  limits.x.assign(kRows * kInputs * 2, 1);
  limits.panel.assign(kInputs * 64, 1);
  limits.items = tiles;
  limits.int8 = precision == DP_INT8;
  const auto multiply = [](void *argument, int) {
    auto &of = *static_cast<Limits *>(argument);
    float out[kRows * kPanel];
    int32_t sums[kRows * kPanel];
    share(of.phase, of.items, 16, [&](int) {
      if (of.int8) {
        of.kernels->tile_int8(reinterpret_cast<const int8_t *>(of.panel.data()), of.x.data(), kInputs,
                              kInputs, kRows, sums);
      } else {
        of.kernels->tile_bf16(reinterpret_cast<const uint16_t *>(of.panel.data()),
                              reinterpret_cast<const uint16_t *>(of.x.data()), kInputs, kInputs,
                              kRows, out);
      }
    });
  };
  const double products = double(tiles) * kRows * kPanel * kInputs;
  return products / seconds_of([&] { team->run(multiply, &limits); });
} catch (const std::exception &) {
  return 0.0;
}
