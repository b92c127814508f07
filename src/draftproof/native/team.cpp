#include "team.h"

#include <chrono>
#if defined(_WIN32)
#include <process.h>
#define getpid _getpid
#else
#include <unistd.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace {

constexpr std::chrono::microseconds kSpin{300};  // a step's Python takes less

inline void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Denormals are zero in every thread of a region, as the dot-product instructions have it anyway.
class FlushDenormals {
 public:
#if defined(__x86_64__) || defined(_M_X64)
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80 | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    set(uint64_t(1) << 24);  // to the nearest, and products of bf16 as every processor has them
  }
  ~FlushDenormals() { set(before_); }

 private:
  static void set(uint64_t control) { asm volatile("msr fpcr, %0" : : "r"(control)); }

  uint64_t before_;
#else
  FlushDenormals() {}
#endif
};

// Spins, and after a while lets others run: the machine may have fewer cores than threads.
template <class Done>
void await(Done done) {
  for (int spins = 0; !done(); ++spins) {
    if (spins < 1 << 12) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace

void finish(const Phase &phase, int items) {
  await([&] { return phase.done.load(std::memory_order_acquire) == items; });
}

dp_team::dp_team(int threads) : count_(threads < 1 ? 1 : threads), process_(getpid()) {
  try {
    for (int thread = 1; thread < count_; ++thread) {
      threads_.emplace_back([this, thread] { loop(thread); });
    }
  } catch (...) {
    dismiss();  // those that were made: a thread that nobody joined ends the process
    throw;
  }
}

dp_team::~dp_team() { dismiss(); }

bool dp_team::forked() const { return process_ != getpid(); }

void dp_team::dismiss() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  for (auto &thread : threads_) thread.join();
}

void dp_team::run(Work work, void *argument) {
  if (forked()) {
    FlushDenormals flush;
    return work(argument, 0);
  }
  std::lock_guard<std::mutex> one(one_region_);
  work_ = work;
  argument_ = argument;
  state_.store((state_.load() / kRegion + 1) * kRegion | kOpen);
  if (sleeping_.load() > 0) {
    std::lock_guard<std::mutex> lock(mutex_);  // nobody is between its last look and its sleep
    wake_.notify_all();
  }
  {
    FlushDenormals flush;
    work(argument, 0);
  }
  state_.fetch_and(~kOpen);
  await([this] { return state_.load(std::memory_order_acquire) % kOpen == 0; });
}

bool dp_team::join(uint64_t &seen) {
  uint64_t state = state_.load(std::memory_order_acquire);
  while ((state & kOpen) && state / kRegion != seen) {
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) {
      seen = state / kRegion;
      return true;
    }
  }
  return false;
}

void dp_team::loop(int thread) {
  FlushDenormals flush;
  uint64_t seen = 0;
  while (!closing_) {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    bool joined = false;
    for (int spins = 1; !(joined = join(seen)) && !closing_; ++spins) {
      relax();
      if (spins % 64 == 0 && std::chrono::steady_clock::now() > until) {
        std::unique_lock<std::mutex> lock(mutex_);
        sleeping_.fetch_add(1);
        wake_.wait(lock, [&] { return (joined = join(seen)) || closing_; });
        sleeping_.fetch_sub(1);
        break;
      }
    }
    if (!joined) continue;
    work_(argument_, thread);
    state_.fetch_sub(1, std::memory_order_release);
  }
}
