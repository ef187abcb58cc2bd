#include "model.h"

#include "cuda/loaded.h"
#include "machine.h"

namespace aot {

using namespace format;

Model::Model(const ByteSource &source, const aot_load_options &options)
    : memory(options.allocator), name(source.name()), artifact(memory), weights(memory),
      variants(Allocator<Variant>(memory)), blocks(variants.get_allocator()) {
    const TrustedKeys trusted{options.trusted_keys, options.trusted_key_count};
    read_artifact(source, trusted, artifact);
    select(options);
    check_variants();
    Vector<uint32_t> programs{Allocator<uint32_t>(memory)};
    for (const Variant &variant : variants) programs.push_back(variant.program);
    for (const Variant &block : blocks) programs.push_back(block.program);
    WeightOptions weight_options;
    weight_options.flags = options.flags;
    weight_options.given = options.weights;
    weight_options.given_count = options.weights ? options.weight_count : 0;
    weight_options.external_path = options.weights_path;
    weight_options.is_trusted_only = trusted.is_given();
    load_weights(artifact, programs, source, weight_options, weights);
    if (is_gpu_target(artifact.text(variants[0].entry->target))) {
        device = std::make_unique<cuda::DeviceModel>(*this, options.device, static_cast<cuda::Context>(options.context));
        // What the device has need not be here too.
        programs.clear();
        for (const Variant &block : blocks) {
            if (!block.on_device) programs.push_back(block.program);
        }
        weights.keep(artifact, programs);
    }
    for (Variant &variant : variants) load_code(variant, options.temporary_directory);
    for (Variant &block : blocks) load_code(block, options.temporary_directory);
    // The code was copied into the process.
    artifact.code.clear();
    artifact.code.shrink_to_fit();
}

Model::~Model() = default;

// The program that fits this machine best decides the target; all programs of that target are variants.
void Model::select(const aot_load_options &options) {
    bool with_gpu = false;
    for (const ProgramEntry &program : artifact.programs) {
        const char *text = artifact.text(program.target);
        with_gpu = with_gpu || (is_gpu_target(text) && (!options.target || strcmp(options.target, text) == 0));
    }
    const Machine machine = this_machine(with_gpu, options.device, options.context);
    const char *target = nullptr;
    int best = 0;
    for (const ProgramEntry &program : artifact.programs) {
        if (program.is_block) break;
        const char *text = artifact.text(program.target);
        std::string problem;
        int rank = 0;
        if (options.target && strcmp(options.target, text) != 0) problem = text_of("asked for was %s", options.target);
        else rank = rank_of(program, machine, &problem);
        if (rank > best) best = rank, target = text;
        problems.push_back(std::move(problem));
    }
    std::string reasons, last;
    for (size_t i = 0; i < problems.size(); ++i) {
        const char *text = artifact.text(artifact.programs[i].target);
        if (problems[i].empty() && strcmp(text, target) != 0) problems[i] = text_of("%s comes first", target);
        if (last != text) reasons += text_of("%s%s: %s", reasons.empty() ? "" : "; ", text, problems[i].c_str());
        last = text;
    }
    if (!target) {
        throw Failure(AOT_ERROR_TARGET, name.c_str(), "Build the model for a target that this machine supports.",
                      "no program runs here: %s", reasons.c_str());
    }
    for (uint32_t i = 0; i < artifact.programs.size(); ++i) {
        const ProgramEntry &program = artifact.programs[i];
        if (program.is_block || strcmp(artifact.text(program.target), target) != 0) continue;
        variants.push_back(Variant{i, &program, nullptr, Vector<Kernel>(Allocator<Kernel>(memory)), is_gpu_target(target)});
        add_blocks(variants.back());
    }
}

// A program runs where all its blocks do: those of host steps want a CPU of their level.
int Model::rank_of(const ProgramEntry &program, const Machine &machine, std::string *problem) const {
    const char *target = artifact.text(program.target);
    const int rank = target_rank(target, static_cast<int>(program.driver), machine, problem);
    for (uint32_t i = 0; rank && i < program.blocks.count; ++i) {
        const char *text = artifact.text(artifact.programs[static_cast<size_t>(artifact.integer(program.blocks.first + i))].target);
        if (strcmp(text, target) == 0 || target_rank(text, 0, machine, problem)) continue;
        *problem = "its host steps do not run: " + *problem;
        return 0;
    }
    return rank;
}

uint64_t Model::shared_weight_bytes() const { return device ? device->shared_weight_bytes() : weights.shared.shared_bytes(); }

uint32_t Model::host_block_count() const {
    uint32_t count = 0;
    for (const Variant &block : blocks) count += device && !block.on_device;
    return count;
}

void Model::add_blocks(Variant &variant) {
    variant.first_block = static_cast<uint32_t>(blocks.size());
    uint32_t steps = 0;
    for (uint32_t i = 0; i < variant.entry->blocks.count; ++i) {
        const uint32_t program = static_cast<uint32_t>(artifact.integer(variant.entry->blocks.first + i));
        const ProgramEntry *entry = &artifact.programs[program];
        blocks.push_back(Variant{program, entry, nullptr, Vector<Kernel>(Allocator<Kernel>(memory)),
                                 is_gpu_target(artifact.text(entry->target)), 0, steps});
        steps += entry->steps.count;
    }
}

void Model::check_variants() const {
    for (const Variant &variant : variants) {
        bool same = variant.entry->inputs.count == input_count() && variant.entry->outputs.count == output_count();
        for (int side = 0; same && side < 2; ++side) {
            const Run mine = side ? variant.entry->outputs : variant.entry->inputs;
            const Run first = side ? variants[0].entry->outputs : variants[0].entry->inputs;
            for (uint32_t i = 0; same && i < mine.count; ++i) {
                const PortEntry &a = artifact.ports[mine.first + i], &b = artifact.ports[first.first + i];
                same = a.dtype == b.dtype && a.shape.count == b.shape.count &&
                       strcmp(artifact.text(a.name), artifact.text(b.name)) == 0;
            }
        }
        if (!same) throw damaged(name.c_str(), "programs", 0, "the variants have different inputs or outputs");
    }
}

void Model::load_code(Variant &variant, const char *temporary_directory) {
    if (variant.on_device) return;
    const ProgramEntry &entry = *variant.entry;
    for (const Vector<Variant> *units : {&variants, &blocks}) {
        for (const Variant &other : *units) {
            if (other.code && other.entry->code_offset == entry.code_offset &&
                other.entry->code_bytes == entry.code_bytes) {
                variant.code = other.code;
            }
        }
    }
    if (!variant.code && entry.kernels.count) {
        variant.code = std::make_shared<CodeLibrary>(artifact.code.data() + entry.code_offset,
                                                     static_cast<size_t>(entry.code_bytes), temporary_directory,
                                                     name.c_str());
    }
    for (uint32_t i = 0; i < entry.kernels.count; ++i) {
        const char *symbol = artifact.text(artifact.kernels[entry.kernels.first + i].symbol);
        void *found = variant.code->symbol(symbol);
        if (!found) throw damaged(name.c_str(), "code", 0, "kernel %s is not in the code", symbol);
        variant.kernels.push_back(reinterpret_cast<Kernel>(found));
    }
}

uint8_t *Model::constant_address(const Variant &unit, uint32_t index) const {
    if (unit.on_device) return reinterpret_cast<uint8_t *>(static_cast<uintptr_t>(device->constant(unit.program, index)));
    return const_cast<uint8_t *>(weights.constant(unit.program, index));
}

void Model::read_constant(uint32_t program, uint32_t index, void *to, size_t bytes) const {
    if (device) device->read_constant(program, index, to, bytes, name.c_str());
    else if (bytes) memcpy(to, weights.constant(program, index), bytes);
}

}  // namespace aot
