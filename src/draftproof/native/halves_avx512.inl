// Numbers of half precision in registers of sixteen floats; see halves.inl. Included behind `dot_bf16`.
namespace {

struct InSixteen {
  using Register = __m512;
  static constexpr int kFloats = 16;
  static constexpr int kRows = 8, kOutputs = 3;      // 24 sums, and registers for what is multiplied
  static constexpr int kWeighed = 6, kColumns = 4;  // of attention, the same

  static Register zero() { return _mm512_setzero_ps(); }
  static Register floats_at(const float *from) { return _mm512_loadu_ps(from); }
  static void keep_at(float *to, Register x) { _mm512_storeu_ps(to, x); }
  static void weigh(Register &sum, Register value, float weight) {
    sum = _mm512_fmadd_ps(_mm512_set1_ps(weight), value, sum);
  }
  static __m256i sixteen(const uint16_t *from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
  }
  static __m256 folded(Register sum) {
    return _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
  }
};

// Numbers that are not normal are zero for the instruction, in every thread.
struct InBf16 : InSixteen, Bf16Numbers {
  using Numbers = __m512i;
  using Input = uint16_t;
  static constexpr int kLanes = 32, kAtOnce = kLanes;

  static Numbers weights(const uint16_t *from) { return _mm512_loadu_si512(from); }
  static Numbers inputs(const uint16_t *from) { return _mm512_loadu_si512(from); }
  static void add(Register &sum, Numbers w, Numbers x) { sum = dot_bf16(sum, w, x); }
  static Register widened(const uint16_t *from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(sixteen(from)), 16));
  }
  static void keep(const uint16_t *from, uint16_t *to) { std::memcpy(to, from, 2 * kLanes); }
};

struct InFp16 : InSixteen, Fp16Numbers {
  using Numbers = __m512;
  using Input = float;
  static constexpr int kLanes = 16, kAtOnce = kLanes;

  static Numbers weights(const uint16_t *from) { return _mm512_cvtph_ps(sixteen(from)); }
  static Register widened(const uint16_t *from) { return weights(from); }
  static Numbers inputs(const float *from) { return _mm512_loadu_ps(from); }
  static void add(Register &sum, Numbers w, Numbers x) { sum = _mm512_fmadd_ps(w, x, sum); }
  static void keep(const uint16_t *from, float *to) { _mm512_storeu_ps(to, weights(from)); }
};

}  // namespace
