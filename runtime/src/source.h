// Bytes of an artifact, from a file or from memory.
#pragma once

#include <sys/stat.h>

#include "base.h"

namespace aot {

// Says whether a file was written to or truncated since it was opened, as far as its size and its time of change tell.
// A file that another one replaced by a rename did not change.
class FileWatch {
public:
    // Keeps a duplicate of the descriptor. Throws a Failure where there is none left.
    FileWatch(int descriptor, const struct stat &opened, const char *name);
    ~FileWatch();
    FileWatch(const FileWatch &) = delete;
    FileWatch &operator=(const FileWatch &) = delete;
    void must_be_unchanged(const char *name) const;  // throws a Failure

private:
    int descriptor_;
    struct stat opened_;
};

class ByteSource {
public:
    // Opens a file. Throws a Failure where it cannot be read.
    explicit ByteSource(const char *path);
    ByteSource(const void *bytes, size_t size) : bytes_(static_cast<const uint8_t *>(bytes)), size_(size) {}
    ~ByteSource();
    ByteSource(const ByteSource &) = delete;
    ByteSource &operator=(const ByteSource &) = delete;

    size_t size() const { return size_; }
    const char *name() const { return name_.c_str(); }
    bool is_file() const { return descriptor_ >= 0; }
    void read(uint64_t offset, void *to, size_t bytes) const;
    // A mapping of the whole file that lives on, or the caller's bytes.
    std::shared_ptr<const uint8_t> map() const;
    // NULL where the bytes are the caller's.
    std::shared_ptr<const FileWatch> watch() const;

private:
    const uint8_t *bytes_ = nullptr;
    size_t size_ = 0;
    int descriptor_ = -1;
    std::string name_;
    struct stat opened_ {};
};

}  // namespace aot
