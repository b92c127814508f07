// Packed weights, the rows of keys and values, and the room that a pass works in.
#pragma once
#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "draftproof.h"
#include "half.h"
#include "kernels.h"
#include "memory.h"

constexpr int kMostRows = 1 << 24;  // of a pass, and slots of a row: sums of a few stay in 32 bits

inline int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// Of logits: tokens whose rows of the head are zeros may be left out.
inline int head_rows(const dp_shape &s) { return s.outputs ? s.outputs : s.vocabulary; }

struct Panel {
  int format;
  char *data;

  const Format &of() const { return kFormats[format]; }
};

// A matrix (outputs, inputs) in panels of 32 outputs; what a panel's rest holds is zero.
struct Matrix {
  int inputs = 0;  // padded
  int64_t bytes = 0, row_bytes = 0;  // of a row of activations, as its tiles read them
  std::vector<Panel> panels;
  std::vector<float> bias;  // (panels * 32), empty: none
  std::vector<int32_t> order;  // which input each of them is multiplied with; empty: its own

  // A format that takes activations as all of them do.
  int activations() const { return panels.empty() ? DP_BF16 : panels[0].format; }
  // The weights of an output, as many as there are.
  void unpack(int output, int count, float *weights) const {
    const Panel &panel = panels[output / kPanel];
    panel.of().unpack(panel.data, inputs, output % kPanel, count, weights);
    if (order.empty()) return;
    const std::vector<float> standing(weights, weights + count);
    for (int i = 0; i < count; ++i) weights[order[i]] = standing[i];
  }
};

struct Layer {
  Matrix qkv, o, gate_up, down;
  std::vector<float> norm_in, norm_post, norm_q, norm_k;
  int window = 0;  // positions that attention reaches back, itself included; 0: all
};

// The activations of a pass, (rows, width) each; prepared ones as the tiles of a matrix read them.
struct Room {
  Memory x, normed, qkv, rounded, attended, act, ordered, input, act_input;
  int rows = 0;
};

struct Scores {
  Memory data;  // (threads, kTogether, slots)
  int threads = 0;
  int64_t slots = 0;
};

struct dp_model {
  std::mutex one_pass;  // runners in several Python threads may share the weights and the room
  std::atomic<int> inside{0};       // threads that are in a pass or wait for one,
  std::atomic<int64_t> process{0};  // of this process, as far as anyone knows
  dp_shape shape;
  const Kernels *kernels;
  Memory weights;               // none where they lie in memory of the caller's
  const char *packed = nullptr;  // wherever they lie
  std::vector<Layer> layers;
  Matrix head, embeddings;  // without panels: see `embed`
  const uint16_t *given_embeddings = nullptr;
  std::vector<float> norm_last, inv_freq;
  std::vector<float> cosine, sine;  // (positions, head_dim / 2)
  Room room;
  Scores scores;
  bool complete = false;  // every vector was given

  int q_width() const { return shape.heads * shape.head_dim; }
  int kv_width() const { return shape.kv_heads * shape.head_dim; }
  int act_width() const { return round_up(shape.intermediate, kPanel / 2); }
  void embed(int32_t token, float *out) const;  // as given, as packed, or the head's
  Matrix *matrix(int which, int layer);  // of a projection; null: there is none
  // These throw std::bad_alloc, and then what was there before still is.
  void ensure_positions(int64_t count);
  void ensure_room(int rows);
  void ensure_scores(int threads, int64_t slots);
};

// Per layer and head, keys in blocks of 16 slots and values in pairs of slots (see kernels.h).
struct dp_row {
  const dp_model *model;
  Memory keys, values;
  int slots = 0;
  std::atomic<bool> finite{true};  // whether every value ever stored was

  uint16_t *key_blocks(int layer, int head) const {
    return keys.as<uint16_t>() + plane(layer, head);
  }
  uint16_t *value_pairs(int layer, int head) const {
    return values.as<uint16_t>() + plane(layer, head);
  }
  // Key and value (head_dim) of a slot, in bf16.
  void store(int layer, int head, int slot, const uint16_t *key, const uint16_t *value);

 private:
  int64_t plane(int layer, int head) const {
    return (int64_t(layer) * model->shape.kv_heads + head) * slots * model->shape.head_dim;
  }
};
