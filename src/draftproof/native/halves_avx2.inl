// Numbers of half precision in registers of eight floats; see halves.inl. Included behind `fused_add`.
namespace {

struct InFloats {
  using Register = __m256;
  using Numbers = __m256;
  using Input = float;
  static constexpr int kLanes = kOctet, kAtOnce = 2 * kOctet;
  static constexpr int kRows = 4, kOutputs = 3;  // twelve sums, and registers for what is multiplied

  static Register zero() { return _mm256_setzero_ps(); }
  static Numbers inputs(const float *from) { return floats_at(from); }
  static void add(Register &sum, Numbers w, Numbers x) { fused_add(sum, w, x); }
  static __m256 folded(Register sum) { return sum; }
};

struct InBf16 : InFloats {
  static Numbers weights(const uint16_t *from) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static void keep(const uint16_t *from, float *to) { _mm256_storeu_ps(to, weights(from)); }
  static float number(uint16_t x) { return from_bf16(x); }
  static uint16_t rounded(float x) { return round_bf16(x); }
};

struct InFp16 : InFloats {
  static Numbers weights(const uint16_t *from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
  }
  static void keep(const uint16_t *from, float *to) { _mm256_storeu_ps(to, weights(from)); }
  static float number(uint16_t x) { return _cvtsh_ss(x); }
  static uint16_t rounded(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
};

}  // namespace
