// Linked into a test build of the kernels: refuses the allocations that a test says.
// `new` is replaced in that library alone (-Bsymbolic), and its calls of mmap come here (--wrap=mmap).
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> granted{0}, refused{0}, before{0}, most{0};

}  // namespace

#define DP_TEST extern "C" __attribute__((visibility("default")))

// From now on, `granted` allocations succeed, then `count` are refused, then all succeed again.
DP_TEST void dp_refuse(int64_t after, int64_t count) {
  before = after;
  most = count;
  granted = refused = 0;
}

DP_TEST int64_t dp_refused() { return refused; }

// Counts an allocation; 0 if it is refused.
DP_TEST int32_t dp_allowed() {
  if (granted.fetch_add(1) < before || refused >= most) return 1;
  ++refused;
  return 0;
}

extern "C" void *__real_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t from);
extern "C" void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file,
                             off_t from) {
  return dp_allowed() ? __real_mmap(at, bytes, protection, flags, file, from) : MAP_FAILED;
}

void *operator new(size_t bytes, const std::nothrow_t &) noexcept {
  return dp_allowed() ? std::malloc(bytes) : nullptr;
}
void *operator new(size_t bytes) {
  if (void *at = operator new(bytes, std::nothrow)) return at;
  throw std::bad_alloc();
}
void *operator new[](size_t bytes) { return operator new(bytes); }
void *operator new(size_t bytes, std::align_val_t to) {
  const size_t whole = (bytes + size_t(to) - 1) / size_t(to) * size_t(to);
  if (void *at = dp_allowed() ? std::aligned_alloc(size_t(to), whole) : nullptr) return at;
  throw std::bad_alloc();
}
void *operator new[](size_t bytes, std::align_val_t to) { return operator new(bytes, to); }
void operator delete(void *at) noexcept { std::free(at); }
void operator delete(void *at, size_t) noexcept { std::free(at); }
void operator delete[](void *at) noexcept { std::free(at); }
void operator delete[](void *at, size_t) noexcept { std::free(at); }
void operator delete(void *at, std::align_val_t) noexcept { std::free(at); }
void operator delete(void *at, size_t, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void *at, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void *at, size_t, std::align_val_t) noexcept { std::free(at); }
