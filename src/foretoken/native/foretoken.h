// The plain C interface of foretoken's CPU kernels: weights in, one forward pass per call.
// No library but the C++ runtime is behind it; callers own every array they pass.
#pragma once
#include <stdint.h>

#if defined(_WIN32)
#define FT_API extern "C" __declspec(dllexport)
#else
#define FT_API extern "C" __attribute__((visibility("default")))
#endif

typedef struct ft_team ft_team;    // threads that work together
typedef struct ft_model ft_model;  // packed weights and room to work in
typedef struct ft_row ft_row;      // keys and values of one sequence, all layers

enum { FT_OK = 0, FT_NO_MEMORY = -1, FT_NOT_FINITE = -2, FT_BAD_ARGUMENT = -3 };
enum { FT_BF16 = 0, FT_INT8 = 1 };
enum { FT_SOURCE_FP32 = 0, FT_SOURCE_BF16 = 1 };

// Matrices are (outputs, inputs), as in a checkpoint. Q, K and V are the rows of one matrix, the
// gate and the up projection the two halves of another.
enum { FT_HEAD, FT_Q, FT_K, FT_V, FT_O, FT_GATE, FT_UP, FT_DOWN };
enum { FT_NORM_IN, FT_NORM_POST, FT_NORM_Q, FT_NORM_K, FT_NORM_LAST, FT_INV_FREQ, FT_WINDOW };

typedef struct {
  int32_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocabulary;
  int32_t precision;      // FT_BF16 or FT_INT8
  int32_t has_qk_norm;    // q and k are normalised per head before they are rotated
  float eps;              // of every norm
  float rope_scale;       // on cosines and sines (yarn), else 1
  float attention_scale;  // on scores
} ft_shape;

typedef struct {
  ft_row *row;
  int32_t begin, end;  // its packed rows: `fresh` committed tokens, then the nodes from `first`
  int32_t cached;      // committed tokens that lie in the row before this pass
  int32_t fresh;
  int32_t first;    // nodes before it ran earlier and lie in their slots
  int32_t nodes;    // all nodes of the tree
  int32_t parents;  // where the parents of those nodes begin
} ft_segment;

typedef struct {
  int32_t rows;  // packed rows of all segments
  const int32_t *tokens;
  int32_t segments;
  const ft_segment *segment;
  const int32_t *parents;  // of every node: its parent's number in the tree, -1 at node 0
  int32_t wanted;          // rows whose next token is asked for, ascending
  const int32_t *wanted_rows;
  const int32_t *logits_rows;  // (wanted): where its logits go, or -1
  float *logits;               // (as many as asked for, vocabulary)
  int32_t *best;               // (wanted): the first argmax, -1 if none is finite or one is NaN;
                               // NULL: the head is left out, its logits too
  int32_t taps;                // hidden states asked for, of the wanted rows
  const int32_t *tap_layers;   // 0 to layers - 1: what enters that layer; layers: after the norm
  float *hidden;               // (taps, wanted, hidden)
  int32_t layers;              // the first so many, then the last norm and the head
} ft_pass;

FT_API int32_t ft_version(void);
// The kernels that run here: "avx512", "avx2" or "portable". Names a set, "" the best of them.
FT_API const char *ft_kernels(const char *wanted);

FT_API ft_team *ft_team_new(int32_t threads);
FT_API void ft_team_free(ft_team *team);

// Bytes that the weights of a shape take, packed.
FT_API int64_t ft_model_bytes(const ft_shape *shape);
FT_API ft_model *ft_model_new(const ft_shape *shape, const char *kernels);
FT_API void ft_model_free(ft_model *model);
// One matrix of a layer, packed from contiguous (outputs, inputs); layer is 0 for the head.
FT_API int32_t ft_model_matrix(ft_model *model, int32_t which, int32_t layer, const void *data,
                               int32_t source, int32_t outputs, int32_t inputs);
FT_API int32_t ft_model_bias(ft_model *model, int32_t which, int32_t layer, const float *bias,
                             int32_t outputs);
// A vector of a layer: norms (hidden or head_dim), inverse frequencies (head_dim / 2), or the
// sliding window in positions (1 value, 0 is none).
FT_API int32_t ft_model_vector(ft_model *model, int32_t which, int32_t layer, const float *data,
                               int32_t size);
// Embeddings (vocabulary, hidden) in bf16, used where they lie; NULL: those of the head.
FT_API int32_t ft_model_embeddings(ft_model *model, const uint16_t *data);

FT_API ft_row *ft_row_new(const ft_model *model);
FT_API void ft_row_free(ft_row *row);
FT_API int64_t ft_row_bytes(const ft_model *model, int32_t slots);
FT_API int32_t ft_row_reserve(ft_row *row, int32_t slots);
// Copies the slots `sources`, ascending and each at or after its place, to those from `to`.
FT_API void ft_row_move(ft_row *row, const int32_t *sources, int32_t count, int32_t to);

FT_API int32_t ft_forward(ft_model *model, ft_team *team, const ft_pass *pass);
// Logits (rows, vocabulary) of hidden states (rows, hidden) that are past the last norm.
FT_API int32_t ft_head(ft_model *model, ft_team *team, const float *hidden, int32_t rows,
                       float *logits);

// What the machine can do at best: bytes read a second by tiles of so many rows, and products a
// second of full tiles in the cache.
FT_API double ft_read_rate(ft_team *team, int64_t bytes, int32_t rows);
FT_API double ft_tile_rate(ft_team *team, int32_t precision, int32_t tiles);

// Coupled sampling (noise.py and sampling.py say what it is; here it is fast).
// -log(u), float, of the ids 0 to 4 * blocks - 1.
FT_API void ft_gumbel(uint64_t seed, uint32_t stream, uint32_t position, int32_t blocks, float *out);
// E, double, of some ids: the bits of noise.noise.
FT_API void ft_exponential(uint64_t seed, uint32_t stream, uint32_t position, const int64_t *ids,
                           int32_t count, double *out);
// The k best of a row (n), ties to the lowest id: of the race against `gumbel` at a temperature, or
// (gumbel NULL) of the logits themselves. `scaled`: (x - max) / temperature; `log_mass`: the log of
// the sum of its exp over the row. Returns how many were found, or -1 where NaN or +inf is in the
// row or nothing is finite.
FT_API int32_t ft_race(const float *logits, const float *gumbel, int32_t n, double temperature,
                       uint64_t seed, uint32_t stream, uint32_t position, int32_t k, int32_t *ids,
                       double *scaled, double *log_mass);
