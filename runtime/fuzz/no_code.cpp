// Stands in for src/code.cpp and src/cuda/driver.cpp: no byte of a mutated file is ever executed. Every kernel exists and does nothing.
#include "code.h"
#include "cuda/driver.h"

namespace aot {

namespace {

void do_nothing(const aot_kernel_args *) {}

}  // namespace

CodeLibrary::CodeLibrary(const uint8_t *bytes, size_t size, const char *, const char *) {
    // What the system's loader would read.
    unsigned sum = 0;
    for (size_t i = 0; i < size; i += 64) sum += bytes[i];
    if (size) sum += bytes[size - 1];
    descriptor_ = sum > 0 ? -1 : -2;
}

CodeLibrary::~CodeLibrary() { handle_ = nullptr; }

// Nor does a driver get any: a machine with a GPU fuzzes as one without.
namespace cuda {

const Driver *find_driver(std::string *reason) {
    *reason = "no driver here";
    return nullptr;
}

std::string too_old(int, int) { return ""; }

Failure driver_failure(const Driver &, Result, const char *where, const char *doing) {
    return Failure(AOT_ERROR_DEVICE, where, "", "%s", doing);
}

}  // namespace cuda

void *CodeLibrary::symbol(const char *name) const {
    return *name == '!' ? nullptr : reinterpret_cast<void *>(do_nothing);
}

}  // namespace aot
