// The kernels of AMX as they are shipped, on a machine without it: each of their instructions is
// refused by the processor, and the handler of that signal reads its bytes and does what it says.
// So the compiled code itself is run: which registers, which memory, in which order.
#include <csignal>
#include <ucontext.h>

#include "amx.h"
#include "emulated_tiles.h"
#include "kernels.h"

namespace {

// An instruction: VEX of three bytes, opcode, ModRM; see the manual, volume 2, chapter 2.
class Instruction {
 public:
  explicit Instruction(ucontext_t *context) : context_(context) {
    at_ = reinterpret_cast<const uint8_t *>(context->uc_mcontext.gregs[REG_RIP]);
    // Map 0F38, W0, 128 bits.
    known_ = at_[0] == 0xc4 && (at_[1] & 0x1f) == 2 && !(at_[2] & 0x84);
  }

  void run() {
    emulated::must(known_, "an instruction that is none of AMX");
    const int kind = at_[3] << 8 | (at_[2] & 3);  // opcode and prefix: none, 66, F3, F2
    const int reg = at_[4] >> 3 & 7, rm = at_[4] & 7, third = ~at_[2] >> 3 & 15;
    const bool memory = at_[4] >> 6 != 3;
    length_ = 5;
    if (memory) find_memory();
    amx::Shapes *shapes = reinterpret_cast<amx::Shapes *>(base_);
    void *tile = reinterpret_cast<void *>(base_);
    if (kind == 0x4900 && memory) {
      emulated::set_shapes(*shapes);
    } else if (kind == 0x4901 && memory) {
      emulated::get_shapes(*shapes);
    } else if (kind == 0x4903 && !memory) {
      emulated::zero(reg);
    } else if (kind == 0x4b03 && indexed_) {
      emulated::load(reg, tile, stride_);
    } else if (kind == 0x4b02 && indexed_) {
      emulated::store(reg, tile, stride_);
    } else if (kind == 0x5c02 && !memory) {
      emulated::dot_bf16(reg, rm, third);
    } else if (kind == 0x5e02 && !memory) {
      emulated::dot_s8u8(reg, rm, third);
    } else {
      emulated::must(false, "an instruction that the kernels should not have");
    }
    context_->uc_mcontext.gregs[REG_RIP] += length_;
  }

 private:
  int64_t greg(int number) const { return context_->uc_mcontext.gregs[number]; }

  int64_t general(int number) const {
    static const int order[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                REG_R12, REG_R13, REG_R14, REG_R15};
    return greg(order[number]);
  }

  // Where memory begins: the base and what is added to it; the index, scaled, is the stride.
  void find_memory() {
    const int mod = at_[4] >> 6, high_index = ~at_[1] >> 3 & 8, high_base = ~at_[1] >> 2 & 8;
    int base = at_[4] & 7;
    if (base == 4) {
      const uint8_t sib = at_[length_++];
      const int index = (sib >> 3 & 7) | high_index;
      base = sib & 7;
      indexed_ = index != 4;
      if (indexed_) stride_ = general(index) << (sib >> 6);
    }
    emulated::must(mod || base != 5, "an address that has no base");
    base_ = general(base | high_base);
    if (mod == 1) {
      base_ += int8_t(at_[length_++]);
    } else if (mod == 2) {
      int32_t more;
      std::memcpy(&more, at_ + length_, 4);
      base_ += more;
      length_ += 4;
    }
  }

  ucontext_t *context_;
  const uint8_t *at_;
  bool known_, indexed_ = false;
  int length_ = 0;
  int64_t base_ = 0, stride_ = 0;
};

void handle(int, siginfo_t *, void *context) {
  Instruction(static_cast<ucontext_t *>(context)).run();
}

template <class Run>
void trapping(Run run) {
  struct sigaction ours {}, before;
  ours.sa_sigaction = handle;
  ours.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &ours, &before);
  run();
  sigaction(SIGILL, &before, nullptr);
}

}  // namespace

#define DP_TEST extern "C" __attribute__((visibility("default")))

DP_TEST int32_t dp_tile(const char *, int32_t format, const char *panel, const char *x,
                        int64_t stride, int32_t inputs, int32_t rows, float *out) {
  trapping([&] { kAmxTiles[format](panel, x, stride, inputs, rows, out); });
  return kMostTileRows;
}

DP_TEST int32_t dp_scores(const char *, const uint16_t *keys, int32_t blocks, const uint16_t *q,
                          int32_t pairs, int32_t head_dim, float *out, int64_t apart) {
  trapping([&] { kAmxAttention.scores(keys, blocks, q, pairs, head_dim, out, apart); });
  return kAmxAttention.pairs;
}

DP_TEST int32_t dp_weigh(const char *, const uint16_t *values, int32_t n, const float *weights,
                         int64_t apart, int32_t pairs, int32_t head_dim, float *acc) {
  trapping([&] { kAmxAttention.weigh(values, n, weights, apart, pairs, head_dim, acc); });
  return kAmxAttention.pairs;
}
