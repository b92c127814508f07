// Attention of a few rows in float32 or float64, for `dp_few_rows`: plain C++, as loops.inl.
//
// A row and head go over their slots alone, so their bits do not depend on what stands beside them.
namespace {

inline float power(float x) { return x < -87.0f ? 0.0f : exp_of(x); }  // what is masked weighs 0
inline double power(double x) { return std::exp(x); }

// n of T side by side, as a vector of the compiler's; not aligned.
template <class T, int n>
struct Side {
  typedef T type __attribute__((vector_size(n * sizeof(T))));
  static type read(const T *x) {
    type found;
    std::memcpy(&found, x, sizeof(found));
    return found;
  }
};

template <class T>
T total(const typename Side<T, kLanes>::type &lanes) {
  T x[kLanes];
  std::memcpy(x, &lanes, sizeof(x));
  const auto half = Side<T, 8>::read(x) + Side<T, 8>::read(x + 8);
  std::memcpy(x, &half, sizeof(half));
  const auto quarter = Side<T, 4>::read(x) + Side<T, 4>::read(x + 4);
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

template <class T>
T dot(const T *a, const T *b, int n) {
  using Lanes = Side<T, kLanes>;
  typename Lanes::type sum = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) sum += Lanes::read(a + i) * Lanes::read(b + i);
  T found = total<T>(sum);
  for (; i < n; ++i) found += a[i] * b[i];
  return found;
}

// out[i] = inverse * sum over j < n of w[j] * values[j * slot + i], for `width` lanes side by side.
template <class T, int width>
void weighted(const T *values, int64_t slot, const T *w, int n, T inverse, T *out) {
  using Lanes = Side<T, kLanes>;
  typename Lanes::type sum[width] = {};
  for (int j = 0; j < n; ++j) {
    if (w[j] == 0) continue;  // of drafts that a row may not see not even NaN
    for (int l = 0; l < width; ++l) sum[l] += w[j] * Lanes::read(values + j * slot + l * kLanes);
  }
  for (int l = 0; l < width; ++l) sum[l] *= inverse;
  std::memcpy(out, sum, sizeof(sum));
}

// The weights of the first n slots; returns 1 over their sum, NaN where a score is none or +inf.
template <class T>
T weights(const dp_few_text &text, const T *q, const T *keys, const T *bias, int n, const dp_few &of,
          T *w) {
  const T scale = T(of.scale), cap = T(of.cap), infinity = std::numeric_limits<T>::infinity();
  T top = -infinity, sum = 0;
  bool sound = true;
  for (int j = 0; j < n; ++j) {
    T score = dot(q, keys + j * text.slot, int(of.size)) * scale;
    if (cap > 0) score = std::tanh(score / cap) * cap;
    if (bias) score += bias[j];
    sound &= score < infinity;
    top = score > top ? score : top;
    w[j] = score;
  }
  if (!sound || top == -infinity) return std::numeric_limits<T>::quiet_NaN();
  for (int j = 0; j < n; ++j) w[j] = power(w[j] - top);
  for (int j = 0; j < n; ++j) sum += w[j];
  return 1 / sum;
}

template <class T>
void few_rows(const dp_few &of, const dp_few_text *texts, int count) {
  T w[DP_FEW_SLOTS];
  const int size = int(of.size), groups = int(of.heads / of.key_heads);
  for (const dp_few_text *text = texts; text < texts + count; ++text) {
    T *keys = reinterpret_cast<T *>(text->keys), *values = reinterpret_cast<T *>(text->values);
    const T *biases = reinterpret_cast<const T *>(text->bias);
    const int64_t before = text->slots - text->rows;
    for (int64_t h = 0; of.new_keys && h < of.key_heads; ++h) {
      for (int64_t r = 0; r < text->rows; ++r) {
        const int64_t from = text->begin + r, to = h * text->head + (before + r) * text->slot;
        const T *key = reinterpret_cast<const T *>(of.new_keys) + h * of.key_head + from * of.key_row;
        const T *value =
            reinterpret_cast<const T *>(of.new_values) + h * of.value_head + from * of.value_row;
        std::memcpy(keys + to, key, size * sizeof(T));
        std::memcpy(values + to, value, size * sizeof(T));
      }
    }
    for (int64_t h = 0; h < of.heads; ++h) {
      const int64_t head = h / groups * text->head;
      for (int64_t r = 0; r < text->rows; ++r) {
        const int64_t at = text->begin + r;
        const T *q = reinterpret_cast<const T *>(of.q) + h * of.q_head + at * of.q_row;
        const T *bias = biases ? biases + h * text->bias_head + r * text->bias_row : nullptr;
        const int n = int(text->chain ? before + r + 1 : text->slots);
        const T inverse = weights(*text, q, keys + head, bias, n, of, w);
        T *out = reinterpret_cast<T *>(of.out) + (at * of.heads + h) * size;
        int i = 0;
        const T *value = values + head;
        for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
          weighted<T, 4>(value + i, text->slot, w, n, inverse, out + i);
        }
        for (; i + kLanes <= size; i += kLanes) {
          weighted<T, 1>(value + i, text->slot, w, n, inverse, out + i);
        }
        for (; i < size; ++i) {
          T sum = 0;
          for (int j = 0; j < n; ++j) sum += w[j] == 0 ? T(0) : w[j] * value[j * text->slot + i];
          out[i] = sum * inverse;
        }
      }
    }
  }
}

}  // namespace
