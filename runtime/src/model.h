// A loaded artifact: immutable, shared by sessions.
#pragma once

#include "artifact.h"
#include "code.h"
#include "weights.h"

namespace aot {

using Kernel = void (*)(const aot_kernel_args *);

// One selected program. Several of a target are variants, tried in order at every run.
struct Variant {
    uint32_t program;  // its index in the artifact
    const format::ProgramEntry *entry;
    std::shared_ptr<CodeLibrary> code;
    Vector<Kernel> kernels;
    uint32_t first_block = 0;  // of the flow's blocks among Model::blocks
    uint32_t first_step = 0;   // of a block: how many steps the blocks before it have
};

class Model {
public:
    Model(const ByteSource &source, const aot_load_options &options);

    const Memory memory;
    const std::string name;
    Artifact artifact;
    Weights weights;
    Vector<Variant> variants;
    Vector<Variant> blocks;  // what the variants' flows run

    // Ports, the same in every variant.
    uint32_t input_count() const { return variants[0].entry->inputs.count; }
    uint32_t output_count() const { return variants[0].entry->outputs.count; }
    const format::PortEntry &input(uint32_t i) const { return artifact.ports[variants.back().entry->inputs.first + i]; }
    const format::PortEntry &output(uint32_t i) const { return artifact.ports[variants.back().entry->outputs.first + i]; }

private:
    void select(const char *target);
    void add_blocks(Variant &variant);
    void check_variants() const;
    void load_code(Variant &variant, const char *temporary_directory);
};

}  // namespace aot
