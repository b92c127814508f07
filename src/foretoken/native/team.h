// Threads that stay awake between two passes and meet at barriers within one.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "foretoken.h"

// One parallel region at a time. The caller is thread 0. Workers spin for a short while after a
// region, because the next one usually comes at once, and then sleep. In a forked child, where the
// workers do not exist, the caller works alone.
struct ft_team {
  using Work = void (*)(void *argument, int thread);

  explicit ft_team(int threads);
  ~ft_team();
  void run(Work work, void *argument);
  // Every thread of the region waits here for the others; `sense` starts as sense().
  void barrier(unsigned &sense);
  unsigned sense() const { return phase_.load(std::memory_order_relaxed); }
  int count() const { return count_; }
  int working() const { return working_; }  // in the region that runs

 private:
  void loop(int thread);

  int count_, working_ = 1;
  int64_t process_;
  std::mutex one_region_;
  Work work_ = nullptr;
  void *argument_ = nullptr;
  bool closing_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
  alignas(64) std::atomic<uint32_t> region_{0};
  alignas(64) std::atomic<int> sleeping_{0};
  alignas(64) std::atomic<int> busy_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
};
