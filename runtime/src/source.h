// Bytes of an artifact, from a file or from memory.
#pragma once

#include "base.h"

namespace aot {

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
    void read(uint64_t offset, void *to, size_t bytes) const;
    // A mapping of the whole file that lives on, or the caller's bytes.
    std::shared_ptr<const uint8_t> map() const;

private:
    const uint8_t *bytes_ = nullptr;
    size_t size_ = 0;
    int descriptor_ = -1;
    std::string name_;
};

}  // namespace aot
