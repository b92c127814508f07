// One forward pass: what the threads of a region share, and the phases they go through.
#pragma once
#include <atomic>
#include <memory>

#include "attention.h"
#include "tiles.h"

class Pass {
 public:
  // Of a whole pass; or, where states past the last norm are given, of the head alone.
  Pass(dp_model &model, dp_team &team, const dp_pass &pass, const float *given = nullptr);
  void run();

 private:
  // What a thread does: the items that it gets of one phase after the other.
  void work(int thread);
  void layer(Worker &worker, int number);
  void heads(int number, int kv_head, int first, int end);
  void attention(Worker &worker, int number);
  void last(Worker &worker);
  void head(Worker &worker);
  void tap(Worker &worker, int layer);
  // Rows (rows, width) of floats as the tiles of a matrix read them, after a norm if it is given.
  void prepare(Worker &worker, const Matrix &m, const float *from, int width,
               const std::vector<float> *norm, int rows, char *to);
  // See tiles.h.
  template <class Done>
  void product(Worker &worker, const Matrix &m, const char *input, int rows, Done done) {
    multiply(k_, team_.count(), worker, m, input, rows, done);
  }

  void place();
  // From one thread's running picks to the next's: no two write to one cache line.
  size_t apart() const { return size_t(round_up(pass_.wanted, 16)); }

  dp_model &model_;
  dp_team &team_;
  const dp_pass &pass_;
  const float *given_;
  const Kernels &k_;
  Room &room_;
  std::vector<Place> places_;
  std::vector<int> paths_;
  std::vector<int> items_;  // attention's: segment, first row, rows; each for every kv head
  std::unique_ptr<Phase[]> phases_;
  std::vector<float> best_;  // (threads, apart())
  std::vector<int32_t> best_ids_, bad_;
};
