// Whole drafts of look-ups for all texts of a batch, merged, and which nodes of them a step runs: what
// the look-ups, sources.py, offers.py and allotting.py do text by text, of which this is the fast twin.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <vector>

#include "calibration.h"
#include "draftproof.h"
#include "looks.h"

namespace {

constexpr int kDeep = 16, kSiblings = 3, kLargest = 256;  // see sources.py
constexpr double kSafely = 1.25;                          // see price.py

bool complete(const dp_look *look) {
  return look && look->weights && look->variances && look->reach && look->recent && look->tokens &&
         look->parents && look->scores && (look->ngrams || look->automaton);
}

bool complete(const dp_offer *offer) {
  return offer && offer->tokens && offer->parents && offer->owners && offer->depths &&
         offer->chances && offer->survivals && offer->room > 0;
}

// The text has `size` tokens, of which `fresh` are given.
int32_t draft(dp_look &look, const int32_t *tokens, int32_t size, int32_t fresh, int32_t useful,
              int32_t room) {
  const int32_t held = held_by(look, size, fresh), more = size - held;
  if (held < 0) return held;
  tokens += fresh - more;
  look.guess = -1;  // a whole draft tells the same: it would be learnt from twice
  const int32_t longest = std::min(look.longest, useful);
  if (look.ngrams) {
    const int32_t most = std::max(0, std::min({longest, room - 1, size}));
    look.drafted = dp_ngrams_draft(look.ngrams, held, tokens, more, most, look.matching,
                                   look.branches, look.tokens, look.parents, look.scores);
    return std::min(look.drafted, 0);
  }
  look.drafted = 1, look.tokens[0] = 0, look.parents[0] = -1, look.scores[0] = 1.0;
  const dp_automaton *where;
  int32_t state;
  const int32_t length = find_longest(look, held, tokens, more, &where, &state);
  if (length < look.matching || room < 2) return std::min(length, 0);
  const int32_t nodes =
      dp_automaton_likeliest(where, state, longest, room - 1, look.least, look.tokens + 1,
                             look.parents + 1, look.scores + 1);
  look.drafted += std::max(nodes, 0);
  return std::min(nodes, 0);
}

double conditional(const dp_look &look, int32_t node) {
  const double before = look.scores[look.parents[node]];
  return before > 0 ? look.scores[node] / before : 0.0;
}

// Calibration.chances and Offer.add.
void merge(dp_offer &offer, const dp_look &look, double least) {
  const double *w = look.weights, base = w[1] + w[3] * *look.recent;
  double survivals[kLargest + 1] = {1.0};
  int32_t depths[kLargest + 1] = {0}, nodes[kLargest + 1] = {0};
  const int32_t others = offer.count;
  const auto taken = [&](int32_t under) {
    for (int32_t at = 1; at < others; ++at)
      if (offer.parents[at] == under && offer.owners[at] == look.yields) return true;
    return false;
  };
  for (int32_t node = 1; node < std::min(look.drafted, kLargest + 1); ++node) {
    const int32_t parent = look.parents[node], token = look.tokens[node];
    const double before = survivals[parent];
    depths[node] = depths[parent] + 1;
    const double chance = before > least ? share_of(w[0] * odds_of(conditional(look, node)) + base +
                                                    w[2] * far_of(depths[node]))
                                         : 0.0;
    survivals[node] = before * chance;
    const int32_t under = chance != 0 ? nodes[parent] : -1;
    nodes[node] = -1;
    if (under < 0 || offer.depths[under] >= offer.depth) continue;
    int32_t at = under + 1;
    while (at < offer.count && (offer.parents[at] != under || offer.tokens[at] != token)) ++at;
    if (at == offer.count) {
      if (at == offer.room || taken(under)) continue;
      offer.tokens[at] = token, offer.parents[at] = under, offer.owners[at] = look.owner;
      offer.chances[at] = chance, offer.depths[at] = offer.depths[under] + 1;
      ++offer.count;
    } else if (offer.owners[at] != look.owner) {
      offer.chances[at] = std::max(offer.chances[at], chance);
    }
    nodes[node] = at;
  }
  for (int32_t node = 1; node < offer.count; ++node)
    offer.survivals[node] = offer.survivals[offer.parents[node]] * offer.chances[node];
}

// Source.learn.
int32_t learn(dp_look &look, const int32_t *written, int32_t count) {
  if (look.drafted < 2) return -1;
  int32_t node = 0, rights = 0;
  for (int depth = 1; depth <= std::min(count, kDeep); ++depth) {
    const int32_t token = written[depth - 1];
    int32_t following = -1, children = 0;
    double missed = 1.0;
    for (int32_t child = node + 1; child < look.drafted && children < kSiblings; ++child) {
      if (look.parents[child] != node) continue;
      ++children;
      const bool right = look.tokens[child] == token;
      missed -= learn_token(look.weights, look.variances, conditional(look, child), depth,
                            *look.recent, right);
      if (right && following < 0) following = child;
    }
    if (!children) break;
    const double reached = following >= 0 ? 1.0 : 0.0;
    look.reach[depth - 1] += (reached - look.reach[depth - 1]) * kReach;
    *look.recent += (reached - 1 + std::max(missed, 0.0) - *look.recent) * kRecent;
    if (following < 0) break;
    node = following, rights = depth;
  }
  return rights;
}

double extra(const double *curve, const dp_price &price, int32_t nodes) {
  const int32_t last = std::min(price.rows + nodes, price.most);
  const double beyond = (price.rows + nodes - last) * curve[price.most] / price.most;
  return curve[last] - curve[std::min(price.rows, price.most)] + beyond;
}

struct Listed {
  double less;
  int32_t text, node;
  bool operator<(const Listed &other) const {
    if (less != other.less) return less < other.less;
    return text != other.text ? text < other.text : node < other.node;
  }
};

}  // namespace

DP_API int32_t dp_draft(dp_look *const *texts, dp_offer *const *offers, int32_t count,
                        const int32_t *looks, const int32_t *tokens, const int32_t *sizes,
                        const int32_t *fresh, const int32_t *rooms, int32_t useful, double least,
                        int32_t vocabulary, int32_t *drafted) {
  if (!texts || !offers || count < 0 || !looks || !sizes || !fresh || !rooms || useful < 0 || !drafted)
    return DP_BAD_ARGUMENT;
  const auto outside = [&](int32_t token) { return token < 0 || token >= vocabulary; };
  for (int32_t text = 0; text < count; tokens += fresh[text++]) {
    if (!complete(offers[text]) || sizes[text] < 1) return DP_BAD_ARGUMENT;
    if (looks[text] < 0 || fresh[text] < 0 || (fresh[text] && !tokens)) return DP_BAD_ARGUMENT;
    dp_offer &offer = *offers[text];
    offer.count = 1, offer.depth = rooms[text] - 1;
    offer.parents[0] = offer.owners[0] = -1, offer.depths[0] = 0;
    offer.chances[0] = offer.survivals[0] = 1.0;
    for (int32_t at = 0; at < looks[text]; ++at) {
      if (!complete(texts[text] + at)) return DP_BAD_ARGUMENT;
      dp_look &look = texts[text][at];
      const int32_t done = draft(look, tokens, sizes[text], fresh[text], useful, rooms[text]);
      if (done != DP_OK) {
        look.drafted = 0;
        return done;
      }
      const bool sound = std::none_of(look.tokens + 1, look.tokens + look.drafted, outside);
      *drafted++ = sound ? look.drafted : -1;
      if (sound) merge(offer, look, least);
    }
  }
  return DP_OK;
}

DP_API int32_t dp_learn(dp_look *const *texts, int32_t count, const int32_t *looks,
                        const int32_t *tokens, const int32_t *written, int32_t *right) {
  if (!texts || count < 0 || !looks || !written || !right) return DP_BAD_ARGUMENT;
  for (int32_t text = 0; text < count; tokens += written[text++]) {
    if (looks[text] < 0 || written[text] < 0 || (written[text] && !tokens)) return DP_BAD_ARGUMENT;
    for (int32_t at = 0; at < looks[text]; ++at) {
      if (!complete(texts[text] + at)) return DP_BAD_ARGUMENT;
      *right++ = learn(texts[text][at], tokens, written[text]);
    }
  }
  return DP_OK;
}

DP_API int32_t dp_allot(dp_offer *const *offers, int32_t count, const dp_price *price,
                        const double *weights, const double *lengths, const double *lefts,
                        const double *bets, const int32_t *limits, int32_t *kept, int32_t *counts,
                        double *brings) try {
  if (!offers || count < 0 || !price || !weights || !lengths || !lefts || !bets || !limits || !kept ||
      !counts || !brings || !price->curve || !price->known || price->most < 1 || price->rows < 0)
    return DP_BAD_ARGUMENT;
  std::vector<Listed> listed;
  double affordable = 0, risked = 0;
  for (int32_t text = 0; text < count; ++text) {
    if (!complete(offers[text])) return DP_BAD_ARGUMENT;
    counts[text] = 1, brings[text] = 0.0;
    if (lefts[text] > 0) affordable += lefts[text];
    if (bets[text] > 0) risked += bets[text];
    const double row = price->rate * price->attention * lengths[text];
    for (int32_t node = 1; node < offers[text]->count; ++node)
      if (const double worth = weights[text] * offers[text]->survivals[node]; worth > row)
        listed.push_back({row - worth, text, node});
  }
  std::sort(listed.begin(), listed.end());
  affordable = std::min(price->left, affordable);
  const int32_t beyond = std::max(0, price->most - price->rows);
  const int32_t most = std::min(int32_t(listed.size()), price->room < 0 ? beyond : std::min(beyond, price->room));
  const double own = price->curve[std::min(price->rows, price->most)];
  const auto vain = [&](const Listed &each) { return 1 - offers[each.text]->survivals[each.node]; };
  double worth = 0, risk = 0, best = 0;
  int32_t chosen = 0;
  for (int32_t at = 1; at <= most; ++at) {
    worth -= listed[at - 1].less, risk += vain(listed[at - 1]);
    const double gain = worth - kSafely * price->rate * (price->curve[price->rows + at] - own);
    const double likely = extra(price->known, *price, at);
    if (gain > best && likely <= affordable && likely * risk <= risked * at) best = gain, chosen = at;
  }
  const double each = chosen ? extra(price->known, *price, chosen) / chosen : 0.0;
  std::vector<std::vector<int32_t>> nodes(chosen ? count : 0);
  std::vector<double> risks(chosen ? count : 0);
  for (int32_t at = 0; at < chosen; ++at) {
    const Listed &next = listed[at];
    const double cost = std::max(each + price->attention * lengths[next.text], 1e-9);
    const double risk_now = risks[next.text] + cost * vain(next);
    if (counts[next.text] > std::min(double(limits[next.text]), lefts[next.text] / cost) ||
        risk_now > bets[next.text])
      continue;
    risks[next.text] = risk_now;
    nodes[next.text].push_back(next.node);
    ++counts[next.text];
    brings[next.text] -= next.less / price->rate + each;
  }
  for (int32_t text = 0; text < count; ++text) {
    *kept++ = 0;
    if (!chosen) continue;
    std::sort(nodes[text].begin(), nodes[text].end());
    kept = std::copy(nodes[text].begin(), nodes[text].end(), kept);
  }
  return DP_OK;
} catch (const std::exception &) {
  return DP_NO_MEMORY;
}
