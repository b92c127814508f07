// Numbers of half precision in registers of sixteen floats; see halves.inl. Included behind `dot_bf16`.
namespace {

struct InSixteen {
  using Register = __m512;
  static constexpr int kRows = 8, kOutputs = 3;  // 24 sums, and registers for what is multiplied

  static Register zero() { return _mm512_setzero_ps(); }
  static __m256 folded(Register sum) {
    return _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
  }
};

// Numbers that are not normal are zero for the instruction, in every thread.
struct InBf16 : InSixteen {
  using Numbers = __m512i;
  using Input = uint16_t;
  static constexpr int kLanes = 32, kAtOnce = kLanes;

  static Numbers weights(const uint16_t *from) { return _mm512_loadu_si512(from); }
  static Numbers inputs(const uint16_t *from) { return _mm512_loadu_si512(from); }
  static void add(Register &sum, Numbers w, Numbers x) { sum = dot_bf16(sum, w, x); }
  static void keep(const uint16_t *from, uint16_t *to) { std::memcpy(to, from, 2 * kLanes); }
  static float number(uint16_t x) { return from_bf16(x); }
  static uint16_t rounded(float x) { return round_bf16(x); }
};

struct InFp16 : InSixteen {
  using Numbers = __m512;
  using Input = float;
  static constexpr int kLanes = 16, kAtOnce = kLanes;

  static Numbers weights(const uint16_t *from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
  }
  static Numbers inputs(const float *from) { return _mm512_loadu_ps(from); }
  static void add(Register &sum, Numbers w, Numbers x) { sum = _mm512_fmadd_ps(w, x, sum); }
  static void keep(const uint16_t *from, float *to) { _mm512_storeu_ps(to, weights(from)); }
  static float number(uint16_t x) { return _cvtsh_ss(x); }
  static uint16_t rounded(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
};

}  // namespace
