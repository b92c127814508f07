// The suffix automaton of a growing text: the same as automaton.py's, of which this is the fast twin.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <queue>
#include <unordered_map>
#include <vector>

#include "draftproof.h"

namespace {

constexpr int kRepeats = 64;  // suffixes counted at most per token, the longest first
constexpr size_t kFew = 12;   // edges up to which looking at each is fast

struct Edge {
  int32_t token, to;
};

// The edges of a state, in the order in which they came; the last one may be taken back.
class Edges {
 public:
  Edges() = default;
  Edges(Edges &&) = default;
  Edges &operator=(Edges &&) = default;
  Edges(const Edges &other) : all_(other.all_) {
    if (other.places_) places_ = std::make_unique<Places>(*other.places_);
  }

  Edge *find(int32_t token) {
    if (!places_) {
      for (Edge &each : all_)
        if (each.token == token) return &each;
      return nullptr;
    }
    const auto place = places_->find(token);
    return place == places_->end() ? nullptr : &all_[place->second];
  }
  void add(int32_t token, int32_t to) {
    all_.push_back({token, to});
    if (places_) {
      (*places_)[token] = all_.size() - 1;
    } else if (all_.size() > kFew) {
      places_ = std::make_unique<Places>();
      for (size_t at = 0; at < all_.size(); ++at) (*places_)[all_[at].token] = at;
    }
  }
  void take_back() {
    if (places_) places_->erase(all_.back().token);
    all_.pop_back();
  }
  const std::vector<Edge> &all() const { return all_; }

 private:
  using Places = std::unordered_map<int32_t, size_t>;
  std::vector<Edge> all_;
  std::unique_ptr<Places> places_;
};

struct State {
  Edges next;
  int32_t link, length, count;
};

struct Branch {  // a continuation that may be drafted
  double share;
  int64_t order;
  int32_t parent, token, to;
  bool operator<(const Branch &other) const {  // of a heap: what comes later is less
    return share != other.share ? share < other.share : order > other.order;
  }
};

}  // namespace

struct dp_automaton {
  std::vector<State> states;
  std::vector<int32_t> tokens, ends, cloned;
  bool broken = false;  // memory ran out in the middle of a change

  dp_automaton() {
    states.push_back({{}, -1, 0, 0});
    ends.push_back(0);
  }

  void append(int32_t token) {
    const int32_t fresh = int32_t(states.size());
    int32_t at = ends.back();
    states.push_back({{}, -1, int32_t(tokens.size()) + 1, 0});
    ends.push_back(fresh);
    tokens.push_back(token);
    const Edge *edge = nullptr;
    while (at != -1 && !(edge = states[at].next.find(token))) {
      states[at].next.add(token, fresh);
      at = states[at].link;
    }
    if (at == -1) {
      states[fresh].link = 0;
    } else if (const int32_t target = edge->to; states[target].length == states[at].length + 1) {
      states[fresh].link = target;
    } else {
      State clone = states[target];
      clone.length = states[at].length + 1;
      states.push_back(std::move(clone));
      redirect(at, token, target, fresh + 1);
      states[target].link = states[fresh].link = fresh + 1;
      cloned.push_back(target);
    }
    tally(fresh, 1);
  }

  void undo() {
    const int32_t token = tokens.back(), fresh = ends.back(), clone = fresh + 1;
    tokens.pop_back();
    ends.pop_back();
    tally(fresh, -1);
    int32_t at = ends.back();
    for (const Edge *edge; at != -1 && (edge = states[at].next.find(token)) && edge->to == fresh;
         at = states[at].link)
      states[at].next.take_back();
    if (clone < int32_t(states.size())) {
      const int32_t target = cloned.back();
      cloned.pop_back();
      states[target].link = states[clone].link;
      redirect(at, token, clone, target);
    }
    states.resize(fresh);
  }

  // From `at` along the links: edges with this token that lead to `from` lead to `to`.
  void redirect(int32_t at, int32_t token, int32_t from, int32_t to) {
    for (Edge *edge; at != -1 && (edge = states[at].next.find(token)) && edge->to == from;
         at = states[at].link)
      edge->to = to;
  }

  // The longest suffix that the text holds, in `state` with `length` tokens, goes on by a token.
  void follow(int32_t token, int32_t &state, int32_t &length) {
    const Edge *edge;
    while (!(edge = states[state].next.find(token)) && state) {
      state = states[state].link;
      length = states[state].length;
    }
    state = edge ? edge->to : 0;
    length = edge ? length + 1 : 0;
  }

  void tally(int32_t state, int32_t more) {
    for (int i = 0; i < kRepeats; ++i) {
      states[state].count += more;
      state = states[state].link;
      if (state <= 0) break;
    }
  }
};

DP_API dp_automaton *dp_automaton_new(void) try {
  return new dp_automaton;
} catch (const std::exception &) {
  return nullptr;
}

DP_API void dp_automaton_free(dp_automaton *automaton) { delete automaton; }

DP_API int32_t dp_automaton_size(const dp_automaton *automaton) {
  return automaton ? int32_t(automaton->tokens.size()) : DP_BAD_ARGUMENT;
}

DP_API int32_t dp_automaton_append(dp_automaton *automaton, const int32_t *tokens,
                                   int32_t count) try {
  if (!automaton || count < 0 || (count && !tokens)) return DP_BAD_ARGUMENT;
  if (int64_t(automaton->tokens.size()) + count > (1 << 29)) return DP_BAD_ARGUMENT;
  if (automaton->broken) return DP_NO_MEMORY;
  for (int32_t i = 0; i < count; ++i) automaton->append(tokens[i]);
  return DP_OK;
} catch (const std::exception &) {
  automaton->broken = true;
  return DP_NO_MEMORY;
}

DP_API int32_t dp_automaton_undo(dp_automaton *automaton, int32_t count) try {
  if (!automaton || count < 0 || size_t(count) > automaton->tokens.size()) return DP_BAD_ARGUMENT;
  if (automaton->broken) return DP_NO_MEMORY;
  for (int32_t i = 0; i < count; ++i) automaton->undo();
  return DP_OK;
} catch (const std::exception &) {
  automaton->broken = true;
  return DP_NO_MEMORY;
}

DP_API int32_t dp_automaton_repeated(const dp_automaton *automaton, int32_t *length) {
  if (!automaton || !length) return DP_BAD_ARGUMENT;
  if (automaton->broken) return DP_NO_MEMORY;
  const int32_t state = std::max(0, automaton->states[automaton->ends.back()].link);
  *length = automaton->states[state].length;
  return state;
}

DP_API int32_t dp_automaton_match(dp_automaton *automaton, const int32_t *tokens, int32_t count,
                                  int32_t *length) {
  if (!automaton || count < 0 || (count && !tokens) || !length) return DP_BAD_ARGUMENT;
  if (automaton->broken) return DP_NO_MEMORY;
  int32_t state = 0, matched = 0;
  for (int32_t i = 0; i < count; ++i) automaton->follow(tokens[i], state, matched);
  *length = matched;
  return state;
}

DP_API int32_t dp_automaton_match_end(const dp_automaton *own, int32_t most,
                                      dp_automaton *automaton, int32_t *length) {
  if (!own || most < 0 || automaton == own) return DP_BAD_ARGUMENT;
  const int32_t looked = std::min(most, int32_t(own->tokens.size()));
  return dp_automaton_match(automaton, own->tokens.data() + own->tokens.size() - looked, looked,
                            length);
}

DP_API int32_t dp_automaton_follow(dp_automaton *automaton, int32_t token, int32_t most,
                                   int32_t *state, int32_t *length) {
  if (!automaton || most < 0 || !state || !length) return DP_BAD_ARGUMENT;
  if (automaton->broken) return DP_NO_MEMORY;
  if (*state < 0 || size_t(*state) >= automaton->states.size()) return DP_BAD_ARGUMENT;
  automaton->follow(token, *state, *length);
  // A longer match than is looked for is one of the shorter end too.
  const std::vector<State> &states = automaton->states;
  while (*state && *length > most && states[states[*state].link].length >= most)
    *state = states[*state].link;
  *length = std::min(*length, most);
  return DP_OK;
}

DP_API int32_t dp_automaton_likeliest(const dp_automaton *automaton, int32_t state, int32_t nodes,
                                      int32_t depth, double least, int32_t *tokens,
                                      int32_t *parents, double *shares) try {
  if (!automaton || nodes < 0 || !tokens || !parents || !shares) return DP_BAD_ARGUMENT;
  if (automaton->broken) return DP_NO_MEMORY;
  if (state < 0 || size_t(state) >= automaton->states.size()) return DP_BAD_ARGUMENT;
  std::priority_queue<Branch> heap;
  std::vector<int32_t> depths{0};
  int64_t order = 0;
  const auto push = [&](int32_t parent, int32_t at, double share) {
    if (depths[parent] >= depth) return;
    int64_t total = 0;
    for (const Edge &each : automaton->states[at].next.all())
      if (each.token >= 0) total += automaton->states[each.to].count;
    for (const Edge &each : automaton->states[at].next.all()) {
      if (each.token < 0) continue;
      const double part = total ? share * automaton->states[each.to].count / double(total) : 0.0;
      if (part >= least) heap.push({part, order++, parent, each.token, each.to});
    }
  };
  push(0, state, 1.0);
  int32_t count = 0;
  for (; !heap.empty() && count < nodes; ++count) {
    const Branch best = heap.top();
    heap.pop();
    tokens[count] = best.token;
    parents[count] = best.parent;
    shares[count] = best.share;
    depths.push_back(depths[best.parent] + 1);
    push(count + 1, best.to, best.share);
  }
  return count;
} catch (const std::exception &) {
  return DP_NO_MEMORY;
}

DP_API int32_t dp_automaton_draft(dp_automaton *own, int32_t kept, const int32_t *more,
                                  int32_t count, dp_automaton *newer, dp_automaton *older,
                                  int32_t context, int32_t matching, int32_t nodes, int32_t depth,
                                  double least, int32_t *tokens, int32_t *parents, double *shares) {
  if (!own || kept < 0 || size_t(kept) > own->tokens.size() || context < 0) return DP_BAD_ARGUMENT;
  if (newer == own || older == own) return DP_BAD_ARGUMENT;
  int32_t done = dp_automaton_undo(own, int32_t(own->tokens.size()) - kept);
  if (done == DP_OK) done = dp_automaton_append(own, more, count);
  if (done != DP_OK) return done;
  const dp_automaton *longest = own;
  int32_t length = 0, state = dp_automaton_repeated(own, &length);
  for (dp_automaton *each : {newer, older}) {
    if (!each || each->tokens.empty()) continue;
    int32_t matched = 0;
    const int32_t at = dp_automaton_match_end(own, context, each, &matched);
    if (at < 0) return at;
    if (matched > length) longest = each, state = at, length = matched;
  }
  if (length < matching || depth < 1) return 0;
  return dp_automaton_likeliest(longest, state, nodes, depth, least, tokens, parents, shares);
}
