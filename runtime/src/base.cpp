#include "base.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include <sys/mman.h>

namespace aot {

Failure::Failure(int32_t status, const char *where, const char *hint, const char *format, ...) : status(status) {
    copy_text(this->where, sizeof this->where, where);
    copy_text(this->hint, sizeof this->hint, hint);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
}

std::string text_of(const char *format, ...) {
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return text;
}

void copy_text(char *to, size_t size, const char *from) {
    if (size == 0) return;
    size_t length = from ? strnlen(from, size - 1) : 0;
    if (length) memcpy(to, from, length);
    to[length] = 0;
}

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

void *default_allocate(void *, size_t bytes, size_t alignment) {
    if (bytes >= kHugePage && alignment < kHugePage) alignment = kHugePage;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    void *pointer = nullptr;
    if (posix_memalign(&pointer, alignment, bytes)) return nullptr;
    if (bytes >= kHugePage) madvise(pointer, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // only advice
    return pointer;
}

void default_release(void *, void *pointer, size_t) { free(pointer); }

}  // namespace

Memory::Memory(const aot_allocator *given) {
    aot_allocator allocator = read_options(given);
    if (allocator.allocate && allocator.release) {
        allocate_ = allocator.allocate;
        release_ = allocator.release;
        user_ = allocator.user;
    } else {
        allocate_ = default_allocate;
        release_ = default_release;
    }
}

bool Memory::is_default() const { return allocate_ == default_allocate; }

void *Memory::allocate(size_t bytes, size_t alignment) const {
    void *pointer = allocate_(user_, bytes ? bytes : 1, alignment);
    if (!pointer) throw std::bad_alloc();
    return pointer;
}

void Memory::release(void *pointer, size_t bytes) const noexcept {
    if (pointer) release_(user_, pointer, bytes ? bytes : 1);
}

}  // namespace aot

// libstdc++'s own, which it reaches by this name where an exception cannot be caught, prints, and brings 50 KB of code
// along that make names readable.
namespace __gnu_cxx {
void __verbose_terminate_handler() { abort(); }
}  // namespace __gnu_cxx
