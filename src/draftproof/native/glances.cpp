// Look-ups by their first token, for all texts of a batch in one call: what glancing.py and
// calibration.py do one by one, of which this is the fast twin.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "calibration.h"
#include "draftproof.h"
#include "looks.h"

int32_t held_by(const dp_look &look, int32_t size, int32_t fresh) {
  const int32_t held = look.ngrams ? dp_ngrams_size(look.ngrams) : dp_automaton_size(look.automaton);
  return held > size || size - held > fresh ? DP_BAD_ARGUMENT : held;
}

int32_t find_longest(dp_look &look, int32_t held, const int32_t *tokens, int32_t count,
                     const dp_automaton **where, int32_t *state) {
  int32_t done = dp_automaton_append(look.automaton, tokens, count);
  if (done != DP_OK) return done;
  const bool goes_on = look.found == held && count <= kTold;
  dp_automaton *const others[] = {look.newer, look.older};
  int32_t length = 0;
  *where = look.automaton, *state = dp_automaton_repeated(look.automaton, &length);
  for (int each = 0; each < 2; ++each) {
    int32_t &at = look.states[each], &matched = look.lengths[each];
    if (!others[each]) continue;
    if (goes_on) {
      for (int32_t next = 0; done == DP_OK && next < count; ++next)
        done = dp_automaton_follow(others[each], tokens[next], look.context, &at, &matched);
    } else {
      at = dp_automaton_match_end(look.automaton, look.context, others[each], &matched);
      done = std::min(at, 0);
    }
    if (done != DP_OK) return done;
    if (matched > length) *where = others[each], *state = at, length = matched;
  }
  look.found = held + count;
  return length;
}

namespace {

constexpr int kAhead = 4;  // tokens behind the first one that are hoped for

void learn(dp_look &look, bool right) {
  const double recent = *look.recent, reached = right ? 1.0 : 0.0;
  const double expected = learn_token(look.weights, look.variances, look.score, 1, recent, right);
  look.reach[0] += (reached - look.reach[0]) * kReach;
  *look.recent += (reached - expected - recent) * kRecent;
}

int32_t guess_longest(dp_look &look, int32_t held, const int32_t *tokens, int32_t count) {
  const dp_automaton *where;
  int32_t state, parent;
  const int32_t length = find_longest(look, held, tokens, count, &where, &state);
  if (length < 0) return length;
  if (length < look.matching) return 0;
  return dp_automaton_likeliest(where, state, 1, 1, look.least, &look.guess, &parent, &look.score);
}

// The text goes on with `tokens` behind the first `kept`; what would be drafted behind it.
int32_t guess(dp_look &look, int32_t kept, const int32_t *tokens, int32_t count) {
  look.guess = -1, look.place = kept + count;
  if (!look.ngrams) return std::min(guess_longest(look, kept, tokens, count), 0);
  int32_t made[2], parents[2];  // node 0 is the last token of the text
  double scores[2];
  const int32_t nodes = dp_ngrams_draft(look.ngrams, kept, tokens, count, 1, look.matching, 1, made,
                                        parents, scores);
  if (nodes > 1) look.guess = made[1], look.score = scores[1];
  return std::min(nodes, 0);
}

// The text has `size` tokens, of which `fresh` are given.
int32_t follow(dp_look &look, const int32_t *tokens, int32_t size, int32_t fresh) {
  const int32_t held = held_by(look, size, fresh);
  if (held < 0) return held;
  tokens += fresh - (size - held);
  // What came otherwise since the last glance was learnt from otherwise.
  if (look.place != held || size - held > kTold)
    return guess(look, held, tokens, size - held);
  int32_t done = DP_OK;
  for (int32_t at = held; done == DP_OK && at < size; ++at, ++tokens) {
    if (look.guess >= 0) learn(look, look.guess == *tokens);
    done = guess(look, at, tokens, 1);
  }
  return done;
}

double chance_of(const dp_look &look) {
  const double *w = look.weights;
  return share_of(w[0] * odds_of(look.score) + w[1] + w[3] * *look.recent);
}

// Tokens that are right in a row behind a first one.
double run_of(const dp_look &look) {
  double found = 0, survival = 1;
  for (int depth = 1; depth <= kAhead; ++depth) {
    const double reach = look.reach[depth];
    const double odds = std::log(std::max(reach, 1e-3) / std::max(1 - reach, 1e-3));
    survival *= 1 / (1 + std::exp(-odds - 2 * *look.recent));
    found += survival;
  }
  return found;
}

// What a draft is expected to bring beyond what asking for it takes.
double surplus_of(const dp_look *looks, int32_t count, double worth, double row, double asking) {
  double first = 0, more = 0;
  for (const dp_look *look = looks; look < looks + count; ++look) {
    if (look->guess < 0) continue;
    first = std::max(first, chance_of(*look));
    more = std::max(more, run_of(*look));
  }
  // A child is never likelier than its parent: behind a first token that does not pay nothing does.
  const double gain = worth * first - row;
  return gain > 0 ? gain * (1 + more) - asking : gain - asking;
}

}  // namespace

DP_API int32_t dp_glance(dp_look *const *texts, int32_t count, const int32_t *looks,
                         const int32_t *tokens, const int32_t *sizes, const int32_t *fresh,
                         const double *worth, const double *row, double asking, double *surplus,
                         int32_t *guesses) {
  if (!texts || count < 0 || !looks || !sizes || !fresh || !worth || !row || !surplus ||
      !guesses)
    return DP_BAD_ARGUMENT;
  for (int32_t text = 0; text < count; tokens += fresh[text++]) {
    if (looks[text] < 1 || fresh[text] < 0 || sizes[text] < 1) return DP_BAD_ARGUMENT;
    if (fresh[text] && !tokens) return DP_BAD_ARGUMENT;
    guesses[text] = 0;
    for (int32_t at = 0; at < looks[text]; ++at) {
      dp_look &look = texts[text][at];
      if (!look.weights || !look.variances || !look.reach || !look.recent) return DP_BAD_ARGUMENT;
      const int32_t done = follow(look, tokens, sizes[text], fresh[text]);
      if (done != DP_OK) return done;
      guesses[text] += look.guess >= 0;
    }
    surplus[text] = surplus_of(texts[text], looks[text], worth[text], row[text], asking);
  }
  return DP_OK;
}
