// Threads that stay awake between two passes and share the items of its phases.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "draftproof.h"

// One region at a time. The caller is thread 0 and could do everything alone; workers join a region
// when they come to it. Nobody waits for a thread that has taken nothing: one that the system gave
// no core delays the others by what it holds, not by what it could have done. Between two regions
// workers spin for a short while, because the next one usually comes at once, and then sleep. In a
// forked child there are no workers: the caller does the work alone, and takes no lock, because who
// holds it may have stayed in the parent.
struct dp_team {
  using Work = void (*)(void *argument, int thread);

  // Throws where the system does not give so many threads.
  explicit dp_team(int threads);
  ~dp_team();
  void run(Work work, void *argument);
  int count() const { return count_; }
  // Whether this is a child that was forked from the team's process.
  bool forked() const;

 private:
  void loop(int thread);
  void dismiss();
  // Takes part in a region that it has not seen; false if there is none.
  bool join(uint64_t &seen);

  static constexpr uint64_t kOpen = 1 << 15, kRegion = 1 << 16;  // below: who has joined

  const int count_;
  const int64_t process_;
  std::mutex one_region_;
  Work work_ = nullptr;
  void *argument_ = nullptr;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int> sleeping_{0};
  std::atomic<bool> closing_{false};
};

// The items of one phase: how many were taken, and how many are done.
struct alignas(64) Phase {
  std::atomic<int> taken{0}, done{0};
};

// Waits until all items of the phase are done.
void finish(const Phase &phase, int items);

// Does items of the phase until none is left, `grain` at a time, then waits for those of others.
// Calls work(item).
template <class Do>
void share(Phase &phase, int items, int grain, Do work) {
  for (int begin; (begin = phase.taken.fetch_add(grain, std::memory_order_relaxed)) < items;) {
    const int end = begin + grain < items ? begin + grain : items;
    for (int item = begin; item < end; ++item) work(item);
    phase.done.fetch_add(end - begin, std::memory_order_release);
  }
  finish(phase, items);
}
