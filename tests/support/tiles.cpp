// Linked into a test build of the kernels whose tiles are emulated: a tile by itself, what else may
// happen to a thread's tiles, and a system that may refuse them (--wrap=syscall).
#include <cerrno>
#include <cstdarg>
#include <cstdlib>

#include <sys/syscall.h>

#include "amx.h"
#include "kernels.h"
#include "model.h"

#define DP_TEST extern "C" __attribute__((visibility("default")))

// See `Tiles` and `Format`; answers 0 where the set does not run.
DP_TEST int32_t dp_tile(const char *kernels, int32_t format, const char *panel, const char *x,
                        int64_t stride, int32_t inputs, int32_t rows, float *out) {
  const Kernels *k = pick_kernels(kernels);
  if (k) k->tiles[format].tile(panel, x, stride, inputs, rows, out);
  return k ? k->tiles[format].rows : 0;
}

// See `Attention`; answer how many pairs a call may have.
DP_TEST int32_t dp_scores(const char *kernels, const uint16_t *keys, int32_t blocks,
                          const uint16_t *q, int32_t pairs, int32_t head_dim, float *out,
                          int64_t apart) {
  const Attention &of = pick_kernels(kernels)->attention;
  if (pairs <= of.pairs) of.scores(keys, blocks, q, pairs, head_dim, out, apart);
  return of.pairs;
}

DP_TEST int32_t dp_weigh(const char *kernels, const uint16_t *values, int32_t n,
                         const float *weights, int64_t apart, int32_t pairs, int32_t head_dim,
                         float *acc) {
  const Attention &of = pick_kernels(kernels)->attention;
  if (pairs <= of.pairs) of.weigh(values, n, weights, apart, pairs, head_dim, acc);
  return of.pairs;
}

// Every key and value of a slot becomes NaN.
DP_TEST void dp_spoil(dp_row *row, int32_t slot) {
  const std::vector<uint16_t> nan(row->model->shape.head_dim, 0x7fc0);
  for (int layer = 0; layer < row->model->shape.layers; ++layer) {
    for (int head = 0; head < row->model->shape.kv_heads; ++head) {
      row->store(layer, head, slot, nan.data(), nan.data());
    }
  }
}

DP_TEST void dp_prepare(int32_t format, const float *x, int32_t n, int32_t inputs, char *out) {
  pick_kernels("avx512")->tiles[format].prepare(x, n, inputs, out);
}

DP_TEST void dp_pack(int32_t format, const float *weights, int32_t count, int32_t inputs,
                     int32_t output, char *panel) {
  kFormats[format].pack(weights, count, inputs, output, panel);
}

DP_TEST void dp_repack(int32_t format, const uint8_t *blocks, int32_t count, int32_t output,
                       char *panel) {
  kFormats[format].repack(blocks, count, output, panel);
}

DP_TEST int64_t dp_panel_bytes(int32_t format, int32_t inputs) {
  return kFormats[format].panel_bytes(inputs);
}

DP_TEST int64_t dp_row_bytes_of(int32_t format, int32_t inputs) {
  return kFormats[format].row_bytes(inputs);
}

// How often this thread's shapes were set.
DP_TEST int32_t dp_tiles_set() { return emulated::registers().set; }

// What other code on this thread does with tiles: 0 releases them, 1 sets shapes of its own.
DP_TEST void dp_disturb(int32_t how) {
  amx::Shapes other;
  other.rows[3] = 5;
  other.row_bytes[3] = 20;
  how ? emulated::set_shapes(other) : emulated::release();
}

// Instructions that the processor would not run.
DP_TEST void dp_break_rules(int32_t which) {
  amx::Shapes shapes;
  for (int tile = 0; tile < 8; tile += 2) {
    shapes.rows[tile] = 16;
    shapes.row_bytes[tile] = 64;
  }
  char room[1024] = {};
  if (which == 0) emulated::release(), amx::load<4>(room, 64);
  if (which == 1) shapes.rows[0] = 17;
  if (which == 2) shapes.rows[12] = 1;
  if (which == 3) shapes.row_bytes[4] = 32;
  if (which == 4) shapes.rows[0] = 8;
  if (which == 5) shapes.row_bytes[6] = 32;
  if (which == 6) shapes.rows[6] = 0;
  amx::set_shapes(shapes);
  if (which == 7) amx::store<1>(room, 64);
  amx::dot_bf16<0, 4, 6>();
}

// The only call of the kernels to the system by number. Refused by the word in the environment.
extern "C" long __wrap_syscall(long number, ...) {
  va_list rest;
  va_start(rest, number);
  const long request = va_arg(rest, long), feature = va_arg(rest, long);
  va_end(rest);
  emulated::must(number == SYS_arch_prctl && request == 0x1023 && feature == 18, "another request");
  if (!std::getenv("DP_TEST_NO_TILES")) return 0;
  errno = EPERM;
  return -1;
}
