// Look-ups by their first token, for all texts of a batch in one call: what glancing.py and
// calibration.py do one by one, of which this is the fast twin.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "draftproof.h"

namespace {

constexpr int32_t kTold = 8;       // tokens of a text that are learnt from one by one, at most
constexpr int kAhead = 4;          // tokens behind the first one that are hoped for
constexpr double kAgreeing = 0.5;  // see offers.py
constexpr double kRecent = 1.0 / 12, kReach = 1.0 / 24;  // see sources.py
constexpr double kLeast = 1e-3, kWidest = 4.0;           // see calibration.py
constexpr double kDrifts[] = {2e-4, 1e-3, 1e-4, 1e-3};

double share(double odds) { return odds > -30 ? 1 / (1 + std::exp(-odds)) : 0.0; }

double odds_of(double score) {
  if (score > kLeast && score < 1 - kLeast) return std::log(score / (1 - score));
  const double most = std::log((1 - kLeast) / kLeast);
  return score > kLeast ? most : -most;
}

// Calibration.learn of a token one deep: the share of the depth is nothing there.
void learn(dp_look &look, bool right) {
  double *w = look.weights, *v = look.variances;
  const double odds = odds_of(look.score), recent = *look.recent;
  const double expected = share(w[0] * odds + w[1] + w[3] * recent);
  const double curvature = std::max(expected * (1 - expected), 0.02);
  const double ta = v[0] * odds + v[2], tb = v[2] * odds + v[1], td = v[4] * recent;
  const double scale = 1 / (1 / curvature + ta * odds + tb + td * recent);
  const double step = ((right ? 1.0 : 0.0) - expected) * scale / curvature;
  w[0] = std::min(std::max(w[0] + ta * step, 0.0), 4.0);
  w[1] += tb * step, w[3] += td * step;
  v[0] = std::min(v[0] - ta * ta * scale + kDrifts[0], kWidest);
  v[1] = std::min(v[1] - tb * tb * scale + kDrifts[1], kWidest);
  v[2] -= ta * tb * scale;
  v[3] = std::min(v[3] + kDrifts[2], kWidest);
  v[4] = std::min(v[4] - td * td * scale + kDrifts[3], kWidest);
  const double reached = right ? 1.0 : 0.0;
  look.reach[0] += (reached - look.reach[0]) * kReach;
  *look.recent += (reached - expected - recent) * kRecent;
}

// The text goes on with `tokens`; where its end is found in those of others, and what follows it.
int32_t guess_longest(dp_look &look, const int32_t *tokens, int32_t count, bool goes_on) {
  int32_t done = dp_automaton_append(look.automaton, tokens, count);
  if (done != DP_OK) return done;
  dp_automaton *longest = look.automaton, *const others[] = {look.newer, look.older};
  int32_t length = 0, state = dp_automaton_repeated(longest, &length);
  for (int each = 0; each < 2; ++each) {
    int32_t &at = look.states[each], &matched = look.lengths[each];
    if (!others[each]) continue;
    if (goes_on) {
      done = dp_automaton_follow(others[each], *tokens, look.context, &at, &matched);
    } else {
      at = dp_automaton_match_end(look.automaton, look.context, others[each], &matched);
      done = std::min(at, 0);
    }
    if (done != DP_OK) return done;
    if (matched > length) longest = others[each], state = at, length = matched;
  }
  int32_t parent;
  if (length < look.matching) return 0;
  return dp_automaton_likeliest(longest, state, 1, 1, look.least, &look.guess, &parent, &look.score);
}

// The text goes on with `tokens` behind the first `kept`; what would be drafted behind it.
// goes_on: by one token since the last call.
int32_t guess(dp_look &look, int32_t kept, const int32_t *tokens, int32_t count, bool goes_on) {
  look.guess = -1, look.place = kept + count;
  if (!look.ngrams) return std::min(guess_longest(look, tokens, count, goes_on), 0);
  int32_t made[2], parents[2];  // node 0 is the last token of the text
  double scores[2];
  const int32_t nodes = dp_ngrams_draft(look.ngrams, kept, tokens, count, 1, look.matching, 1, made,
                                        parents, scores);
  if (nodes > 1) look.guess = made[1], look.score = scores[1];
  return std::min(nodes, 0);
}

// The text has `size` tokens, of which `fresh` are given.
int32_t follow(dp_look &look, const int32_t *tokens, int32_t size, int32_t fresh) {
  const int32_t held = look.ngrams ? dp_ngrams_size(look.ngrams) : dp_automaton_size(look.automaton);
  if (held > size || size - held > fresh) return DP_BAD_ARGUMENT;
  tokens += fresh - (size - held);
  // What came otherwise since the last glance was learnt from otherwise.
  if (look.place != held || size - held > kTold)
    return guess(look, held, tokens, size - held, false);
  int32_t done = DP_OK;
  for (int32_t at = held; done == DP_OK && at < size; ++at, ++tokens) {
    if (look.guess >= 0) learn(look, look.guess == *tokens);
    done = guess(look, at, tokens, 1, true);
  }
  return done;
}

double chance_of(const dp_look &look) {
  const double *w = look.weights;
  return share(w[0] * odds_of(look.score) + w[1] + w[3] * *look.recent);
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
    const double chance = chance_of(*look);
    const double low = std::min(first, chance), high = std::max(first, chance);
    first = high + kAgreeing * low * (1 - high);
    more = std::max(more, run_of(*look));
  }
  // A child is never likelier than its parent: behind a first token that does not pay nothing does.
  const double gain = worth * first - row;
  return gain > 0 ? gain * (1 + more) - asking : gain - asking;
}

}  // namespace

DP_API int32_t dp_glance(dp_look *const *texts, int32_t count, const int32_t *looks,
                         const int32_t *tokens, const int32_t *sizes, const int32_t *fresh,
                         const double *worth, const double *row, double asking, double *surplus) {
  if (!texts || count < 0 || !looks || !tokens || !sizes || !fresh || !worth || !row || !surplus)
    return DP_BAD_ARGUMENT;
  for (int32_t text = 0; text < count; tokens += fresh[text++]) {
    if (looks[text] < 1 || fresh[text] < 0 || sizes[text] < 1) return DP_BAD_ARGUMENT;
    for (int32_t at = 0; at < looks[text]; ++at) {
      dp_look &look = texts[text][at];
      if (!look.weights || !look.variances || !look.reach || !look.recent) return DP_BAD_ARGUMENT;
      const int32_t done = follow(look, tokens, sizes[text], fresh[text]);
      if (done != DP_OK) return done;
    }
    surplus[text] = surplus_of(texts[text], looks[text], worth[text], row[text], asking);
  }
  return DP_OK;
}
