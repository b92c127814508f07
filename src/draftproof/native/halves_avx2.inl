// Numbers of half precision in registers of eight floats; see halves.inl. Included behind `fused_add`.
namespace {

struct InFloats {
  using Register = __m256;
  using Numbers = __m256;
  using Input = float;
  static constexpr int kLanes = kOctet, kAtOnce = 2 * kOctet;
  static constexpr int kFloats = kOctet;
  static constexpr int kRows = 4, kOutputs = 3;     // twelve sums, and registers for what is multiplied
  static constexpr int kWeighed = 5, kColumns = 2;  // of attention: ten sums

  static Register zero() { return _mm256_setzero_ps(); }
  static Numbers inputs(const float *from) { return ::floats_at(from); }
  static Register floats_at(const float *from) { return ::floats_at(from); }
  static void keep_at(float *to, Register x) { _mm256_storeu_ps(to, x); }
  static void add(Register &sum, Numbers w, Numbers x) { fused_add(sum, w, x); }
  static void weigh(Register &sum, Register value, float weight) {
    fused_add(sum, value, _mm256_set1_ps(weight));
  }
  static __m256 folded(Register sum) { return sum; }
};

struct InBf16 : InFloats, Bf16Numbers {
  static Numbers weights(const uint16_t *from) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static Register widened(const uint16_t *from) { return weights(from); }
  static void keep(const uint16_t *from, float *to) { _mm256_storeu_ps(to, weights(from)); }
};

struct InFp16 : InFloats, Fp16Numbers {
  static Numbers weights(const uint16_t *from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
  }
  static Register widened(const uint16_t *from) { return weights(from); }
  static void keep(const uint16_t *from, float *to) { _mm256_storeu_ps(to, weights(from)); }
};

}  // namespace
