#include "weights.h"

#include <algorithm>
#include <cstdio>

#include "sha256.h"
#include "tensor.h"

namespace aot {

using namespace format;

namespace {

constexpr size_t kWindowBytes = 16 * kTreeChunkBytes;  // stays in the second-level cache between hashing and copying

constexpr size_t kHugePage = size_t{2} << 20;

struct Range {
    uint64_t offset;  // in the section
    uint64_t bytes;
    const uint8_t *data;  // where it is in memory
};

class Sources final : public SourceWeights {
public:
    // `section`: the weights of the file in memory, or NULL where they are read.
    Sources(const Artifact &artifact, const ProgramEntry &program, const ByteSource &source,
            const WeightOptions &options, const uint8_t *section)
        : a_(artifact), p_(program), artifact_file_(source), section_(section), options_(options), file_(source.name()),
          held_(Allocator<uint8_t>(artifact.memory)) {
        if (p_.weights != weights_mode::EXTERNAL) return;
        if (options.external_path) {
            path_ = options.external_path;
        } else if (*source.name()) {
            const char *name = a_.text(p_.external_file);
            if (!*name || strchr(name, '/')) throw damaged(file_, "programs", 0, "a bad name of the weights file");
            path_ = source.name();
            const size_t slash = path_.rfind('/');
            path_ = (slash == std::string::npos ? "" : path_.substr(0, slash + 1)) + name;
        }
    }

    const uint8_t *bytes(uint32_t index) override {
        const SourceEntry &source = a_.sources[p_.sources.first + index];
        if (p_.weights == weights_mode::EMBEDDED) {
            if (section_) return section_ + source.external_offset;
            held_.resize(static_cast<size_t>(source.bytes));
            artifact_file_.read(a_.weights.offset + source.external_offset, held_.data(), held_.size());
            return held_.data();
        }
        const char *name = a_.text(source.name);
        const uint8_t *data = given(source, name);
        const bool is_given = data;
        if (!data && !path_.empty()) {
            open_external();
            if (source.external_offset > external_->size() || source.bytes > external_->size() - source.external_offset) {
                throw Failure(AOT_ERROR_WEIGHTS, external_->name(),
                              "It is truncated, or another file: copy the one that was built with the artifact.",
                              "the file of weights has %zu bytes; %llu are expected (it ends before weight %.80s does)",
                              external_->size(), static_cast<unsigned long long>(external_end()), name);
            }
            held_.resize(static_cast<size_t>(source.bytes));
            external_->read(source.external_offset, held_.data(), held_.size());
            data = held_.data();
        }
        if (!data) missing(index);
        if (!(options_.flags & AOT_LOAD_ANY_WEIGHTS) || options_.is_trusted_only) {
            Digest digest = sha256(data, static_cast<size_t>(source.bytes));
            if (memcmp(digest.bytes, source.sha256, sizeof digest.bytes) != 0) {
                if (!is_given) {
                    throw Failure(AOT_ERROR_WEIGHTS, external_->name(),
                                  "Copy the file that was built with the artifact, or accept others: AOT_LOAD_ANY_WEIGHTS, verify_weights=False in Python.",
                                  "weight %.80s in the file of weights differs from that of the build: its SHA-256 begins with "
                                  "%s, %s is expected", name, hex(digest.bytes).c_str(), hex(source.sha256).c_str());
                }
                throw Failure(AOT_ERROR_WEIGHTS, name,
                              "Give the weights that the artifact was built from, or accept others: AOT_LOAD_ANY_WEIGHTS, verify_weights=False in Python.",
                              "the values differ from those of the build");
            }
        }
        return data;
    }

private:
    // Opens the file of weights when the first one is read from it: the caller may have given all of them.
    void open_external() {
        if (external_) return;
        try {
            external_ = std::make_unique<ByteSource>(path_.c_str());
        } catch (const Failure &failure) {
            const char *hint = options_.external_path
                ? "Give the path of the file of weights that was built with the artifact."
                : "Put it beside the artifact, where the build wrote it, or say where it is when loading (--weights FILE in aotc).";
            throw Failure(failure.status, failure.where, hint, "the artifact's weights are in this file; %.200s", failure.message);
        }
    }

    // Where the last weight ends in the file of weights.
    uint64_t external_end() const {
        uint64_t end = 0;
        for (uint32_t i = 0; i < p_.sources.count; ++i) {
            const SourceEntry &source = a_.sources[p_.sources.first + i];
            end = std::max(end, source.external_offset + source.bytes);
        }
        return end;
    }

    // The first bytes of a digest, as people compare them.
    static std::string hex(const uint8_t *digest) {
        return text_of("%02x%02x%02x%02x", digest[0], digest[1], digest[2], digest[3]);
    }

    // Says how many weights were not given, not only that this is one.
    [[noreturn]] void missing(uint32_t index) const {
        uint32_t count = 0;
        for (uint32_t i = 0; i < p_.sources.count; ++i) {
            const char *name = a_.text(a_.sources[p_.sources.first + i].name);
            bool found = false;
            for (uint32_t j = 0; j < options_.given_count; ++j) {
                found = found || (options_.given[j].name && strcmp(options_.given[j].name, name) == 0);
            }
            count += !found;
        }
        const char *name = a_.text(a_.sources[p_.sources.first + index].name);
        if (p_.weights == weights_mode::EXTERNAL) {
            throw Failure(AOT_ERROR_WEIGHTS, name, "Give the path of that file, or all weights by name, when loading.",
                          "the artifact's weights are in the file %.120s beside it, and it was loaded from memory",
                          a_.text(p_.external_file));
        }
        if (options_.external_path) {
            throw Failure(AOT_ERROR_WEIGHTS, name, "Read the file, and give the model's weights by name when loading.",
                          "the artifact was built without weights, and takes them by name, not from the file %.120s",
                          options_.external_path);
        }
        throw Failure(AOT_ERROR_WEIGHTS, name, "Give the model's weights by name when loading.",
                      "the artifact was built without weights, and this one was not given (%u of %u are missing)", count,
                      p_.sources.count);
    }

    const uint8_t *given(const SourceEntry &source, const char *name) const {
        for (uint32_t i = 0; i < options_.given_count; ++i) {
            const aot_named_tensor &item = options_.given[i];
            if (!item.name || !item.tensor || strcmp(item.name, name) != 0) continue;
            const aot_tensor &tensor = *item.tensor;
            char expected[160], found[160];
            int64_t shape[kMaxRank];
            if (source.shape.count > kMaxRank) throw damaged(file_, "sources", 0, "too many dimensions");
            for (uint32_t axis = 0; axis < source.shape.count; ++axis) shape[axis] = a_.integer(source.shape.first + axis);
            bool fits = same_dtype(tensor, source.dtype) && tensor.rank == static_cast<int32_t>(source.shape.count);
            for (uint32_t axis = 0; fits && axis < source.shape.count; ++axis) fits = tensor.shape[axis] == shape[axis];
            if (!fits || !is_dense(tensor) || (source.bytes && !tensor.data)) {
                describe(find_dtype(source.dtype)->name, shape, source.shape.count, expected, sizeof expected);
                describe(tensor, found, sizeof found);
                throw Failure(AOT_ERROR_WEIGHTS, name, "Give the weight as the model has it, row-major.",
                              "expected a row-major weight %s, got %s%s", expected, found, fits ? ", not row-major" : "");
            }
            return static_cast<const uint8_t *>(tensor.data) + tensor.byte_offset;
        }
        return nullptr;
    }

    const Artifact &a_;
    const ProgramEntry &p_;
    const ByteSource &artifact_file_;
    const uint8_t *section_;
    const WeightOptions &options_;
    const char *file_;
    Vector<uint8_t> held_;
    std::string path_;  // of the file of weights; empty where there is none
    std::unique_ptr<ByteSource> external_;
};

class Loader {
public:
    Loader(const Artifact &artifact, const Vector<uint32_t> &programs, const ByteSource &source,
           const WeightOptions &options, Weights &out)
        : a_(artifact), programs_(programs), source_(source), options_(options), out_(out),
          is_shared_(!(options.flags & AOT_LOAD_OWN_WEIGHTS)), ranges_(Allocator<Range>(artifact.memory)) {}

    ~Loader() {
        if (match_) SharedConstants::let_go(match_);
    }

    void load() {
        const bool map = options_.flags & AOT_LOAD_MAP_WEIGHTS;
        if (map && options_.is_trusted_only && source_.is_file()) {
            throw Failure(AOT_ERROR_ARGUMENT, source_.name(), "Load without mapping: models of a process share weights all the same.",
                          "mapped weights cannot be trusted: who may write to the file could change them after the check");
        }
        if (!map) find_ranges();
        const bool is_made = make_slab();
        // Sources in the file are looked at a second time, behind the hash.
        const auto watch = map || is_made ? source_.watch() : nullptr;
        if (map) {
            out_.mapping = source_.map(), out_.watch = watch;
            section_ = out_.mapping.get() + a_.weights.offset;
        } else if (is_made && options_.is_trusted_only) {
            copy_ = Block(a_.memory, static_cast<size_t>(a_.weights.bytes), kConstantAlignBytes);  // what is hashed is used
            section_ = copy_.data();
        }
        hash_and_copy();
        if (out_.watch) out_.watch->must_be_unchanged(source_.name());  // to look at a mapping of a cut file is death
        point_and_make();
        out_.bytes = out_.own_bytes + out_.shared.bytes() + (map ? a_.weights.bytes : 0);
        if (watch) watch->must_be_unchanged(source_.name());
        if (!out_.slab) return;
        if (shared_place_ == out_.own_bytes && !out_.own_bytes) out_.slab.reset();
        else out_.slab->discard(out_.slab->data() + shared_place_, out_.slab->bytes() - shared_place_);
    }

private:
    // Where one more constant ends.
    static uint64_t add(uint64_t total, uint64_t bytes) {
        if (bytes > SIZE_MAX / 4 || total > SIZE_MAX / 4) throw std::bad_alloc();
        return round_up(total, kConstantAlignBytes) + bytes;
    }

    template <class F> void for_constants(uint32_t program, F &&f) {
        const Run run = a_.programs[program].constants;
        for (uint32_t i = 0; i < run.count; ++i) f(a_.constants[run.first + i]);
    }

    template <class F> void for_each(F &&f) {
        for (uint32_t number : programs_) for_constants(number, f);
    }

    bool may_share(uint64_t bytes) const { return is_shared_ && bytes >= kSharedBytes; }

    // The used ranges of the section, in its order.
    void find_ranges() {
        for_each([&](const ConstantEntry &constant) {
            if (constant.flags & constant_flag::EMBEDDED) ranges_.push_back({constant.offset, constant.bytes, nullptr});
        });
        auto less = [](const Range &x, const Range &y) {
            return x.offset != y.offset ? x.offset < y.offset : x.bytes < y.bytes;
        };
        auto same = [](const Range &x, const Range &y) { return x.offset == y.offset && x.bytes == y.bytes; };
        std::sort(ranges_.begin(), ranges_.end(), less);
        ranges_.erase(std::unique(ranges_.begin(), ranges_.end(), same), ranges_.end());
        uint64_t end = 0;
        for (const Range &range : ranges_) {
            // Overlapping constants would take more memory than the file.
            if (range.bytes && range.offset < end) throw damaged(source_.name(), "constants", a_.weights.offset, "constants overlap");
            end = range.offset + range.bytes;
        }
    }

    // One block: first the constants of this model alone, then room for those that may be shared. Of what turns out to
    // be in memory already, no page is touched. A caller's allocator gives the latter one by one, since it wants whole
    // blocks back. Says whether there are constants to be made.
    bool make_slab() {
        bool is_made = false;
        uint64_t own = 0, others = 0;
        auto place = [&](uint64_t bytes) {
            if (!may_share(bytes)) own = add(own, bytes);
            else if (a_.memory.is_default()) others = add(others, bytes);
        };
        for (const Range &range : ranges_) place(range.bytes);
        for_each([&](const ConstantEntry &constant) {
            if (constant.flags & constant_flag::EMBEDDED) return;
            is_made = true;
            place(constant.bytes);
        });
        out_.own_bytes = shared_place_ = round_up(static_cast<size_t>(own), kConstantAlignBytes);
        const size_t total = out_.own_bytes + static_cast<size_t>(others);
        if (total) out_.slab = std::make_shared<Slab>(a_.memory, total, total >= kHugePage ? kHugePage : 64);
        return is_made;
    }

    // Memory for a constant.
    uint8_t *room(uint64_t size) {
        const size_t bytes = static_cast<size_t>(size);
        if (!may_share(size)) {
            uint8_t *to = out_.slab ? out_.slab->data() + own_place_ : nullptr;
            own_place_ = round_up(own_place_ + bytes, kConstantAlignBytes);
            return to;
        }
        if (a_.memory.is_default()) return out_.slab->data() + shared_place_;
        // Where a huge page more at the end does not matter, huge pages are possible.
        single_ = std::make_shared<Slab>(a_.memory, bytes, bytes >= 16 * kHugePage ? kHugePage : kConstantAlignBytes);
        return single_->data();
    }

    // Where a constant is that was written to the last room: there, or where another model has the same.
    const uint8_t *finish(const uint8_t *data, uint64_t bytes) {
        if (!may_share(bytes)) return data;
        const uint8_t *kept = out_.shared.offer(single_ ? single_ : out_.slab, data, bytes);
        if (kept == data && !single_) shared_place_ = round_up(shared_place_ + static_cast<size_t>(bytes), kConstantAlignBytes);
        single_.reset();
        return kept;
    }

    void hash_and_copy() {
        const uint64_t bytes = a_.weights.bytes;
        Vector<uint8_t> window{Allocator<uint8_t>(a_.memory)};
        // Also a file that gets mapped is read for its hash: to look at a mapping of a truncated file is death.
        const bool read = !out_.mapping || source_.is_file();
        if (read && !copy_.data()) window.resize(bytes < kWindowBytes ? static_cast<size_t>(bytes) : kWindowBytes);
        const bool tree = a_.weights.flags & section_flag::TREE;
        Digest leaves[kWindowBytes / kTreeChunkBytes];
        Sha256 hash;
        size_t first = 0;  // of the ranges that this window and later ones have
        for (uint64_t at = 0; at < bytes; at += kWindowBytes) {
            const size_t part = bytes - at < kWindowBytes ? static_cast<size_t>(bytes - at) : kWindowBytes;
            uint8_t *const to = copy_.data() ? copy_.data() + at : window.data();
            if (read) source_.read(a_.weights.offset + at, to, part);
            const uint8_t *data = read ? to : out_.mapping.get() + a_.weights.offset + at;
            if (tree) {
                hash_chunks(data, part, leaves);
                hash.add(leaves, (part + kTreeChunkBytes - 1) / kTreeChunkBytes * sizeof(Digest));
            } else {
                hash.add(data, part);
            }
            for (; first < ranges_.size() && ranges_[first].offset < at + part; ++first) {
                Range &range = ranges_[first];
                const uint64_t from = std::max(range.offset, at), end = range.offset + range.bytes;
                take(range, static_cast<size_t>(from - range.offset), data + (from - at),
                     static_cast<size_t>(std::min(end, at + part) - from));
                if (end > at + part) break;  // the next window goes on with it
            }
        }
        Digest digest = hash.finish();
        if (memcmp(digest.bytes, a_.weights.entry.digest, sizeof digest.bytes) != 0) {
            throw damaged(source_.name(), "weights", a_.weights.offset, "the section's bytes do not match their SHA-256");
        }
    }

    // The bytes of a range arrive: as long as they are those of a constant in memory, they are not copied.
    void take(Range &range, size_t at, const uint8_t *data, size_t size) {
        if (at == 0) {
            match_ = size && may_share(range.bytes) ? out_.shared.find(range.bytes, data, size, nullptr, 0) : nullptr;
            if (!match_) target_ = room(range.bytes);
        } else if (match_ && memcmp(match_->data + at, data, size) != 0) {
            SharedConstant *const next = out_.shared.find(range.bytes, data, size, match_, at);
            if (!next) memcpy(target_ = room(range.bytes), match_->data, at);
            SharedConstants::let_go(match_);
            match_ = next;
        }
        if (!match_ && size) memcpy(target_ + at, data, size);
        if (at + size < range.bytes) return;
        range.data = match_ ? out_.shared.keep(match_) : finish(target_, range.bytes);
        match_ = nullptr;
    }

    void point_and_make() {
        out_.first_of_program.assign(a_.programs.size(), 0);
        for (uint32_t number : programs_) {
            out_.first_of_program[number] = static_cast<uint32_t>(out_.pointers.size());
            std::unique_ptr<Sources> sources;
            for_constants(number, [&](const ConstantEntry &constant) {
                if (!(constant.flags & constant_flag::EMBEDDED)) {
                    if (!sources) {
                        sources = std::make_unique<Sources>(a_, a_.programs[number], source_, options_, section_);
                    }
                    uint8_t *to = room(constant.bytes);
                    run_recipe(a_, a_.programs[number], constant, *sources, source_.name(), to);
                    out_.pointers.push_back(finish(to, constant.bytes));
                } else if (out_.mapping) {
                    out_.pointers.push_back(out_.mapping.get() + a_.weights.offset + constant.offset);
                } else {
                    auto found = std::find_if(ranges_.begin(), ranges_.end(), [&](const Range &range) {
                        return range.offset == constant.offset && range.bytes == constant.bytes;
                    });
                    out_.pointers.push_back(found->data);
                }
            });
        }
    }

    const Artifact &a_;
    const Vector<uint32_t> &programs_;
    const ByteSource &source_;
    const WeightOptions &options_;
    Weights &out_;
    const bool is_shared_;
    Vector<Range> ranges_;
    const uint8_t *section_ = nullptr;  // the weights of the file in memory, where they are
    Block copy_;  // of the section, while constants are made from it
    size_t own_place_ = 0, shared_place_ = 0;  // in the slab
    std::shared_ptr<Slab> single_;  // the last room, where a caller's allocator gave it
    uint8_t *target_ = nullptr;  // of the range that arrives,
    SharedConstant *match_ = nullptr;  // or what its bytes are equal to so far
};

}  // namespace

void load_weights(const Artifact &artifact, const Vector<uint32_t> &programs, const ByteSource &source,
                  const WeightOptions &options, Weights &out) {
    Loader(artifact, programs, source, options, out).load();
}

void Weights::keep(const Artifact &artifact, const Vector<uint32_t> &programs) {
    size_t total = 0;
    auto each = [&](auto &&use) {
        for (uint32_t program : programs) {
            const Run constants = artifact.programs[program].constants;
            for (uint32_t i = 0; i < constants.count; ++i) {
                use(first_of_program[program] + i, static_cast<size_t>(artifact.constants[constants.first + i].bytes));
            }
        }
    };
    each([&](size_t, size_t size) { total += round_up(size, kConstantAlignBytes); });
    auto kept = std::make_shared<Slab>(artifact.memory, total, kConstantAlignBytes);
    Vector<const uint8_t *> found(pointers.size(), nullptr, pointers.get_allocator());
    total = 0;
    each([&](size_t number, size_t size) {
        found[number] = kept->data() + total;
        if (size) memcpy(kept->data() + total, pointers[number], size);
        total += round_up(size, kConstantAlignBytes);
    });
    pointers.swap(found);
    drop_own();
    shared.release();
    slab = std::move(kept);
    own_bytes = total;
    mapping.reset();
    watch.reset();
}

// What other models hold of the slab stays.
void Weights::drop_own() {
    if (slab && slab.use_count() > 1) slab->discard(slab->data(), own_bytes);
    slab.reset();
}

}  // namespace aot
