// The entry points that run passes: what they are given is checked, and passes take turns.
#include <exception>
#include <numeric>

#include "checks.h"
#include "pass.h"

#if defined(_WIN32)
#include <process.h>
#define getpid _getpid
#else
#include <unistd.h>
#endif

namespace {

// A model's room is used by one pass at a time. In a child that was forked under a pass it stays
// taken: who had it is not there.
class Turn {
 public:
  explicit Turn(dp_model &model) : model_(model) {
    const int64_t here = getpid();
    int64_t owner = model.process;
    if (owner != here) {
      // Whoever was counted at the fork stayed in the parent, unless another thread has seen that.
      forked_ = owner && model.inside && model.process == owner;
      if (forked_) return;
      model.process.compare_exchange_strong(owner, here);
    }
    ++model.inside;
    model.one_pass.lock();
  }
  Turn(const Turn &) = delete;
  Turn &operator=(const Turn &) = delete;
  ~Turn() {
    if (forked_) return;
    model_.one_pass.unlock();
    --model_.inside;
  }
  bool forked() const { return forked_; }

 private:
  dp_model &model_;
  bool forked_ = false;
};

}  // namespace

DP_API int32_t dp_forward(dp_model *model, dp_team *team, const dp_pass *pass) try {
  if (!model || !team || !pass) return DP_BAD_ARGUMENT;
  const Turn turn(*model);
  if (turn.forked()) return DP_FORKED;
  if (!sound(*model, *pass)) return DP_BAD_ARGUMENT;
  Pass(*model, *team, *pass).run();
  return DP_OK;
} catch (const std::exception &) {
  return DP_NO_MEMORY;
}

DP_API int32_t dp_head(dp_model *model, dp_team *team, const float *hidden, int32_t rows,
                       float *logits) try {
  if (!model || !team || rows < 0 || rows > kMostRows) return DP_BAD_ARGUMENT;
  if (rows && (!hidden || !logits)) return DP_BAD_ARGUMENT;
  const Turn turn(*model);
  if (turn.forked()) return DP_FORKED;
  std::vector<int32_t> all(rows), best(rows);
  std::iota(all.begin(), all.end(), 0);
  dp_pass pass{};
  pass.wanted = rows;
  pass.logits_rows = all.data();
  pass.logits = logits;
  pass.best = best.data();
  Pass(*model, *team, pass, hidden).run();
  return DP_OK;
} catch (const std::exception &) {
  return DP_NO_MEMORY;
}

DP_API int32_t dp_version() { return 20; }

DP_API const char *dp_kernels(const char *wanted) {
  const Kernels *found = pick_kernels(wanted);
  return found ? found->name : "";
}

DP_API const char *dp_kernels_missed() { return missed_kernels(); }

DP_API dp_team *dp_team_new(int32_t threads) try {
  constexpr int kMostThreads = 1 << 12;  // the team counts them in 15 bits
  return threads > kMostThreads ? nullptr : new dp_team(threads);
} catch (const std::exception &) {
  return nullptr;
}

// In a forked child the threads and whoever waits for them are missing, and there is no end to
// waiting for them: the team is left as it is.
DP_API void dp_team_free(dp_team *team) {
  if (team && !team->forked()) delete team;
}
