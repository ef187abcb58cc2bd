// What a machine runs, and how well: the one place that decides which program of an artifact is selected.
#pragma once

#include <string>

namespace aot {

// A machine, this one or a described one.
struct Machine {
    int cpu_level = 0;        // x86-64 micro-architecture level, 1 to 4; 0: none
    uint32_t cpu_extras = 0;  // as CpuFeatures::extras
    int driver = 0;           // of a GPU, as CUDA's version, such as 12040; 0: none
    int capability = 0;       // ten times the GPU's; 0: there is no GPU
    std::string gpu = "the GPU";
    std::string gpu_problem;  // why there is no driver, or no GPU
};

bool is_gpu_target(const char *target);

// This machine. `ordinal` and `context` choose the GPU, which is looked for only `with_gpu`.
Machine this_machine(bool with_gpu, int ordinal, void *context);

// How well code for a target fits a machine: 0 where it does not run, and then `*problem` says why; a loader takes the
// program with the largest number, and the first in the file among equals. Machine code for exactly the GPU is best, then
// code for the nearest older one of its major version, then text for the nearest older one, then any CPU.
// `lowest_driver`: the oldest that takes the program's code; 0: any.
int target_rank(const char *target, int lowest_driver, const Machine &machine, std::string *problem);

}  // namespace aot
