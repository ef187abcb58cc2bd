// A loaded artifact: immutable, shared by sessions.
#pragma once

#include "artifact.h"
#include "code.h"
#include "weights.h"

namespace aot {

struct Machine;
namespace cuda {
class DeviceModel;
}

using Kernel = void (*)(const aot_kernel_args *);

// One selected program. Several of a target are variants, tried in order at every run.
struct Variant {
    uint32_t program;  // its index in the artifact
    const format::ProgramEntry *entry;
    std::shared_ptr<CodeLibrary> code;
    Vector<Kernel> kernels;  // empty on a GPU
    bool on_device;
    uint32_t first_block = 0;  // of the flow's blocks among Model::blocks
    uint32_t first_step = 0;   // of a block: how many steps the blocks before it have
};

class Model {
public:
    Model(const ByteSource &source, const aot_load_options &options);
    ~Model();

    const Memory memory;
    const std::string name;
    Artifact artifact;
    Weights weights;
    Vector<Variant> variants;
    Vector<Variant> blocks;  // what the variants' flows run
    std::vector<std::string> problems;  // of each program, why it was not selected; empty where it was
    std::unique_ptr<cuda::DeviceModel> device;  // of a model on a GPU

    // Where kernels find a constant; they only read it, but share an argument type with what they write.
    uint8_t *constant_address(const Variant &unit, uint32_t index) const;
    // Copies a constant to host memory.
    void read_constant(uint32_t program, uint32_t index, void *to, size_t bytes) const;

    // Bytes of constants that other models hold as well.
    uint64_t shared_weight_bytes() const;

    // How many blocks of the variants' flows run on the CPU while the model runs on a GPU.
    uint32_t host_block_count() const;

    // Ports, the same in every variant.
    uint32_t input_count() const { return variants[0].entry->inputs.count; }
    uint32_t output_count() const { return variants[0].entry->outputs.count; }
    const format::PortEntry &input(uint32_t i) const { return artifact.ports[variants.back().entry->inputs.first + i]; }
    const format::PortEntry &output(uint32_t i) const { return artifact.ports[variants.back().entry->outputs.first + i]; }

private:
    void select(const aot_load_options &options);
    int rank_of(const format::ProgramEntry &program, const Machine &machine, std::string *problem) const;
    void add_blocks(Variant &variant);
    void check_variants() const;
    void load_code(Variant &variant, const char *temporary_directory);
};

}  // namespace aot
