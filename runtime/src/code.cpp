#include "code.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include <dlfcn.h>
#include <fcntl.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <unistd.h>

namespace aot {
namespace {

bool write_all(int descriptor, const uint8_t *bytes, size_t size) {
    while (size) {
        ssize_t done = write(descriptor, bytes, size);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        bytes += done, size -= static_cast<size_t>(done);
    }
    return true;
}

}  // namespace

CodeLibrary::CodeLibrary(const uint8_t *bytes, size_t size, const char *temporary_directory, const char *file) {
    descriptor_ = memfd_create("aot", MFD_CLOEXEC);
    if (descriptor_ >= 0) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor_);
        if (write_all(descriptor_, bytes, size)) {
            open_path(path, file);
            return;
        }
        close(descriptor_);
        descriptor_ = -1;
        throw Failure(AOT_ERROR_MEMORY, file, "", "no memory for %zu bytes of code", size);
    }
    if (!temporary_directory) {
        throw Failure(AOT_ERROR_TARGET, file,
                      "Name a private folder that may hold executable files (temporary_directory) when loading.",
                      "this system forbids memfd_create, by which code is loaded");
    }
    std::string path = std::string(temporary_directory) + "/aot-XXXXXX";
    int descriptor = mkostemp(&path[0], O_CLOEXEC);
    if (descriptor < 0) throw Failure(AOT_ERROR_IO, temporary_directory, "", "cannot create a file there");
    const bool written = write_all(descriptor, bytes, size);
    close(descriptor);
    if (!written) {
        unlink(path.c_str());
        throw Failure(AOT_ERROR_IO, temporary_directory, "", "cannot write %zu bytes of code there", size);
    }
    try {
        open_path(path.c_str(), file);
    } catch (...) {
        unlink(path.c_str());
        throw;
    }
    unlink(path.c_str());
}

void CodeLibrary::open_path(const char *path, const char *file) {
    // A library linked with -ffast-math would change how this thread rounds denormals.
    const unsigned mode = _mm_getcsr();
    handle_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    _mm_setcsr(mode);
    if (handle_) return;
    const char *reason = dlerror();
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
    throw Failure(AOT_ERROR_TARGET, file, "", "the system refuses to load the artifact's code: %s", reason ? reason : "");
}

CodeLibrary::~CodeLibrary() {
    if (handle_) dlclose(handle_);
    if (descriptor_ >= 0) close(descriptor_);
}

void *CodeLibrary::symbol(const char *name) const { return dlsym(handle_, name); }

}  // namespace aot
