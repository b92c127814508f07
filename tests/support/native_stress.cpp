// Drives the C interface from several threads, as a program that a sanitiser watches.
// Threads share models and a team; rows, teams and models come and go; every logit is compared with
// what one thread alone computed. "race", "overflow" and "undefined" plant what must be noticed.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "draftproof.h"

namespace {

constexpr int kVocabulary = 70, kHidden = 36, kSlots = 200;

void must(bool holds, const char *what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(3);
}

float number(uint32_t &state) {
  state = state * 1664525u + 1013904223u;
  return float(int32_t(state >> 8) - (1 << 23)) / float(1 << 24);
}

dp_model *model_of(int format) {
  dp_shape s{};
  s.layers = 2;
  s.hidden = kHidden;
  s.heads = 6;
  s.kv_heads = 2;
  s.head_dim = 16;
  s.intermediate = 50;
  s.vocabulary = kVocabulary;
  s.has_qk_norm = 1;
  s.eps = 1e-6f;
  s.rope_scale = 1.0f;
  s.attention_scale = 0.25f;
  std::vector<int32_t> formats(DP_Q + (DP_MATRICES - DP_Q) * s.layers, format);
  formats[DP_EMBEDDINGS] = -1;
  dp_model *model = dp_model_new(&s, formats.data(), "");
  must(model, "a model");
  uint32_t state = 7;
  const auto matrix = [&](int which, int layer, int outputs, int inputs) {
    std::vector<float> data(size_t(outputs) * inputs), bias(outputs);
    for (float &each : data) each = number(state);
    for (float &each : bias) each = number(state);
    must(!dp_model_matrix(model, which, layer, data.data(), DP_SOURCE_FP32, outputs, inputs), "a matrix");
    must(!dp_model_bias(model, which, layer, bias.data(), outputs), "a bias");
  };
  const auto vector = [&](int which, int layer, int size, float value) {
    const std::vector<float> data(size, value);
    must(!dp_model_vector(model, which, layer, data.data(), size), "a vector");
  };
  matrix(DP_HEAD, 0, kVocabulary, kHidden);
  vector(DP_NORM_LAST, 0, kHidden, 1.0f);
  vector(DP_INV_FREQ, 0, 8, 0.3f);
  for (int layer = 0; layer < s.layers; ++layer) {
    matrix(DP_Q, layer, 96, kHidden);
    matrix(DP_K, layer, 32, kHidden);
    matrix(DP_V, layer, 32, kHidden);
    matrix(DP_O, layer, kHidden, 96);
    matrix(DP_GATE, layer, 50, kHidden);
    matrix(DP_UP, layer, 50, kHidden);
    matrix(DP_DOWN, layer, kHidden, 50);
    vector(DP_NORM_IN, layer, kHidden, 1.0f);
    vector(DP_NORM_POST, layer, kHidden, 0.9f);
    vector(DP_NORM_Q, layer, 16, 1.1f);
    vector(DP_NORM_K, layer, 16, 1.0f);
    vector(DP_WINDOW, layer, 1, layer ? 11.0f : 0.0f);
  }
  return model;
}

// `fresh` committed tokens behind `cached`, then a tree; logits and taps of its nodes.
std::vector<float> forward(dp_model *model, dp_team *team, dp_row *row, int cached, int fresh,
                           const std::vector<int32_t> &parents, int missing = 0) {
  const int nodes = int(parents.size()), rows = fresh + nodes;
  std::vector<int32_t> tokens(rows), wanted(nodes), at(nodes), best(nodes);
  for (int r = 0; r < fresh; ++r) tokens[r] = (cached + r) * 7 % kVocabulary;
  for (int i = 0; i < nodes; ++i) {
    tokens[fresh + i] = (cached + fresh + 5 * i) % kVocabulary;
    wanted[i] = fresh + i;
    at[i] = i;
  }
  std::vector<float> logits(size_t(nodes) * kVocabulary - missing), hidden(size_t(nodes) * kHidden * 2);
  const int32_t taps[] = {1, 2};
  const dp_segment segment{row, 0, rows, cached, fresh, 0, nodes, 0};
  dp_pass pass{};
  pass.rows = rows;
  pass.tokens = tokens.data();
  pass.segments = 1;
  pass.segment = &segment;
  pass.parents = parents.data();
  pass.wanted = nodes;
  pass.wanted_rows = wanted.data();
  pass.logits_rows = at.data();
  pass.logits = logits.data();
  pass.best = best.data();
  pass.taps = 2;
  pass.tap_layers = taps;
  pass.hidden = hidden.data();
  pass.layers = 2;
  must(dp_forward(model, team, &pass) == DP_OK, "a pass");
  logits.insert(logits.end(), hidden.begin(), hidden.end());
  return logits;
}

dp_row *row_of(const dp_model *model, int slots) {
  dp_row *row = dp_row_new(model);
  must(row && dp_row_reserve(row, slots) == DP_OK, "a row");
  return row;
}

const std::vector<int32_t> kTree{-1, 0, 0, 1, 1, 2, 5, 0}, kChain{-1, 0, 1};

// A prompt in slices, a tree, a path of it kept, a copy of the row, a growing row: all their logits.
std::vector<float> text(dp_model *model, dp_team *team, int length) {
  dp_row *row = row_of(model, length), *other = row_of(model, 1);
  std::vector<float> all;
  const auto add = [&](const std::vector<float> &more) { all.insert(all.end(), more.begin(), more.end()); };
  must(dp_row_reserve(row, kSlots / 2) == DP_OK, "room");
  forward(model, team, row, 0, length / 2, {});
  add(forward(model, team, row, length / 2, length - length / 2, kTree));
  const int32_t path[] = {length + 2, length + 5};
  must(dp_row_move(row, path, 2, length + 1) == DP_OK, "a move");
  must(dp_row_reserve(row, kSlots) == DP_OK && dp_row_reserve(other, kSlots) == DP_OK, "room");
  add(forward(model, team, row, length + 3, 0, kChain));
  must(dp_row_copy(other, row, length + 3) == DP_OK, "a copy");
  add(forward(model, team, other, length + 3, 9, kTree));
  add(forward(model, team, row, length + 3, 0, kChain));
  std::vector<float> hidden(5 * kHidden, 0.25f), logits(5 * kVocabulary);
  must(dp_head(model, team, hidden.data(), 5, logits.data()) == DP_OK, "a product");
  add(logits);
  dp_row_free(other);
  dp_row_free(row);
  return all;
}

void race_of(int seed) {
  std::vector<float> logits(kVocabulary), noise(kVocabulary + 3);
  uint32_t state = seed;
  for (float &each : logits) each = number(state);
  dp_gumbel(seed, 1, 2, (kVocabulary + 3) / 4, noise.data());
  std::vector<int32_t> ids(5);
  std::vector<double> scaled(5);
  double mass;
  must(dp_race(logits.data(), kVocabulary, 0.8, seed, 1, 2, 5, ids.data(), scaled.data(),
               &mass) == 5, "a race");
}

void automaton_of(int seed) {
  dp_automaton *made = dp_automaton_new();
  uint32_t state = seed + 1;
  int32_t ids[64], parents[64], length;
  double shares[64];
  for (int round = 0; round < 40; ++round) {
    for (int32_t &each : ids) each = int32_t(3 * number(state));
    must(dp_automaton_append(made, ids, 64) == DP_OK, "a text");
    must(dp_automaton_undo(made, round) == DP_OK, "a text taken back");
    const int32_t at = dp_automaton_match(made, ids, 20, &length);
    must(at >= 0 && dp_automaton_repeated(made, &length) >= 0, "a match");
    must(dp_automaton_likeliest(made, at, 64, 9, 0.0, ids, parents, shares) >= 0, "what follows");
  }
  dp_automaton_free(made);
}

void glances_of(int seed) {
  dp_automaton *own = dp_automaton_new(), *newer = dp_automaton_new();
  dp_ngrams *ngrams = dp_ngrams_new(2);
  uint32_t state = seed + 1;
  std::vector<int32_t> text;
  const auto write = [&](int32_t count) {
    for (int32_t i = 0; i < count; ++i) text.push_back(int32_t(3 * (number(state) + 0.5f)));
  };
  write(200);
  must(dp_automaton_append(newer, text.data(), 200) == DP_OK, "an earlier text");
  text.clear();
  double known[2][26] = {}, scores[2][17], chances[2][32], curve[] = {0, 1, 1.1, 1.2, 1.3};
  int32_t nodes[2][2][17], merged[4][32], kept[32], counts, right[2];
  dp_look looks[2] = {};
  dp_offer offer = {32, 0, 0, merged[0], merged[1], merged[2], merged[3], chances[0], chances[1]};
  dp_offer *offers[] = {&offer};
  const dp_price price = {1.0, 0.0, 9.0, curve, curve, 4, 1, -1};
  for (int i = 0; i < 2; ++i) {
    dp_look &look = looks[i];
    look.matching = 2, look.context = 64, look.guess = look.place = look.found = -1;
    look.longest = i ? 16 : 8, look.branches = i ? 1 : 2, look.owner = i, look.yields = i - 1;
    look.tokens = nodes[i][0], look.parents = nodes[i][1], look.scores = scores[i];
    look.weights = known[i], look.variances = known[i] + 4, look.reach = known[i] + 9;
    look.recent = known[i] + 25;
  }
  looks[0].ngrams = ngrams, looks[1].automaton = own, looks[1].newer = newer;
  dp_look *texts[] = {looks};
  for (int round = 1; round < 40; ++round) {
    write(round % 12);
    const int32_t size = int32_t(text.size()), fresh = size - dp_ngrams_size(ngrams), both = 2;
    const double worth = 1, row = 0.1;
    double surplus;
    if (!size) continue;
    must(dp_glance(texts, 1, &both, text.data() + size - fresh, &size, &fresh, &worth, &row, 0.1,
                   &surplus, &counts) == DP_OK && counts <= 2, "a glance");
    must(looks[1].place == size && surplus == surplus, "a number");
    write(round % 3);
    const int32_t more = round % 3, grown = size + more, room = round;
    const int32_t *last = text.data() + size;
    must(dp_draft(texts, offers, 1, &both, last, &grown, &more, &room, round % 9, 0.01, 3, right) ==
             DP_OK && right[0] > 0 && right[1] > 0, "a draft");
    must(dp_learn(texts, 1, &both, text.data(), &round, right) == DP_OK, "what became of it");
    const double length = size, left = 2;
    must(dp_allot(offers, 1, &price, &worth, &length, &left, &left, &both, kept, &counts, &surplus) == DP_OK &&
             counts <= 3 && surplus == surplus, "what runs");
  }
  dp_automaton_free(own);
  dp_automaton_free(newer);
  dp_ngrams_free(ngrams);
}

void plant(const std::string &fault) {
  dp_team *team = dp_team_new(2);
  dp_model *model = model_of(DP_BF16);
  dp_row *row = row_of(model, kSlots);
  if (fault == "overflow") forward(model, team, row, 0, 3, kChain, 1);
  if (fault == "undefined") {
    alignas(8) char ids[24] = {};
    double out[2];
    dp_exponential(1, 2, 3, reinterpret_cast<const int64_t *>(ids + 4), 2, out);
  }
  if (fault == "race") {  // a row is one thread's at a time
    std::thread other([&] {
      const int32_t from = 9;
      for (int i = 0; i < 2000; ++i) dp_row_move(row, &from, 1, 3);
    });
    for (int i = 0; i < 20; ++i) forward(model, team, row, 0, 40, kChain);
    other.join();
  }
  dp_row_free(row);
  dp_model_free(model);
  dp_team_free(team);
}

}  // namespace

int main(int count, char **arguments) {
  if (count > 1) {
    plant(arguments[1]);
    return 0;
  }
  dp_team *team = dp_team_new(3), *alone = dp_team_new(1);
  dp_model *models[] = {model_of(DP_BF16), model_of(DP_INT8)};
  const int lengths[] = {2, 17, 61, 120};
  std::vector<std::vector<float>> want;
  for (int i = 0; i < 8; ++i) {
    dp_model *fresh = model_of(i % 2 ? DP_INT8 : DP_BF16);  // the shared ones grow in the threads
    want.push_back(text(fresh, alone, lengths[i / 2]));
    dp_model_free(fresh);
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 12; ++round) {
        const int i = (round * 3 + t) % 8;
        must(text(models[i % 2], team, lengths[i / 2]) == want[i], "the bits");
        race_of(round + t);
        automaton_of(round + t);
        glances_of(round + t);
        if (round % 4 == t) {
          dp_team *own = dp_team_new(1 + t);
          dp_model *mine = model_of(t % 2);
          must(text(mine, own, 17) == want[2 + t % 2], "the bits of a model of its own");
          dp_model_free(mine);
          must(dp_read_rate(own, 1 << 21, 3) > 0 && dp_tile_rate(own, t % 2, 40) > 0, "a rate");
          dp_team_free(own);
        }
      }
    });
  }
  for (std::thread &each : threads) each.join();
  for (dp_model *each : models) dp_model_free(each);
  dp_team_free(alone);
  dp_team_free(team);
  std::puts("whole");
}
