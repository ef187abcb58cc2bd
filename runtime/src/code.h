// A code blob (a shared object) in this process, loaded without touching the disk.
#pragma once

#include "base.h"

namespace aot {

class CodeLibrary {
public:
    // `temporary_directory` is used only where code cannot be loaded from memory. Throws a Failure.
    CodeLibrary(const uint8_t *bytes, size_t size, const char *temporary_directory, const char *file);
    ~CodeLibrary();
    CodeLibrary(const CodeLibrary &) = delete;
    CodeLibrary &operator=(const CodeLibrary &) = delete;
    void *symbol(const char *name) const;  // NULL where there is none

private:
    std::string open_in_memory(const uint8_t *bytes, size_t size, const char *file);
    void open_in_folder(const uint8_t *bytes, size_t size, const char *folder, const char *file);
    std::string open_path(const char *path);  // why it failed

    void *handle_ = nullptr;
    // Kept open: the loader knows libraries by path, so /proc/self/fd/N must not name another one later.
    int descriptor_ = -1;
};

}  // namespace aot
