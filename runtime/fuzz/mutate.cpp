#include "mutate.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "format.h"
#include "sha256.h"

namespace aot::fuzz {

using namespace format;

namespace {

constexpr size_t kMostSections = 40;
constexpr size_t kUnsealed = 100;  // one in so many keeps digests that do not hold

template <class T> T load(const uint8_t *from) {
    T value;
    memcpy(&value, from, sizeof value);
    return value;
}

template <class T> void store(uint8_t *to, const T &value) { memcpy(to, &value, sizeof value); }

Digest digest_of(const uint8_t *data, size_t bytes, uint32_t flags) {
    if (!(flags & section_flag::TREE)) return sha256(data, bytes);
    std::vector<Digest> leaves((bytes + kTreeChunkBytes - 1) / kTreeChunkBytes);
    hash_chunks(data, bytes, leaves.data());
    return sha256(leaves.data(), leaves.size() * sizeof(Digest));
}

// The section table of a file whose header is good enough to find it.
struct Table {
    uint8_t *data = nullptr;
    size_t size = 0;
    Header header{};
    size_t count = 0;

    bool find(uint8_t *bytes, size_t byte_count) {
        data = bytes, size = byte_count;
        if (size < sizeof header) return false;
        header = load<Header>(data);
        count = header.section_count;
        return header.section_entry_bytes == sizeof(SectionEntry) && header.table_offset <= size && count > 0 &&
               count <= kMostSections && count * sizeof(SectionEntry) <= size - header.table_offset;
    }
    uint8_t *at(size_t i) const { return data + header.table_offset + i * sizeof(SectionEntry); }
    SectionEntry entry(size_t i) const { return load<SectionEntry>(at(i)); }
    bool inside(const SectionEntry &entry) const { return entry.offset <= size && entry.bytes <= size - entry.offset; }

    // A section that has bytes; the table's length where a few tries found none.
    size_t some(Random &random) const {
        for (int tries = 0; tries < 8; ++tries) {
            const size_t i = random.below(count);
            const SectionEntry found = entry(i);
            if (found.bytes && inside(found)) return i;
        }
        return count;
    }

    void seal() {
        for (size_t i = 0; i < count; ++i) {
            SectionEntry found = entry(i);
            if (!inside(found)) continue;
            const Digest digest = digest_of(data + found.offset, static_cast<size_t>(found.bytes), found.flags);
            memcpy(at(i) + offsetof(SectionEntry, digest), digest.bytes, sizeof digest.bytes);
        }
        header.file_bytes = size;
        store(data + offsetof(Header, file_bytes), header.file_bytes);
        if (header.header_bytes < sizeof header || header.header_bytes > size) return;
        Sha256 hash;
        hash.add(data, 32);
        hash.add(data + 64, header.header_bytes - 64);
        hash.add(at(0), count * sizeof(SectionEntry));
        const Digest digest = hash.finish();
        memcpy(data + offsetof(Header, digest), digest.bytes, sizeof digest.bytes);
    }
};

// A file taken apart, so that sections may change their size.
struct Parts {
    Header header{};
    struct Part {
        SectionEntry entry;
        std::vector<uint8_t> bytes;
    };
    std::vector<Part> parts;

    explicit Parts(const Table &table) : header(table.header) {
        for (size_t i = 0; i < table.count; ++i) {
            const SectionEntry entry = table.entry(i);
            if (!table.inside(entry)) continue;
            const uint8_t *from = table.data + entry.offset;
            parts.push_back({entry, std::vector<uint8_t>(from, from + entry.bytes)});
        }
    }

    // Lays the sections out again. Returns the size, 0 where it is too large.
    size_t write(uint8_t *to, size_t max_size) {
        header.header_bytes = sizeof header;
        header.table_offset = sizeof header;
        header.section_count = static_cast<uint32_t>(parts.size());
        size_t end = sizeof header + parts.size() * sizeof(SectionEntry);
        for (Part &part : parts) {
            const size_t alignment = std::clamp<size_t>(part.entry.alignment, 1, 4096);
            part.entry.offset = (end + alignment - 1) / alignment * alignment;
            part.entry.bytes = part.bytes.size();
            end = static_cast<size_t>(part.entry.offset) + part.bytes.size();
        }
        if (end > max_size) return 0;
        memset(to, 0, end);
        store(to, header);
        uint8_t *entry = to + sizeof header;
        for (const Part &part : parts) {
            store(entry, part.entry);
            entry += sizeof part.entry;
            if (!part.bytes.empty()) memcpy(to + part.entry.offset, part.bytes.data(), part.bytes.size());
        }
        return end;
    }
};

uint64_t interesting(Random &random) {
    static constexpr uint64_t values[] = {
        0, 1, 2, 3, 7, 8, 15, 16, 63, 64, 65, 127, 255, 4096, 65535, 65536, 0x7fffffff, 0x80000000, 0xffffffff,
        0x100000000, uint64_t{1} << 46, uint64_t{1} << 56, uint64_t{1} << 58, uint64_t{1} << 62, INT64_MAX,
        uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 63};
    return values[random.below(sizeof values / sizeof *values)];
}

// Another value for a word: near the old one, near the number of records of a section, or at an edge.
uint64_t changed(uint64_t old, const Table &table, Random &random) {
    switch (random.below(7)) {
        case 0: return random.below(16);
        case 1: return old + 1 + random.below(4);
        case 2: return old - 1 - random.below(4);
        case 3: return table.entry(random.below(table.count)).count + random.below(3) - 1;
        case 4: return old ^ uint64_t{1} << random.below(64);
        case 5: return old * (2 + random.below(3));
        default: return interesting(random);
    }
}

void change_word(uint8_t *at, size_t room, const Table &table, Random &random) {
    if (room >= 8 && random.one_in(3)) store(at, changed(load<uint64_t>(at), table, random));
    else if (room >= 4) store(at, static_cast<uint32_t>(changed(load<uint32_t>(at), table, random)));
    else *at = static_cast<uint8_t>(random.next());
}

void change_record(Table &table, Random &random) {
    const size_t i = table.some(random);
    if (i == table.count) return;
    const SectionEntry entry = table.entry(i);
    const size_t bytes = static_cast<size_t>(entry.bytes), at = random.below(bytes) / 4 * 4;
    uint8_t *data = table.data + entry.offset;
    const size_t stride = entry.entry_bytes;
    if (stride > 0 && bytes >= 2 * stride && random.one_in(6)) {
        const size_t from = random.below(bytes / stride), to = random.below(bytes / stride);
        memmove(data + to * stride, data + from * stride, stride);  // another record, or a field of one
    } else if (stride > 4 && bytes >= 2 * stride && random.one_in(6)) {
        const size_t field = random.below(stride / 4) * 4;
        const size_t from = random.below(bytes / stride), to = random.below(bytes / stride);
        memmove(data + to * stride + field, data + from * stride + field, 4);
    } else {
        change_word(data + at, bytes - at, table, random);
    }
}

void change_table(Table &table, Random &random) {
    uint8_t *entry = table.at(random.below(table.count));
    const size_t field = random.below(offsetof(SectionEntry, digest) / 4) * 4;
    change_word(entry + field, offsetof(SectionEntry, digest) - field, table, random);
}

void change_header(Table &table, Random &random) {
    const size_t field = 8 + random.below((sizeof(Header) - 8) / 4) * 4;
    change_word(table.data + field, sizeof(Header) - field, table, random);
}

void change_parts(Parts &file, Random &random, ChangeBytes change) {
    if (file.parts.empty()) return;
    Parts::Part &part = file.parts[random.below(file.parts.size())];
    const size_t stride = part.entry.entry_bytes ? part.entry.entry_bytes : 4;
    const size_t records = part.bytes.size() / stride;
    if (random.one_in(20)) {
        file.parts.erase(file.parts.begin() + (&part - file.parts.data()));
        return;
    }
    if (part.entry.entry_bytes && records && random.one_in(8)) {
        // Records of another size: longer ones have fields that this reader does not know.
        const size_t wanted = std::max<size_t>(12, stride + 4 * random.below(5)) - 8;
        std::vector<uint8_t> other(records * wanted, 0);
        for (size_t i = 0; i < records; ++i) {
            memcpy(other.data() + i * wanted, part.bytes.data() + i * stride, std::min(stride, wanted));
        }
        part.bytes = std::move(other);
        part.entry.entry_bytes = static_cast<uint32_t>(wanted);
        return;
    }
    if (records && random.one_in(2)) {
        const size_t from = random.below(records);
        const std::vector<uint8_t> copy(part.bytes.begin() + static_cast<ptrdiff_t>(from * stride),
                                        part.bytes.begin() + static_cast<ptrdiff_t>((from + 1) * stride));
        const size_t times = 1 + (random.one_in(4) ? random.below(80) : 0);
        for (size_t i = 0; i < times; ++i) part.bytes.insert(part.bytes.end(), copy.begin(), copy.end());
    } else if (records && random.one_in(2)) {
        const size_t from = random.below(records);
        part.bytes.erase(part.bytes.begin() + static_cast<ptrdiff_t>(from * stride),
                         part.bytes.begin() + static_cast<ptrdiff_t>((from + 1) * stride));
    } else {
        const size_t old = part.bytes.size();
        part.bytes.resize(old + 64);
        part.bytes.resize(change(part.bytes.data(), old, part.bytes.size()));
    }
    if (part.entry.entry_bytes) part.entry.count = static_cast<uint32_t>(part.bytes.size() / stride);
}

}  // namespace

size_t mutate(uint8_t *data, size_t size, size_t max_size, uint64_t seed, ChangeBytes change) {
    Random random(seed);
    Table table;
    if (!table.find(data, size)) return change(data, size, max_size);
    if (random.one_in(12)) {
        Parts file(table);
        for (size_t n = 1 + random.below(2); n > 0; --n) change_parts(file, random, change);
        std::vector<uint8_t> out(max_size);
        const size_t written = file.write(out.data(), max_size);
        if (written == 0) return size;
        memcpy(data, out.data(), written);
        size = written;
        if (!table.find(data, size)) return size;
    }
    for (size_t n = 1 + random.below(random.one_in(4) ? 6 : 2); n > 0; --n) {
        if (random.one_in(24)) change_table(table, random);
        else if (random.one_in(64)) change_header(table, random);
        else if (random.one_in(12)) size = change(data, size, max_size);
        else change_record(table, random);
        if (!table.find(data, size)) return size;
    }
    if (!random.one_in(kUnsealed)) table.seal();
    return size;
}

size_t cross(const uint8_t *left, size_t left_size, const uint8_t *right, size_t right_size, uint8_t *out,
             size_t max_size, uint64_t seed) {
    Random random(seed);
    Table first, second;
    if (!random.one_in(4)) return 0;  // it takes longer than a mutation, and finds less
    // Tables are only read here.
    if (!first.find(const_cast<uint8_t *>(left), left_size) || !second.find(const_cast<uint8_t *>(right), right_size)) {
        return 0;
    }
    Parts file(first), other(second);
    const bool weights_and_constants = random.one_in(2);
    for (Parts::Part &part : file.parts) {
        const bool together = part.entry.kind >= section::SOURCES && part.entry.kind <= section::CONSTANTS;
        if (weights_and_constants ? !together : !random.one_in(6)) continue;
        for (Parts::Part &candidate : other.parts) {
            if (candidate.entry.kind == part.entry.kind) part = candidate;
        }
    }
    const size_t size = file.write(out, max_size);
    Table sealed;
    if (size && sealed.find(out, size)) sealed.seal();
    return size;
}

}  // namespace aot::fuzz
