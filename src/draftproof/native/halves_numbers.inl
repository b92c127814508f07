// Numbers of half precision one by one, and rounded; see halves.inl.
namespace {

struct Bf16Numbers {
  static float number(uint16_t x) { return from_bf16(x); }
  static uint16_t rounded(float x) { return round_bf16(x); }
  static void round(const float *x, int n, uint16_t *out) { to_bf16(x, n, out); }
};

struct Fp16Numbers {
  static float number(uint16_t x) { return _cvtsh_ss(x); }
  static uint16_t rounded(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
  static void round(const float *x, int n, uint16_t *out) {  // n: a multiple of 8
    for (int i = 0; i < n; i += 8) {
      const __m128i eight = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i *>(out + i), eight);
    }
  }
};

}  // namespace
