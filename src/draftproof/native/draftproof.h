// The plain C interface of draftproof's CPU kernels: weights in, one forward pass per call.
// No library but the C++ runtime is behind it; callers own every array they pass.
//
// A call that fails has changed nothing but arrays it was given to write to: the next one works.
// Sizes, ids and numbers of rows and nodes are checked; how long an array is, only its owner knows.
// Any number of threads may use one model and one team, and each row by one thread at a time: passes
// over a model take turns. What a call uses must not be freed before it returns.
// In a forked child the threads are missing: everything works there, without them, but for a model
// that was in a pass at the fork.
#pragma once
#include <stdint.h>

#if defined(_WIN32)
#define DP_API extern "C" __declspec(dllexport)
#else
#define DP_API extern "C" __attribute__((visibility("default")))
#endif

typedef struct dp_team dp_team;    // threads that work together
typedef struct dp_model dp_model;  // packed weights and room to work in
typedef struct dp_row dp_row;      // keys and values of one sequence, all layers
typedef struct dp_automaton dp_automaton;  // all substrings of a text
typedef struct dp_ngrams dp_ngrams;        // where each n-gram of a text stands

enum {
  DP_OK = 0,
  DP_NO_MEMORY = -1,
  DP_NOT_FINITE = -2,
  DP_BAD_ARGUMENT = -3,
  DP_FORKED = -4  // a pass of the parent's was in this model when the process was forked
};
// Of a matrix. From DP_INT8 on: integers of groups of 32 inputs, multiplied with activations that are
// rounded to 8 bits in such groups; DP_INT8 and DP_INT4 are GGUF's Q8_0 and Q4_1.
enum {
  DP_BF16,
  DP_INT8,
  DP_INT4,
  DP_Q4_0,
  DP_Q5_0,
  DP_Q5_1,
  DP_Q4_K,
  DP_Q5_K,
  DP_Q6_K,
  DP_IQ4_NL,
  DP_IQ4_XS,
  DP_MXFP4,
  DP_S4_128,
  DP_Z4_32,
  DP_Z4_128,
  DP_FORMATS
};
// What a matrix is packed from: numbers, or the blocks of a GGUF file in the matrix's own format.
// Those that no such file has: a scale in fp16, of DP_Z4_* a zero of 16 bits, then 32 or 128 integers of
// four bits as Q4_0 has them; a weight is scale * (integer - zero), the zero of DP_S4_128 is 8.
enum { DP_SOURCE_FP32, DP_SOURCE_BF16, DP_SOURCE_BLOCKS };

// Matrices are (outputs, inputs), as in a checkpoint. Q, K and V are the rows of one matrix, the
// gate and the up projection the two halves of another.
// Each has a format of its own; but those of one matrix are all DP_BF16 or none of them is, and the
// gate has that of the up projection.
enum { DP_HEAD, DP_EMBEDDINGS, DP_Q, DP_K, DP_V, DP_O, DP_GATE, DP_UP, DP_DOWN, DP_MATRICES };
enum { DP_NORM_IN, DP_NORM_POST, DP_NORM_Q, DP_NORM_K, DP_NORM_LAST, DP_INV_FREQ, DP_WINDOW };

typedef struct {
  int32_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocabulary;
  int32_t has_qk_norm;    // q and k are normalised per head before they are rotated
  float eps;              // of every norm
  float rope_scale;       // on cosines and sines (yarn), else 1
  float attention_scale;  // on scores
  int32_t outputs;        // rows of the head; 0: as many as there are tokens
} dp_shape;

typedef struct {
  dp_row *row;
  int32_t begin, end;  // its packed rows, right behind those of the segment before: `fresh`
                       // committed tokens, then the nodes from `first`
  int32_t cached;      // committed tokens that lie in the row before this pass
  int32_t fresh;
  int32_t first;    // nodes before it ran earlier and lie in their slots
  int32_t nodes;    // all nodes of the tree
  int32_t parents;  // where the parents of those nodes begin: as many nodes are in the segments before
} dp_segment;

typedef struct {
  int32_t rows;  // packed rows of all segments
  const int32_t *tokens;
  int32_t segments;
  const dp_segment *segment;
  const int32_t *parents;  // of every node: its parent's number in the tree, -1 at node 0
  int32_t wanted;          // rows whose next token is asked for, ascending
  const int32_t *wanted_rows;
  const int32_t *logits_rows;  // (wanted): where its logits go, below how many go anywhere, or -1
  float *logits;               // (as many as asked for, rows of the head)
  int32_t *best;               // (wanted): the first argmax, -1 if none is finite or one is NaN;
                               // NULL: the head is left out, its logits too
  int32_t taps;                // hidden states asked for
  const int32_t *tap_layers;   // what enters that layer; the model's layers: after the last norm
  int32_t tapped;              // of so many rows, ascending
  const int32_t *tapped_rows;
  float *hidden;               // (taps, tapped, hidden)
  int32_t layers;              // the first so many, then the last norm and the head
} dp_pass;

DP_API int32_t dp_version(void);
// The kernels that run here: "amx", "avx512" or "avx2", on ARM "neon-matrix", "neon-dot" or "neon", or
// "portable". Names a set, "" the best of them.
DP_API const char *dp_kernels(const char *wanted);
// Why the best set that the processor could run is not taken, a sentence, or "".
DP_API const char *dp_kernels_missed(void);

// NULL where the system does not give so many threads.
DP_API dp_team *dp_team_new(int32_t threads);
DP_API void dp_team_free(dp_team *team);

// Bytes that the weights of a shape take, packed; DP_BAD_ARGUMENT for a shape that no model has.
// formats: of the head and the embeddings (-1: they are not packed), then of each layer's matrices from
// DP_Q to DP_DOWN.
DP_API int64_t dp_model_bytes(const dp_shape *shape, const int32_t *formats);
// NULL for such a shape, for kernels that do not run here, and where there is no memory.
DP_API dp_model *dp_model_new(const dp_shape *shape, const int32_t *formats, const char *kernels);
// The same over weights that a model of this shape, formats and kernels packed before, `packed`, at a
// multiple of 64 bytes. They stay there, the caller's, and are only read: no matrix can be given.
DP_API dp_model *dp_model_over(const dp_shape *shape, const int32_t *formats, const char *kernels,
                               const void *packed);
// Where the packed weights lie, dp_model_bytes of them.
DP_API const void *dp_model_packed(const dp_model *model);
DP_API void dp_model_free(dp_model *model);
// One matrix of a layer, packed from contiguous (outputs, inputs); layer is 0 for those of none.
// DP_NOT_FINITE: a number is not, or too large for the format.
DP_API int32_t dp_model_matrix(dp_model *model, int32_t which, int32_t layer, const void *data,
                               int32_t source, int32_t outputs, int32_t inputs);
// An output's weights as they are multiplied, (inputs), whatever the order in which they stand.
DP_API int32_t dp_model_weights(const dp_model *model, int32_t which, int32_t layer, int32_t output,
                                float *weights);
// Weights as blocks of a GGUF file, rounded as a model's are: DP_INT8 as Q8_0, DP_INT4 as Q4_1. count
// is a multiple of 32. DP_NOT_FINITE as above.
DP_API int32_t dp_blocks(int32_t format, const float *weights, int64_t count, uint8_t *blocks);
// The inputs of a packed matrix stand in another order: its i-th weight is multiplied with the input
// `order[i]`, each once. Of Q, K and V, and of the gate and the up projection, it is the same. Before
// the first pass; not of the head, nor of DP_BF16.
DP_API int32_t dp_model_order(dp_model *model, int32_t which, int32_t layer, const int32_t *order,
                              int32_t inputs);
DP_API int32_t dp_model_bias(dp_model *model, int32_t which, int32_t layer, const float *bias,
                             int32_t outputs);
// A vector of a layer: norms (hidden or head_dim), inverse frequencies (head_dim / 2), or the
// sliding window in positions (1 value, 0 is none).
DP_API int32_t dp_model_vector(dp_model *model, int32_t which, int32_t layer, const float *data,
                               int32_t size);
// Embeddings (vocabulary, hidden) in bf16, used where they lie. Without them, and where none are
// packed, they are the head's.
DP_API int32_t dp_model_embeddings(dp_model *model, const uint16_t *data);

DP_API dp_row *dp_row_new(const dp_model *model);
DP_API void dp_row_free(dp_row *row);
DP_API int64_t dp_row_bytes(const dp_model *model, int32_t slots);
DP_API int32_t dp_row_reserve(dp_row *row, int32_t slots);
// Copies the slots `sources`, ascending and each at or after its place, to those from `to`.
DP_API int32_t dp_row_move(dp_row *row, const int32_t *sources, int32_t count, int32_t to);
// Copies the first slots of another row of the model; what `to` held behind them is lost.
DP_API int32_t dp_row_copy(dp_row *to, const dp_row *from, int32_t slots);

DP_API int32_t dp_forward(dp_model *model, dp_team *team, const dp_pass *pass);
// Logits (rows, rows of the head) of hidden states (rows, hidden) that are past the last norm.
DP_API int32_t dp_head(dp_model *model, dp_team *team, const float *hidden, int32_t rows,
                       float *logits);

// What the machine can do at best: bytes read a second by tiles of so many rows, and products a
// second of full tiles in the cache; 0 where it cannot be said.
DP_API double dp_read_rate(dp_team *team, int64_t bytes, int32_t rows);
DP_API double dp_tile_rate(dp_team *team, int32_t format, int32_t tiles);

// Coupled sampling (noise.py and chain.py say what it is; here it is fast).
// -log(u), float, of the ids 0 to 4 * blocks - 1.
DP_API void dp_gumbel(uint64_t seed, uint32_t stream, uint32_t position, int32_t blocks, float *out);
// E, double, of some ids: the bits of noise.noise.
DP_API void dp_exponential(uint64_t seed, uint32_t stream, uint32_t position, const int64_t *ids,
                           int32_t count, double *out);
// The k best of a row (n), ties to the lowest id: of the race at a temperature of 1e-3 at least, or
// (0) of the logits themselves, as at temperature 1. `scaled`: (x - max) / temperature; `log_mass`,
// where it is not NULL: the log of the sum of its exp over the row. Returns how many were found, or
// -1 where NaN or +inf is in the row, nothing is finite, or k < 1.
DP_API int32_t dp_race(const float *logits, int32_t n, double temperature, uint64_t seed,
                       uint32_t stream, uint32_t position, int32_t k, int32_t *ids, double *scaled,
                       double *log_mass);
// What is left of a row before the race: top_k <= 0, top_p 1 and floor -inf cut nothing off. floor:
// the log of min_p.
typedef struct {
  double temperature, top_p, floor;
  int32_t top_k;
} dp_cut;
// chain.survivors: the ids in their order, with (x - max) / temperature. `ids` and `scaled` have
// room for n. Returns how many there are; -1 as dp_race; -2 where a border is too near to tell.
DP_API int32_t dp_survivors(const float *logits, int32_t n, const dp_cut *cut, int64_t *ids,
                            double *scaled);
// The race of dp_race among them. Returns as dp_race, and -2 as dp_survivors.
DP_API int32_t dp_race_cut(const float *logits, int32_t n, const dp_cut *cut, uint64_t seed,
                           uint32_t stream, uint32_t position, int32_t k, int32_t *ids,
                           double *scaled, double *log_mass);
// A text's tree: its nodes with their logits (nodes, n), the position of the pick behind node 0, and
// where the picks go.
typedef struct {
  dp_cut cut;
  uint64_t seed;
  uint32_t stream, position;
  int32_t nodes;
  const int32_t *tokens, *parents;
  const float *logits;
  int32_t *picks;
} dp_drawing;
// What these races pick behind node 0 of each text, and behind each node that is the pick behind its
// parent; -1 behind all others, and where a race has none. No temperature is below 1e-3.
DP_API int32_t dp_pick(dp_team *team, const dp_drawing *texts, int32_t count, int32_t n);

// The suffix automaton of a text that grows at its end (automaton.py says what it is; here it is
// fast). One thread at a time. After DP_NO_MEMORY it can only be freed.
DP_API dp_automaton *dp_automaton_new(void);
DP_API void dp_automaton_free(dp_automaton *automaton);
DP_API int32_t dp_automaton_append(dp_automaton *automaton, const int32_t *tokens, int32_t count);
// Tokens of the text.
DP_API int32_t dp_automaton_size(const dp_automaton *automaton);
// Takes back the last tokens.
DP_API int32_t dp_automaton_undo(dp_automaton *automaton, int32_t count);
// The state of the longest suffix of the text that occurs in it earlier too, and its length.
DP_API int32_t dp_automaton_repeated(const dp_automaton *automaton, int32_t *length);
// The state of the longest suffix of `tokens` that the text holds, and its length.
DP_API int32_t dp_automaton_match(dp_automaton *automaton, const int32_t *tokens, int32_t count,
                                  int32_t *length);
// As dp_automaton_match, of the last `most` tokens of `own`.
DP_API int32_t dp_automaton_match_end(const dp_automaton *own, int32_t most,
                                      dp_automaton *automaton, int32_t *length);
// `state` and `length` as found by dp_automaton_match go on by a token, of the last `most` tokens.
DP_API int32_t dp_automaton_follow(dp_automaton *automaton, int32_t token, int32_t most,
                                   int32_t *state, int32_t *length);
// At most `nodes` continuations of a state, the likeliest first, and how many they are: their
// tokens, parents (0: the state; n: the n-th of them) and shares, those below `least` left out, and
// negative tokens; `depth` tokens deep at most.
DP_API int32_t dp_automaton_likeliest(const dp_automaton *automaton, int32_t state, int32_t nodes,
                                      int32_t depth, double least, int32_t *tokens,
                                      int32_t *parents, double *shares);
// `more` comes behind the first `kept` tokens. What follows the longest suffix of the text that
// occurs in it earlier, or where `newer` or `older` (may be NULL) hold a longer one of its last
// `context` tokens, there; nothing where fewer than `matching` tokens match. The rest as above.
DP_API int32_t dp_automaton_draft(dp_automaton *own, int32_t kept, const int32_t *more,
                                  int32_t count, dp_automaton *newer, dp_automaton *older,
                                  int32_t context, int32_t matching, int32_t nodes, int32_t depth,
                                  double least, int32_t *tokens, int32_t *parents, double *shares);

// The n-grams of `size` tokens of a text (ngrams.py says what they are). One thread at a time. After
// DP_NO_MEMORY they can only be freed.
DP_API dp_ngrams *dp_ngrams_new(int32_t size);
DP_API void dp_ngrams_free(dp_ngrams *ngrams);
// Tokens of the text.
DP_API int32_t dp_ngrams_size(const dp_ngrams *ngrams);
// `more` comes behind the first `kept` tokens; what followed the same last tokens earlier, the
// longest match first: `branches` of those of at least `enough` tokens or as long as the longest,
// with at most `longest` tokens each. Returns the nodes of the tree, room for 1 + branches * longest
// of them: node 0 is the last token.
DP_API int32_t dp_ngrams_draft(dp_ngrams *ngrams, int32_t kept, const int32_t *more, int32_t count,
                               int32_t longest, int32_t enough, int32_t branches, int32_t *tokens,
                               int32_t *parents, double *scores);

// One look-up of one text, by the token that it would draft first (looks.py says what is what).
// Either `ngrams` is given, or `automaton`, with two of other texts that may be NULL.
typedef struct {
  dp_ngrams *ngrams;
  dp_automaton *automaton, *newer, *older;
  int32_t matching, context;  // as of dp_ngrams_draft (`enough`) and of dp_automaton_draft
  double least;
  // What is known of it in all texts, 4, 5 and 16 numbers, and one of this text, all of which learn:
  // how much more often than foretold it was right of late.
  double *weights, *variances, *reach, *recent;
  double score;    // of the token that it would draft now
  int32_t guess;   // that token, or -1
  int32_t place;   // tokens of the text before it
  int32_t states[2], lengths[2];  // where its end was found in `newer` and `older`,
  int32_t found;                  // at a text of so many tokens; -1: nowhere yet
  // What it drafted last: `drafted` nodes, with room for 1 + `longest` * `branches` of them, as of
  // dp_ngrams_draft; an automaton drafts `longest` nodes, of one branch. Node 0 is the last token.
  int32_t longest, branches, drafted;
  int32_t owner, yields;  // the source of its tokens; the one beside whose it offers none, or -1
  int32_t *tokens, *parents;
  double *scores;
} dp_look;

// Looks at `count` texts, each by its number of `looks`: the last `fresh` of each text's `sizes`
// tokens are given, those of all texts one behind the other. Learns what became of the tokens
// guessed before, as calibration.py says, and guesses anew. surplus: what a draft is expected to
// bring beyond `asking`, in tokens, where a token counts `worth` and the cheapest row must bring
// `row`. guesses: look-ups that would draft something. After DP_NO_MEMORY they can only be freed.
DP_API int32_t dp_glance(dp_look *const *texts, int32_t count, const int32_t *looks,
                         const int32_t *tokens, const int32_t *sizes, const int32_t *fresh,
                         const double *worth, const double *row, double asking, double *surplus,
                         int32_t *guesses);

// What all look-ups offer a text in a step, merged (offers.py says how). room: nodes that the arrays
// have room for, as many as all look-ups of the text can draft. depth: levels that it may have.
typedef struct {
  int32_t room, depth, count;
  int32_t *tokens, *parents, *owners, *depths;
  double *chances, *survivals;
} dp_offer;

// All `looks` of each of `count` texts draft for it, one behind the other, with tokens as of dp_glance:
// at most `useful` nodes of a branch, where `rooms` tokens may still be written. What they draft makes
// the text's offer, without what is reached with a chance below `least`. drafted: nodes of each look-up,
// or -1, behind which nothing of this call is of use: a token is outside of the `vocabulary`.
DP_API int32_t dp_draft(dp_look *const *texts, dp_offer *const *offers, int32_t count,
                        const int32_t *looks, const int32_t *tokens, const int32_t *sizes,
                        const int32_t *fresh, const int32_t *rooms, int32_t useful, double least,
                        int32_t vocabulary, int32_t *drafted);

// What became of the last drafts of all `looks` of each text, `written` tokens of which came behind
// them; as sources.py says. right: of each look-up, tokens that it had in a row; -1: no draft.
DP_API int32_t dp_learn(dp_look *const *texts, int32_t count, const int32_t *looks,
                        const int32_t *tokens, const int32_t *written, int32_t *right);

// What a step's time is worth, as price.py says. curve, known: costs of a pass of 0 to `most` rows.
// room: nodes that the step may run; -1: any number.
typedef struct {
  double rate, attention, left;
  const double *curve, *known;
  int32_t most, rows, room;
} dp_price;

// Which nodes of `count` offers a step runs, as allotting.py says: of each text the weight of a token, the
// tokens that a row attends to, what it may lose and what of that may be in vain, nodes that it may
// run. kept: those of all texts one behind the other, ascending, node 0 first, with room for all;
// counts of them; what they bring.
DP_API int32_t dp_allot(dp_offer *const *offers, int32_t count, const dp_price *price,
                        const double *weights, const double *lengths, const double *lefts,
                        const double *bets, const int32_t *limits, int32_t *kept, int32_t *counts,
                        double *brings);

// Attention of a few rows of several texts, each over keys and values of its own, in float32 or
// float64 (`wide`). Pointers are 64-bit numbers, steps between heads, rows and slots are counted in
// elements, and the elements of a head stand side by side.
#define DP_FEW_SLOTS 2048
typedef struct {
  int64_t wide, heads, key_heads, size;  // size: of a head
  uint64_t q, out;                       // out: (rows, heads, size), contiguous
  int64_t q_head, q_row;
  uint64_t new_keys, new_values;  // of all packed rows, stored before anything is read; 0: none
  int64_t key_head, key_row, value_head, value_row;
  double scale, cap;  // scores become tanh(score / cap) * cap; 0: they stay
} dp_few;
typedef struct {
  int64_t begin, rows, slots;  // packed rows; what is new stands in the last slots
  int64_t chain;               // 1: each row sees all before it and itself; 0: all slots
  uint64_t keys, values;
  int64_t head, slot;  // steps of both
  uint64_t bias;       // added to scores; 0: nothing is
  int64_t bias_head, bias_row;
} dp_few_text;
// At most DP_FEW_SLOTS slots of a text, and heads of at most 512.
DP_API int32_t dp_few_rows(const dp_few *of, const dp_few_text *texts, int32_t count);

// out = x w^T + bias in half precision, summed in float32 and rounded once. Pointers are 64-bit numbers.
typedef struct {
  int64_t rows, inputs, outputs;
  uint64_t x, weights, bias, out;  // x (rows, inputs); weights (outputs, inputs); bias 0: none
  int64_t weight_row;              // elements from one output's weights to the next one's
} dp_halves;
// What calls a function on so many threads, as OpenMP's `GOMP_parallel` does: threads of our own would
// wait for torch's, which stay awake between its operations.
typedef void (*dp_parallel)(void (*work)(void *), void *argument, unsigned threads, unsigned flags);
// What multiplies by a set of instructions ("avx2", "avx512"), or null: it does not run here, or has none.
DP_API const void *dp_halves_set(const char *name, int32_t fp16);
// A row's bits do not depend on which stand beside it. parallel: null for the caller's thread alone.
DP_API int32_t dp_halves_product(const void *set, dp_parallel parallel, int32_t threads, const dp_halves *of);

// Attention of a few rows in half precision over keys and values as torch keeps them: sums in float32,
// rounded once. Steps are counted in elements; the size of a head is a multiple of 16 up to 512.
typedef struct {
  int64_t heads, key_heads, size;
  int64_t window;   // positions that a row sees, itself among them; 0: all
  uint64_t q, out;  // (heads, rows, size), and (rows, heads, size) without gaps
  int64_t q_head, q_row;
  double scale, cap;  // scores become tanh(score / cap) * cap; 0: they stay
} dp_half_attention;
typedef struct {
  int64_t begin, rows, before;  // packed rows; slots that all of them see
  uint64_t keys, values;        // of key heads that are `head` apart, slots that are `slot` apart
  int64_t head, slot;
  // int32: the slots that a row sees behind those, itself the last, all rows' on end, and where each
  // row's end; both 0: a chain in the slots from `before` on.
  uint64_t paths, ends;
} dp_half_text;
// A row's bits depend on what it sees, position by position: not on its slot, nor on other rows.
DP_API int32_t dp_half_rows(const void *set, dp_parallel parallel, int32_t threads,
                            const dp_half_attention *of, const dp_half_text *texts, int32_t count);
