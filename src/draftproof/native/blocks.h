// A block of one output's weights, out of the layouts of files, or rounded from numbers.
#pragma once
#include <cstdint>

struct Block {
  uint16_t scale, minimum;  // fp16; the minimum is added
  uint8_t q[256];
  uint8_t fine[16], fine_minimum[8];
};

void read_q4_0(const uint8_t *from, Block &to);
void read_q4_1(const uint8_t *from, Block &to);
void read_q5_0(const uint8_t *from, Block &to);
void read_q5_1(const uint8_t *from, Block &to);
void read_q8_0(const uint8_t *from, Block &to);
void read_q4_k(const uint8_t *from, Block &to);
void read_q5_k(const uint8_t *from, Block &to);
void read_q6_k(const uint8_t *from, Block &to);
void read_iq4_xs(const uint8_t *from, Block &to);
void read_mxfp4(const uint8_t *from, Block &to);  // its scale in bf16

// Out of the blocks that no GGUF file has (`DP_SOURCE_BLOCKS`).
void read_s4_128(const uint8_t *from, Block &to);
void read_z4_32(const uint8_t *from, Block &to);
void read_z4_128(const uint8_t *from, Block &to);

// The other way round.
void write_q4_1(const Block &from, uint8_t *to);
void write_q8_0(const Block &from, uint8_t *to);

// A scale and a minimum for `count` <= 32 weights, and integers of four bits, so that the sum of
// squared errors, the larger weights counting more, is small. False: a weight is too large.
bool round_4(const float *weights, int count, Block &to);
