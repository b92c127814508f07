// Memory for weights and keys: zeroed, aligned, in pages of 2 MB where the system gives them.
// A page is zeroed when it is first touched, so where little of each would be used they are small.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

// An address sanitiser watches what calloc gives, not what is mapped.
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
#define DP_MAPPED
#include <sys/mman.h>
#else
#include <cstdlib>
#include <cstring>
#endif

class Memory {
 public:
  Memory() = default;
  // Throws std::bad_alloc.
  explicit Memory(size_t bytes, bool large_pages = true) {
    if (!bytes) return;
#if defined(DP_MAPPED)
    const size_t page = size_t(1) << 21;
    if (bytes > SIZE_MAX - page) throw std::bad_alloc();
    mapped_ = bytes + page;
    void *at = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    base_ = at;
    data_ = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(at) + page - 1) / page * page);
    if (bytes >= page) madvise(data_, bytes, large_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
    (void)large_pages;
    if (bytes > SIZE_MAX - 64) throw std::bad_alloc();
    base_ = std::calloc(1, bytes + 64);
    if (!base_) throw std::bad_alloc();
    data_ = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(base_) + 63) / 64 * 64);
#endif
  }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;
  Memory(Memory &&other) noexcept { swap(other); }
  Memory &operator=(Memory &&other) noexcept {
    swap(other);
    return *this;
  }
  ~Memory() {
#if defined(DP_MAPPED)
    if (base_) munmap(base_, mapped_);
#else
    std::free(base_);
#endif
  }
  char *data() const { return data_; }
  template <class T>
  T *as() const {
    return reinterpret_cast<T *>(data_);
  }

 private:
  void swap(Memory &other) noexcept {
    std::swap(base_, other.base_);
    std::swap(data_, other.data_);
    std::swap(mapped_, other.mapped_);
  }

  void *base_ = nullptr;
  char *data_ = nullptr;
  size_t mapped_ = 0;
};
