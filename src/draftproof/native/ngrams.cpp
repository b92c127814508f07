// What followed the same last tokens earlier in a text: the same as ngrams.py's, its fast twin.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "draftproof.h"

namespace {

constexpr int kRemembered = 16;  // latest places of an n-gram that are looked at
constexpr int32_t kLongest = 32;  // longer matches, and longer than an n-gram, are not told apart
constexpr double kDoubt = 1.0;    // tokens that must match before it is as likely right as wrong

}  // namespace

struct dp_ngrams {
  const int32_t size;  // tokens of an n-gram
  std::vector<int32_t> text;
  std::unordered_map<uint64_t, int32_t> latest;  // by hash: the last place behind such an n-gram
  std::vector<int32_t> before;  // of each place, the one before it of the same hash; -1: none
  bool broken = false;          // memory ran out in the middle of a change

  explicit dp_ngrams(int32_t size) : size(size) {}

  uint64_t hash(int32_t end) const {
    uint64_t found = 0;
    for (int32_t at = end - size; at < end; ++at)
      found = (found ^ uint32_t(text[at])) * 0x9E3779B97F4A7C15u + (found >> 29);
    return found;
  }

  void append(int32_t token) {  // its place is behind the n-gram that ended the text
    const int32_t place = int32_t(text.size());
    before.push_back(-1);
    if (place >= size) {
      const auto [at, fresh] = latest.try_emplace(hash(place), place);
      if (!fresh) before.back() = std::exchange(at->second, place);
    }
    text.push_back(token);
  }

  void cut(int32_t kept) {
    while (int32_t(text.size()) > kept) {
      text.pop_back();
      const int32_t place = int32_t(text.size());
      if (place >= size) {
        const auto at = latest.find(hash(place));
        at->second = before.back();
        if (at->second < 0) latest.erase(at);
      }
      before.pop_back();
    }
  }

  // How many tokens before `place` are the last ones.
  int32_t match(int32_t place) const {
    const int32_t most = std::min(place, std::max(kLongest, size)), end = int32_t(text.size());
    int32_t found = 0;
    while (found < most && text[place - 1 - found] == text[end - 1 - found]) ++found;
    return found;
  }
};

DP_API dp_ngrams *dp_ngrams_new(int32_t size) try {
  return size < 1 ? nullptr : new dp_ngrams(size);
} catch (const std::exception &) {
  return nullptr;
}

DP_API void dp_ngrams_free(dp_ngrams *ngrams) { delete ngrams; }

DP_API int32_t dp_ngrams_size(const dp_ngrams *ngrams) {
  return ngrams ? int32_t(ngrams->text.size()) : DP_BAD_ARGUMENT;
}

DP_API int32_t dp_ngrams_draft(dp_ngrams *ngrams, int32_t kept, const int32_t *more, int32_t count,
                               int32_t longest, int32_t enough, int32_t branches, int32_t *tokens,
                               int32_t *parents, double *scores) try {
  if (!ngrams || count < 0 || (count && !more) || longest < 0 || enough < 1 || branches < 1 ||
      !tokens || !parents || !scores)
    return DP_BAD_ARGUMENT;
  if (kept < 0 || size_t(kept) > ngrams->text.size() || kept + int64_t(count) < 1 ||
      kept + int64_t(count) > (1 << 29))
    return DP_BAD_ARGUMENT;
  if (ngrams->broken) return DP_NO_MEMORY;
  ngrams->cut(kept);
  for (int32_t i = 0; i < count; ++i) ngrams->append(more[i]);

  const std::vector<int32_t> &text = ngrams->text;
  const int32_t end = int32_t(text.size());
  tokens[0] = text.back(), parents[0] = -1, scores[0] = 1.0;
  if (end < ngrams->size) return 1;
  const auto at = ngrams->latest.find(ngrams->hash(end));
  std::pair<int32_t, int32_t> matches[kRemembered];  // length, place
  int looked = 0;
  for (int32_t place = at == ngrams->latest.end() ? -1 : at->second;
       place >= 0 && looked < kRemembered; place = ngrams->before[place])
    if (const int32_t length = ngrams->match(place); length >= ngrams->size)
      matches[looked++] = {length, place};
  if (!looked) return 1;
  std::sort(matches, matches + looked, std::greater<>());
  const double share = matches[0].first / (matches[0].first + kDoubt);
  enough = std::min(enough, matches[0].first);
  int32_t made = 1, different = 0;
  for (int i = 0; i < looked && different < branches && matches[i].first >= enough; ++i) {
    const int32_t place = matches[i].second, most = std::min(longest, end - place);
    int32_t node = 0;
    bool fresh = false;
    for (int32_t depth = 0; depth < most; ++depth) {
      const int32_t token = text[place + depth];
      int32_t child = node + 1;
      while (child < made && (parents[child] != node || tokens[child] != token)) ++child;
      if (child == made) {
        tokens[made] = token, parents[made] = node;
        scores[made++] = std::pow(share, depth + 1);
        fresh = true;
      }
      node = child;
    }
    different += fresh;
  }
  return made;
} catch (const std::exception &) {
  ngrams->broken = true;
  return DP_NO_MEMORY;
}
