#include "model.h"

#include "cpu.h"

namespace aot {

using namespace format;

Model::Model(const ByteSource &source, const aot_load_options &options)
    : memory(options.allocator), name(source.name()), artifact(memory), weights(memory),
      variants(Allocator<Variant>(memory)), blocks(variants.get_allocator()) {
    read_artifact(source, artifact);
    select(options.target);
    check_variants();
    Vector<uint32_t> programs{Allocator<uint32_t>(memory)};
    for (const Variant &variant : variants) programs.push_back(variant.program);
    for (const Variant &block : blocks) programs.push_back(block.program);
    WeightOptions weight_options;
    weight_options.flags = options.flags;
    weight_options.given = options.weights;
    weight_options.given_count = options.weights ? options.weight_count : 0;
    weight_options.external_path = options.weights_path;
    load_weights(artifact, programs, source, weight_options, weights);
    for (Variant &variant : variants) load_code(variant, options.temporary_directory);
    for (Variant &block : blocks) load_code(block, options.temporary_directory);
    // The code was copied into the process.
    artifact.code.clear();
    artifact.code.shrink_to_fit();
}

// The first program that this CPU runs decides the target; all programs of that target are variants.
void Model::select(const char *wanted) {
    const char *target = nullptr;
    std::string offered;
    for (const ProgramEntry &program : artifact.programs) {
        if (program.is_block) continue;
        const char *text = artifact.text(program.target);
        if (offered.find(text) == std::string::npos || offered.empty()) offered += (offered.empty() ? "" : ", ") + std::string(text);
        if (!target && target_supported(text) && (!wanted || strcmp(wanted, text) == 0)) target = text;
    }
    if (!target) {
        static const char *const levels[] = {"no x86-64 level", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"};
        throw Failure(AOT_ERROR_TARGET, name.c_str(), "Build the model for a target that this machine supports.",
                      "the artifact has code for %s; %s%s%sthis CPU supports %s", offered.c_str(),
                      wanted ? "asked for was " : "", wanted ? wanted : "", wanted ? "; " : "",
                      levels[cpu_features().level]);
    }
    for (uint32_t i = 0; i < artifact.programs.size(); ++i) {
        const ProgramEntry &program = artifact.programs[i];
        if (program.is_block || strcmp(artifact.text(program.target), target) != 0) continue;
        variants.push_back(Variant{i, &program, nullptr, Vector<Kernel>(Allocator<Kernel>(memory))});
        add_blocks(variants.back());
    }
}

void Model::add_blocks(Variant &variant) {
    variant.first_block = static_cast<uint32_t>(blocks.size());
    uint32_t steps = 0;
    for (uint32_t i = 0; i < variant.entry->blocks.count; ++i) {
        const uint32_t program = static_cast<uint32_t>(artifact.integer(variant.entry->blocks.first + i));
        const ProgramEntry *entry = &artifact.programs[program];
        blocks.push_back(Variant{program, entry, nullptr, Vector<Kernel>(Allocator<Kernel>(memory)), 0, steps});
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

}  // namespace aot
