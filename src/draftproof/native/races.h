// What picks share, of whole rows (sampling.cpp) and of what was cut from them (survivors.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

struct Scored {
  double score;
  int32_t id;
  bool operator<(const Scored &other) const {  // better comes first
    return score != other.score ? score > other.score : id < other.id;
  }
};

constexpr int kBlock = 64;  // logits that are passed over together

// A place in a text's noise.
struct Where {
  uint64_t seed;
  uint32_t stream, position;
};

// E of one token there.
double exponential(const Where &where, uint32_t id);

// The k best of x (n), best first, without -inf.
std::vector<Scored> best_of(const Kernels &kernels, const float *x, int n, int k);

// Of exp((x - top) / temperature), within 1e-5 relative.
double mass_of(const Kernels &kernels, const float *x, int n, float top, double temperature);
