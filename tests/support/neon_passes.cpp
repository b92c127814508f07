// Whole passes of a small model of each format, by the set that the first argument names ("twin": the
// generic loops with fused sums): their bits must not depend on the pass. The logits of plain decoding
// go into the file that the second argument names. Prints the set, or what is wrong and ends with 1.
#include <cstdlib>

#include "model.h"
#include "neon_twin.h"
#include "team.h"

namespace {

constexpr int kHidden = 256, kVocabulary = 70, kLength = 21, kRoom = 64, kLayers = 2;

void must(bool holds, const char *what, int format) {
  if (holds) return;
  std::printf("wrong: %s, format %d\n", what, format);
  std::exit(1);
}

dp_model *model_of(int format, const std::string &set) {
  dp_shape s{};
  s.layers = kLayers;
  s.hidden = s.intermediate = kHidden;
  s.heads = 8;
  s.kv_heads = 2;
  s.head_dim = 32;
  s.vocabulary = kVocabulary;
  s.has_qk_norm = 1;
  s.eps = 1e-6f;
  s.rope_scale = 1.0f;
  s.attention_scale = 0.2f;
  std::vector<int32_t> formats(DP_Q + (DP_MATRICES - DP_Q) * s.layers, format);
  formats[DP_EMBEDDINGS] = -1;
  dp_model *model = dp_model_new(&s, formats.data(), set == "twin" ? "portable" : set.c_str());
  must(model, "a model", format);
  if (set == "twin") model->kernels = &kTwin;
  Random random{uint64_t(format)};
  const auto matrix = [&](int which, int layer, int outputs) {
    const bool blocks = kFormats[format].source_bytes;
    const auto numbers = random.numbers(size_t(outputs) * kHidden, 0.1f), bias = random.numbers(outputs, 0.1f);
    const auto rows = blocks ? blocks_of(format, outputs, kHidden, random, 0.03f, 0.3f) : std::vector<uint8_t>();
    const void *data = blocks ? static_cast<const void *>(rows.data()) : numbers.data();
    const int source = blocks ? DP_SOURCE_BLOCKS : DP_SOURCE_FP32;
    must(!dp_model_matrix(model, which, layer, data, source, outputs, kHidden), "a matrix", format);
    must(!dp_model_bias(model, which, layer, bias.data(), outputs), "a bias", format);
  };
  const auto vector = [&](int which, int layer, int size, float value) {
    auto data = random.numbers(size, 0.1f);
    for (float &each : data) each += value;
    must(!dp_model_vector(model, which, layer, data.data(), size), "a vector", format);
  };
  matrix(DP_HEAD, 0, kVocabulary);
  vector(DP_NORM_LAST, 0, kHidden, 1.0f);
  vector(DP_INV_FREQ, 0, 16, 0.3f);
  for (int layer = 0; layer < s.layers; ++layer) {
    matrix(DP_Q, layer, 256);
    for (int which : {DP_K, DP_V}) matrix(which, layer, 64);
    for (int which : {DP_O, DP_GATE, DP_UP, DP_DOWN}) matrix(which, layer, kHidden);
    for (int which : {DP_NORM_IN, DP_NORM_POST}) vector(which, layer, kHidden, 1.0f);
    for (int which : {DP_NORM_Q, DP_NORM_K}) vector(which, layer, 32, 1.0f);
    const float window = layer ? 9.0f : 0.0f;
    must(!dp_model_vector(model, DP_WINDOW, layer, &window, 1), "a window", format);
  }
  return model;
}

int32_t token(int position) { return (5 * position + 3) % kVocabulary; }

// Logits of the nodes behind `cached` and `fresh` tokens.
std::vector<float> forward(dp_model *model, dp_team *team, dp_row *row, int cached, int fresh,
                           const std::vector<int32_t> &nodes, const std::vector<int32_t> &parents) {
  const int count = int(nodes.size()), rows = fresh + count;
  std::vector<int32_t> tokens(rows), wanted(count), at(count), best(count);
  for (int r = 0; r < fresh; ++r) tokens[r] = token(cached + r);
  for (int i = 0; i < count; ++i) {
    tokens[fresh + i] = nodes[i];
    wanted[i] = fresh + i;
    at[i] = i;
  }
  std::vector<float> logits(size_t(count) * kVocabulary);
  const dp_segment segment{row, 0, rows, cached, fresh, 0, count, 0};
  dp_pass pass{};
  pass.rows = rows;
  pass.tokens = tokens.data();
  pass.segments = 1;
  pass.segment = &segment;
  pass.parents = parents.data();
  pass.wanted = count;
  pass.wanted_rows = wanted.data();
  pass.logits_rows = at.data();
  pass.logits = logits.data();
  pass.best = best.data();
  pass.layers = kLayers;
  must(dp_forward(model, team, &pass) == DP_OK, "a pass", model->head.panels[0].format);
  return logits;
}

bool same(const float *a, const float *b, size_t count) { return !std::memcmp(a, b, count * 4); }

// Chains: parts of a tile, one, more than one; and a tree whose one branch is the text.
void compare(dp_model *model, dp_team *team, dp_row *row, const std::vector<float> &plain, int format) {
  for (int length : {2, 3, 4, 5, 6, 7, 9, 12, 13, kLength}) {
    std::vector<int32_t> nodes(length), parents(length);
    const int before = kLength - length;
    for (int i = 0; i < length; ++i) {
      nodes[i] = token(before + i);
      parents[i] = i - 1;
    }
    const auto logits = forward(model, team, row, 0, before, nodes, parents);
    must(same(logits.data(), plain.data() + before * kVocabulary, logits.size()), "a chain", format);
  }
  std::vector<int32_t> nodes{token(10)}, parents{-1};
  for (int i = 1; i < 11; ++i) {
    nodes.insert(nodes.end(), {(9 * i) % kVocabulary, token(10 + i)});
    parents.insert(parents.end(), {i == 1 ? 0 : 2 * i - 3, i == 1 ? 0 : 2 * i - 2});
  }
  const auto logits = forward(model, team, row, 4, 6, nodes, parents);
  for (int i = 0; i < 11; ++i) {
    const float *node = logits.data() + 2 * i * kVocabulary, *want = plain.data() + (10 + i) * kVocabulary;
    must(same(node, want, kVocabulary), "a node", format);
  }
}

// What would be denormal is zero, on every thread, and afterwards the caller's is what it was.
void denormals(const std::string &set, dp_team *team) {
  dp_model *model = model_of(DP_BF16, set);
  const std::vector<float> weights(kVocabulary * kHidden, 0x1p-70f), none(kVocabulary, 0.0f);
  must(!dp_model_matrix(model, DP_HEAD, 0, weights.data(), DP_SOURCE_FP32, kVocabulary, kHidden),
       "a matrix", DP_BF16);
  must(!dp_model_bias(model, DP_HEAD, 0, none.data(), kVocabulary), "a bias", DP_BF16);
  const std::vector<float> hidden(40 * kHidden, 0x1p-65f);
  std::vector<float> logits(40 * kVocabulary, 1.0f);
  must(dp_head(model, team, hidden.data(), 40, logits.data()) == DP_OK, "a product", DP_BF16);
  for (float each : logits) must(bits_of(each) == 0, "a denormal", DP_BF16);
  volatile float small = 0x1p-100f;
  small = small * 0x1p-40f;
  must(bits_of(small) != 0, "the caller's denormals", DP_BF16);
  dp_model_free(model);
}

}  // namespace

int main(int, char **arguments) {
  const std::string set = arguments[1];
  FILE *file = std::fopen(arguments[2], "wb");
  dp_team *alone = dp_team_new(1), *team = dp_team_new(3);
  for (int format = 0; format < DP_FORMATS; ++format) {
    dp_model *model = model_of(format, set);
    dp_row *row = dp_row_new(model);
    must(row && dp_row_reserve(row, kRoom) == DP_OK, "a row", format);
    std::vector<float> plain;
    for (int position = 0; position < kLength; ++position) {
      const auto more = forward(model, alone, row, position, 0, {token(position)}, {-1});
      plain.insert(plain.end(), more.begin(), more.end());
    }
    for (float each : plain) must(std::isfinite(each), "a number", format);
    compare(model, team, row, plain, format);
    std::fwrite(plain.data(), 4, plain.size(), file);
    dp_row_free(row);
    dp_model_free(model);
  }
  denormals(set, team);
  dp_team_free(alone);
  dp_team_free(team);
  std::fclose(file);
  std::printf("%s\n", set == "twin" ? "twin" : dp_kernels(set.c_str()));
}
