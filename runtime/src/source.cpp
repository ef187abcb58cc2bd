#include "source.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace aot {

FileWatch::FileWatch(int descriptor, const struct stat &opened, const char *name)
    : descriptor_(fcntl(descriptor, F_DUPFD_CLOEXEC, 0)), opened_(opened) {
    if (descriptor_ >= 0) return;
    throw Failure(AOT_ERROR_IO, name, "Raise the limit of open files, or load without mapping.", "no file descriptor is left");
}

FileWatch::~FileWatch() { close(descriptor_); }

void FileWatch::must_be_unchanged(const char *name) const {
    struct stat status {};
    if (fstat(descriptor_, &status) == 0 && status.st_size == opened_.st_size &&
        status.st_mtim.tv_sec == opened_.st_mtim.tv_sec && status.st_mtim.tv_nsec == opened_.st_mtim.tv_nsec) {
        return;
    }
    throw Failure(AOT_ERROR_IO, name, "Replace a file by a rename, or load it without mapping its weights.",
                  "the mapped file was written to or truncated after it was opened");
}

ByteSource::ByteSource(const char *path) : name_(path) {
    descriptor_ = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0 || fstat(descriptor_, &opened_) != 0 || !S_ISREG(opened_.st_mode)) {
        char reason[128] = "it is not a regular file";
        const char *text = reason;
        if (descriptor_ < 0) text = strerror_r(errno, reason, sizeof reason);
        if (descriptor_ >= 0) close(descriptor_);
        throw Failure(AOT_ERROR_IO, path, "Check the path and its permissions.", "cannot read it: %s", text);
    }
    size_ = static_cast<size_t>(opened_.st_size);
}

ByteSource::~ByteSource() {
    if (descriptor_ >= 0) close(descriptor_);
}

void ByteSource::read(uint64_t offset, void *to, size_t bytes) const {
    if (descriptor_ < 0) {
        if (bytes) memcpy(to, bytes_ + offset, bytes);
        return;
    }
    uint8_t *target = static_cast<uint8_t *>(to);
    while (bytes) {
        ssize_t got = pread(descriptor_, target, bytes, static_cast<off_t>(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            throw Failure(AOT_ERROR_IO, name(), "Do not change a file while it is loaded; replace it by a rename.",
                          "reading at offset %llu failed", static_cast<unsigned long long>(offset));
        }
        target += got, offset += static_cast<uint64_t>(got), bytes -= static_cast<size_t>(got);
    }
}

std::shared_ptr<const FileWatch> ByteSource::watch() const {
    return descriptor_ < 0 ? nullptr : std::make_shared<const FileWatch>(descriptor_, opened_, name());
}

std::shared_ptr<const uint8_t> ByteSource::map() const {
    if (descriptor_ < 0) return {bytes_, [](const uint8_t *) {}};
    void *pointer = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor_, 0);
    if (pointer == MAP_FAILED) throw Failure(AOT_ERROR_IO, name(), "", "mapping the file failed");
    size_t size = size_;
    return {static_cast<const uint8_t *>(pointer), [size](const uint8_t *p) { munmap(const_cast<uint8_t *>(p), size); }};
}

}  // namespace aot
