// Reads the section table and the sections. Which records may refer to which is in validate.cpp.
#include "artifact.h"

#include <cstdarg>
#include <cstdio>
#include <type_traits>

#include "sha256.h"
#include "signature.h"
#include "validate.h"

namespace aot {

using namespace format;

Artifact::Artifact(const Memory &memory)
    : memory(memory), strings(Allocator<char>(memory)), integers(strings.get_allocator()),
      dim_code(strings.get_allocator()), dims(strings.get_allocator()), symbols(strings.get_allocator()),
      ports(strings.get_allocator()), guards(strings.get_allocator()), sources(strings.get_allocator()),
      recipes(strings.get_allocator()), constants(strings.get_allocator()), buffers(strings.get_allocator()),
      kernels(strings.get_allocator()), arguments(strings.get_allocator()), steps(strings.get_allocator()),
      flow(strings.get_allocator()), host(strings.get_allocator()), tensors(strings.get_allocator()),
      programs(strings.get_allocator()), signatures(strings.get_allocator()), code(strings.get_allocator()),
      meta(strings.get_allocator()) {}

Failure damaged(const char *file, const char *section, uint64_t offset, const char *format, ...) {
    char text[320];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return Failure(AOT_ERROR_DAMAGED, file, "Copy or download the file again, or build it again.",
                   "the artifact is damaged: %s at offset %llu: %s", section,
                   static_cast<unsigned long long>(offset), text);
}

const DType *find_dtype(uint32_t number) {
    for (const DType &dtype : kDTypes) {
        if (dtype.number == number) return &dtype;
    }
    return nullptr;
}

int64_t shape_bytes(const Artifact &artifact, Run shape, uint32_t dtype) {
    const DType *found = find_dtype(dtype);
    if (!found) return -1;
    int64_t total = item_bytes(*found);
    for (uint32_t i = 0; i < shape.count; ++i) {
        int64_t extent = artifact.integer(shape.first + i);
        if (extent < 0 || !checked_mul(total, extent, &total)) return -1;
    }
    return total;
}

namespace {

void check_zero(const ByteSource &source, uint64_t start, uint64_t end, const char *where) {
    uint8_t bytes[4096];
    for (uint64_t at = start; at < end;) {
        size_t part = end - at < sizeof bytes ? static_cast<size_t>(end - at) : sizeof bytes;
        source.read(at, bytes, part);
        for (size_t i = 0; i < part; ++i) {
            if (bytes[i]) throw damaged(source.name(), where, at + i, "padding bytes are not zero");
        }
        at += part;
    }
}

class SectionTable {
public:
    SectionTable(const ByteSource &source, const Memory &memory)
        : source_(source), memory_(memory), header_bytes_(Allocator<uint8_t>(memory)), table_(header_bytes_.get_allocator()) {
        read_header();
        read_table();
    }

    // Throws a Failure unless the header and the table are signed as `trusted` asks.
    void check_trust(const TrustedKeys &trusted, const Vector<SignatureEntry> &signatures) const {
        if (trusted.is_given()) must_be_trusted(source_.name(), trusted, signatures, header_, header_bytes_, table_);
    }

    // Sections that nothing is taken from.
    void check_unused() const {
        for (uint32_t i = 0; i < header_.section_count; ++i) {
            SectionEntry entry;
            memcpy(&entry, table_.data() + size_t{i} * header_.section_entry_bytes, sizeof entry);
            const bool known = entry.kind > 0 && entry.kind < kSectionKinds;
            if (known && entry.kind != section::DEBUG && entry.kind != section::SELF_TEST) continue;
            hash_unused(SectionPlace{entry.offset, entry.bytes, entry.flags, true, entry}, section_name(entry.kind));
        }
    }

    const SectionPlace &place(uint32_t kind) const { return places_[kind]; }

    // Copies a section of plain bytes and checks its hash.
    template <class T> void bytes(uint32_t kind, Vector<T> &out) const {
        const SectionPlace &place = places_[kind];
        out.resize(static_cast<size_t>(place.bytes));
        source_.read(place.offset, out.data(), out.size());
        check_hash(place, reinterpret_cast<const uint8_t *>(out.data()), section_name(kind));
    }

    // Copies the records of a section and checks its hash.
    template <class T> void records(Vector<T> &out) const {
        constexpr uint32_t kind = section_of(static_cast<const T *>(nullptr));
        static_assert(std::is_trivially_copyable_v<T>, "records are bytes");
        const Vector<uint8_t> raw = raw_records(kind);
        out.resize(places_[kind].entry.count);  // to zeros
        spread(kind, raw, reinterpret_cast<uint8_t *>(out.data()), sizeof(T));
    }

private:
    // The bytes of a section of records, checked.
    Vector<uint8_t> raw_records(uint32_t kind) const {
        const SectionPlace &place = places_[kind];
        Vector<uint8_t> raw{Allocator<uint8_t>(memory_)};
        bytes(kind, raw);
        const uint32_t stride = place.entry.entry_bytes;
        if (stride == 0 || uint64_t{stride} * place.entry.count != place.bytes) {
            throw damaged(source_.name(), section_name(kind), place.offset, "%u records of %u bytes do not fill %llu bytes",
                          place.entry.count, stride, static_cast<unsigned long long>(place.bytes));
        }
        return raw;
    }

    // Copies records as the file has them to records of `size` bytes each.
    void spread(uint32_t kind, const Vector<uint8_t> &raw, uint8_t *out, size_t size) const {
        const size_t stride = places_[kind].entry.entry_bytes, known = stride < size ? stride : size;
        for (size_t i = 0; i < places_[kind].entry.count; ++i) memcpy(out + i * size, raw.data() + i * stride, known);
    }

    void read_header() {
        Header &h = header_;
        if (source_.size() < sizeof h) {
            throw damaged(source_.name(), "header", 0, "the file has %zu bytes, fewer than a header", source_.size());
        }
        source_.read(0, &h, sizeof h);
        if (memcmp(&h.magic, "PK\3\4", 4) == 0) {
            throw damaged(source_.name(), "header", 0,
                          "this is a zip archive, as PyTorch writes programs to be built, and no artifact (wrong magic)");
        }
        if (memcmp(&h.magic, kMagic, sizeof kMagic) != 0) {
            throw damaged(source_.name(), "header", 0,
                          "this is not an aotc artifact, or its first bytes are lost (wrong magic)");
        }
        if (h.file_bytes != source_.size()) {
            throw damaged(source_.name(), "header", 16, "the header says %llu bytes, the file has %zu (truncated?)",
                          static_cast<unsigned long long>(h.file_bytes), source_.size());
        }
        if (h.header_bytes < sizeof h || h.header_bytes > source_.size()) {
            throw damaged(source_.name(), "header", 12, "header size %u", h.header_bytes);
        }
        const uint64_t table_bytes = uint64_t{h.section_count} * h.section_entry_bytes;
        if (h.section_entry_bytes < sizeof(SectionEntry) || h.table_offset < h.header_bytes ||
            h.table_offset > source_.size() || table_bytes > source_.size() - h.table_offset) {
            throw damaged(source_.name(), "section table", 64, "%u sections of %u bytes do not fit the file",
                          h.section_count, h.section_entry_bytes);
        }
        Vector<uint8_t> &bytes = header_bytes_;
        bytes.resize(h.header_bytes);
        source_.read(0, bytes.data(), bytes.size());
        // What was checked is what gets hashed and used, also where someone writes to the file meanwhile.
        memcpy(bytes.data(), &h, sizeof h);
        Sha256 hash;
        hash.add(bytes.data(), 32);
        hash.add(bytes.data() + 64, bytes.size() - 64);
        table_.resize(static_cast<size_t>(table_bytes));
        source_.read(h.table_offset, table_.data(), table_.size());
        hash.add(table_.data(), table_.size());
        Digest digest = hash.finish();
        if (memcmp(digest.bytes, h.digest, sizeof h.digest) != 0) {
            throw damaged(source_.name(), "header", 32, "the digest of header and section table does not hold");
        }
        // Only now: a damaged version field is damage, not another version.
        if ((h.version & 0xffff) != kMajor) {
            throw Failure(AOT_ERROR_VERSION, source_.name(),
                          "Use a runtime of the same major version, or build the artifact again with this aotc.",
                          "the artifact has format version %u.%u, this runtime knows %u.x", h.version & 0xffff,
                          h.version >> 16, kMajor);
        }
    }

    void read_table() {
        check_zero(source_, header_.header_bytes, header_.table_offset, "header");
        uint64_t end = header_.table_offset + uint64_t{header_.section_count} * header_.section_entry_bytes;
        for (uint32_t i = 0; i < header_.section_count; ++i) {
            const size_t place = size_t{i} * header_.section_entry_bytes;
            const uint64_t at = header_.table_offset + place;
            SectionEntry entry;
            memcpy(&entry, table_.data() + place, sizeof entry);
            const char *name = section_name(entry.kind);
            const bool known = entry.kind > 0 && entry.kind < kSectionKinds;
            if (known && places_[entry.kind].present) throw damaged(source_.name(), name, at, "the section is there twice");
            if (entry.offset < end || entry.offset > source_.size() || entry.bytes > source_.size() - entry.offset) {
                throw damaged(source_.name(), name, at, "bytes %llu + %llu overlap another section or the end of the file",
                              static_cast<unsigned long long>(entry.offset),
                              static_cast<unsigned long long>(entry.bytes));
            }
            if (entry.alignment == 0 || (entry.alignment & (entry.alignment - 1)) ||
                entry.offset % entry.alignment || entry.reserved) {
                throw damaged(source_.name(), name, at, "the section is misaligned");
            }
            check_zero(source_, end, entry.offset, name);
            end = entry.offset + entry.bytes;
            if (!known && (entry.flags & section_flag::REQUIRED)) {
                throw Failure(AOT_ERROR_VERSION, source_.name(), "Use a newer runtime.",
                              "the artifact (format version %u.%u) needs section %u, which this runtime does not know",
                              header_.version & 0xffff, header_.version >> 16, entry.kind);
            }
            if (known) places_[entry.kind] = SectionPlace{entry.offset, entry.bytes, entry.flags, true, entry};
        }
        if (end != source_.size()) throw damaged(source_.name(), "file", end, "bytes behind the last section");
        for (uint32_t kind = 1; kind < kSectionKinds; ++kind) {
            const bool optional = kind == section::META || kind == section::SELF_TEST ||
                                  kind == section::DEBUG || kind == section::FLOW || kind == section::HOST ||
                                  kind == section::TENSORS || kind == section::SIGNATURE;
            if (!optional && !places_[kind].present) {
                throw damaged(source_.name(), "section table", header_.table_offset, "section %s is missing",
                              section_name(kind));
            }
        }
    }

    void hash_unused(const SectionPlace &place, const char *name) const {
        Vector<uint8_t> bytes(static_cast<size_t>(place.bytes), Allocator<uint8_t>(memory_));
        source_.read(place.offset, bytes.data(), bytes.size());
        check_hash(place, bytes.data(), name);
    }

    void check_hash(const SectionPlace &place, const uint8_t *data, const char *name) const {
        const size_t bytes = static_cast<size_t>(place.bytes);
        Digest digest;
        if (place.flags & section_flag::TREE) {
            Vector<Digest> leaves((bytes + kTreeChunkBytes - 1) / kTreeChunkBytes, Digest{}, Allocator<Digest>(memory_));
            hash_chunks(data, bytes, leaves.data());
            digest = sha256(leaves.data(), leaves.size() * sizeof(Digest));
        } else {
            digest = sha256(data, bytes);
        }
        if (memcmp(digest.bytes, place.entry.digest, sizeof digest.bytes) != 0) {
            throw damaged(source_.name(), name, place.offset, "the section's bytes do not match their SHA-256");
        }
    }

    const ByteSource &source_;
    const Memory &memory_;
    Header header_{};
    Vector<uint8_t> header_bytes_, table_;  // as hashed
    SectionPlace places_[kSectionKinds];
};

}  // namespace

void read_artifact(const ByteSource &source, const TrustedKeys &trusted, Artifact &out) {
    SectionTable table(source, out.memory);
    if (const SectionPlace &place = table.place(section::SIGNATURE); place.present) {
        if (place.entry.count > kMostSignatures || place.entry.entry_bytes < sizeof(SignatureEntry)) {
            throw damaged(source.name(), section_name(section::SIGNATURE), place.offset, "%u records of %u bytes; %u of %zu are the most",
                          place.entry.count, place.entry.entry_bytes, kMostSignatures, sizeof(SignatureEntry));
        }
        table.records(out.signatures);
    }
    table.check_trust(trusted, out.signatures);
    table.check_unused();
    table.bytes(section::STRINGS, out.strings);
    table.records(out.integers);
    table.records(out.dim_code);
    table.records(out.dims);
    table.records(out.symbols);
    table.records(out.ports);
    table.records(out.guards);
    table.records(out.sources);
    table.records(out.recipes);
    table.records(out.constants);
    table.records(out.buffers);
    table.records(out.kernels);
    table.records(out.arguments);
    table.records(out.steps);
    if (table.place(section::FLOW).present) table.records(out.flow);
    if (table.place(section::HOST).present) table.records(out.host);
    if (table.place(section::TENSORS).present) table.records(out.tensors);
    table.records(out.programs);
    table.bytes(section::CODE, out.code);
    if (table.place(section::META).present) table.bytes(section::META, out.meta);
    out.weights = table.place(section::WEIGHTS);
    Offsets offsets{};
    for (uint32_t kind = 1; kind < kSectionKinds; ++kind) offsets.section[kind] = table.place(kind).offset;
    validate(out, source.name(), offsets);
}

}  // namespace aot
