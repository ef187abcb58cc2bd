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

std::string system_text(int number) {
    char text[128] = "";
    return strerror_r(number, text, sizeof text);
}

}  // namespace

CodeLibrary::CodeLibrary(const uint8_t *bytes, size_t size, const char *temporary_directory, const char *file) {
    const std::string reason = open_in_memory(bytes, size, file);
    if (handle_) return;
    if (temporary_directory) {
        open_in_folder(bytes, size, temporary_directory, file);
        return;
    }
    throw Failure(AOT_ERROR_TARGET, file,
                  "Name a private folder that may hold executable files (temporary_directory) when loading.", "%s",
                  reason.c_str());
}

// Through a file that has no name. Returns why it could not be; handle_ is then NULL.
std::string CodeLibrary::open_in_memory(const uint8_t *bytes, size_t size, const char *file) {
    descriptor_ = memfd_create("aot", MFD_CLOEXEC);
    if (descriptor_ < 0) {
        return std::string("this system forbids memfd_create, by which code is loaded: ") + system_text(errno);
    }
    if (!write_all(descriptor_, bytes, size)) {
        close(descriptor_);
        descriptor_ = -1;
        throw Failure(AOT_ERROR_MEMORY, file, "", "no memory for %zu bytes of code", size);
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor_);
    std::string reason = open_path(path);
    if (handle_) return reason;
    close(descriptor_);
    descriptor_ = -1;
    return "the system refuses to load the artifact's code: " + reason;
}

void CodeLibrary::open_in_folder(const uint8_t *bytes, size_t size, const char *folder, const char *file) {
    std::string path = std::string(folder) + "/aot-XXXXXX";
    int descriptor = mkostemp(&path[0], O_CLOEXEC);
    if (descriptor < 0) {
        throw Failure(AOT_ERROR_IO, folder, "Name a folder that this process may write to.",
                      "cannot create a file there: %s", system_text(errno).c_str());
    }
    const bool written = write_all(descriptor, bytes, size);
    close(descriptor);
    const std::string reason = written ? open_path(path.c_str()) : "";
    unlink(path.c_str());  // a loaded library needs its name no more
    if (!written) throw Failure(AOT_ERROR_IO, folder, "", "cannot write %zu bytes of code there", size);
    if (handle_) return;
    throw Failure(AOT_ERROR_TARGET, file, "Name a folder on a file system that is not mounted noexec.",
                  "the system refuses to load the artifact's code: %s", reason.c_str());
}

std::string CodeLibrary::open_path(const char *path) {
    // A library linked with -ffast-math would change how this thread rounds denormals.
    const unsigned mode = _mm_getcsr();
    handle_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    _mm_setcsr(mode);
    if (handle_) return "";
    const char *reason = dlerror();
    return reason ? reason : "";
}

CodeLibrary::~CodeLibrary() {
    if (handle_) dlclose(handle_);
    if (descriptor_ >= 0) close(descriptor_);
}

void *CodeLibrary::symbol(const char *name) const { return dlsym(handle_, name); }

}  // namespace aot
