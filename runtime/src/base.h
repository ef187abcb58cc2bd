// Failures, memory and small helpers. Inside the library errors are exceptions; api.cpp turns them into values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "aot/runtime.h"

namespace aot {

// What went wrong. The texts are fixed-size, so that running out of memory can be reported too.
struct Failure {
    int32_t status = AOT_ERROR_INTERNAL;
    int32_t reason = AOT_REASON_NONE;
    char where[sizeof(aot_error::where)] = {};
    char message[sizeof(aot_error::message)] = {};
    char hint[sizeof(aot_error::hint)] = {};

    Failure() = default;
    Failure(int32_t status, const char *where, const char *hint, const char *format, ...)
        __attribute__((format(printf, 5, 6)));

    Failure &because(int32_t why) {
        reason = why;
        return *this;
    }
};

// A text as printf makes it, cut where it is long.
std::string text_of(const char *format, ...) __attribute__((format(printf, 1, 2)));

void copy_text(char *to, size_t size, const char *from);

// The caller's allocator, or the C library's. Large blocks of the latter ask for huge pages.
class Memory {
public:
    explicit Memory(const aot_allocator *given = nullptr);
    void *allocate(size_t bytes, size_t alignment) const;  // throws std::bad_alloc
    void release(void *pointer, size_t bytes) const noexcept;
    bool operator==(const Memory &other) const {
        return allocate_ == other.allocate_ && release_ == other.release_ && user_ == other.user_;
    }
    bool is_default() const;  // not the caller's

private:
    void *(*allocate_)(void *, size_t, size_t) = nullptr;
    void (*release_)(void *, void *, size_t) = nullptr;
    void *user_ = nullptr;
};

// One block of a Memory.
class Block {
public:
    Block() = default;
    Block(const Memory &memory, size_t bytes, size_t alignment)
        : memory_(memory), data_(bytes ? static_cast<uint8_t *>(memory.allocate(bytes, alignment)) : nullptr),
          bytes_(bytes) {}
    Block(Block &&other) noexcept { swap(other); }
    Block &operator=(Block &&other) noexcept {
        swap(other);
        return *this;
    }
    ~Block() {
        if (data_) memory_.release(data_, bytes_);
    }
    void swap(Block &other) noexcept {
        std::swap(memory_, other.memory_);
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
    }
    uint8_t *data() const { return data_; }
    size_t bytes() const { return bytes_; }

private:
    Memory memory_;
    uint8_t *data_ = nullptr;
    size_t bytes_ = 0;
};

// A standard allocator over a Memory, so that vectors of sessions and models count too.
template <class T> struct Allocator {
    using value_type = T;
    Memory memory;
    explicit Allocator(const Memory &memory) : memory(memory) {}
    template <class U> Allocator(const Allocator<U> &other) : memory(other.memory) {}  // NOLINT: as the standard asks
    T *allocate(size_t n) {
        if (n > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
        return static_cast<T *>(memory.allocate(n * sizeof(T), alignof(T) < 16 ? 16 : alignof(T)));
    }
    void deallocate(T *pointer, size_t n) noexcept { memory.release(pointer, n * sizeof(T)); }
    template <class U> bool operator==(const Allocator<U> &) const { return true; }
    template <class U> bool operator!=(const Allocator<U> &) const { return false; }
};
template <class T> using Vector = std::vector<T, Allocator<T>>;

// Copies a struct that the caller filled over its zeroes: a shorter one leaves the rest zero.
template <class T> T read_options(const T *given) {
    T result{};
    if (given) {
        size_t bytes = given->struct_size < sizeof(T) ? given->struct_size : sizeof(T);
        memcpy(&result, given, bytes);
        result.struct_size = sizeof(T);
    }
    return result;
}

// Copies a filled struct out, at most as much as the caller has room for.
template <class T> void write_info(T *out, const T &filled) {
    size_t room = out->struct_size;
    size_t bytes = room < sizeof(T) ? room : sizeof(T);
    memcpy(out, &filled, bytes);
    if (bytes >= sizeof(size_t)) out->struct_size = room;
}

inline size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }
inline bool checked_add(int64_t a, int64_t b, int64_t *out) { return !__builtin_add_overflow(a, b, out); }
inline bool checked_mul(int64_t a, int64_t b, int64_t *out) { return !__builtin_mul_overflow(a, b, out); }

}  // namespace aot
