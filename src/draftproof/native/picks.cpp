// The picks of a pass, of all texts at once: as rules.Picks makes them, along the path that they make.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>

#include "draftproof.h"
#include "team.h"

namespace {

constexpr double kTiny = 1e-3;  // see chain.py

bool sound(const dp_drawing &text) {
  if (!text.tokens || !text.parents || !text.logits || !text.picks || text.nodes < 1) return false;
  for (int32_t node = 1; node < text.nodes; ++node) {
    if (text.parents[node] < 0 || text.parents[node] >= node) return false;
  }
  return text.cut.temperature >= kTiny;
}

struct Picking {
  const dp_drawing *texts;
  int32_t count, n;
  Phase phase;

  int32_t pick(const dp_drawing &text, int32_t node) const {
    uint32_t position = text.position;
    for (int32_t at = node; at; at = text.parents[at]) ++position;
    const float *row = text.logits + int64_t(node) * n;
    const dp_cut &cut = text.cut;
    int32_t id;
    double scaled, log_mass;
    const bool whole = cut.top_k <= 0 && cut.top_p == 1 && cut.floor == -INFINITY;
    const int32_t found = whole ? dp_race(row, n, cut.temperature, text.seed, text.stream, position,
                                          1, &id, &scaled, nullptr)
                                : dp_race_cut(row, n, &cut, text.seed, text.stream, position, 1, &id,
                                              &scaled, &log_mass);
    return found == 1 ? id : -1;
  }

  void follow(const dp_drawing &text) const {
    std::fill_n(text.picks, text.nodes, -1);
    for (int32_t node = 0; node < text.nodes; ++node) {
      if (!node || text.picks[text.parents[node]] == text.tokens[node])
        text.picks[node] = pick(text, node);
    }
  }
};

}  // namespace

DP_API int32_t dp_pick(dp_team *team, const dp_drawing *texts, int32_t count, int32_t n) try {
  if (!team || !texts || count < 1 || n < 1 || !std::all_of(texts, texts + count, sound))
    return DP_BAD_ARGUMENT;
  Picking picking{texts, count, n, {}};
  team->run(
      [](void *self, int) {
        auto &all = *static_cast<Picking *>(self);
        share(all.phase, all.count, 1, [&](int at) { all.follow(all.texts[at]); });
      },
      &picking);
  return DP_OK;
} catch (const std::exception &) {
  return DP_NO_MEMORY;
}
