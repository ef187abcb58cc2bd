#include "machine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base.h"
#include "cpu.h"
#include "cuda/device.h"

namespace aot {
namespace {

constexpr int kCpuRank = 1;
constexpr int kTextRank = 1 << 16, kOlderRank = 2 << 16, kExactRank = 3 << 16;  // and the capability, which is less than 1 << 14

int gpu_rank(const char *target, int lowest_driver, const Machine &machine, std::string *problem) {
    const bool is_text = strncmp(target, "cuda:compute_", 13) == 0;  // PTX, which the driver compiles
    const char *number = is_text ? target + 13 : strncmp(target, "cuda:sm_", 8) == 0 ? target + 8 : "";
    char *suffix = nullptr;
    const long wanted = strtol(number, &suffix, 10);
    const bool exact = strcmp(suffix, "a") == 0, family = strcmp(suffix, "f") == 0;
    if (wanted < 10 || wanted > 9999 || (*suffix && !exact && !family)) {
        *problem = "this runtime does not know the architecture";
        return 0;
    }
    const int lowest = std::max(lowest_driver, cuda::kLowestDriver);
    if (machine.driver && machine.driver < lowest) {
        *problem = cuda::too_old(machine.driver, lowest);
        return 0;
    }
    if (!machine.driver || !machine.capability) {
        *problem = machine.gpu_problem;
        return 0;
    }
    const long found = machine.capability;
    const int own = 2 * static_cast<int>(wanted) + exact;
    if (is_text ? exact ? found == wanted : found >= wanted : false) return kTextRank + own;
    if (!is_text && found == wanted) return kExactRank + own;
    if (!is_text && !exact && found / 10 == wanted / 10 && found > wanted) return kOlderRank + own;
    *problem = text_of("%s has compute capability %ld.%ld, %ld.%ld%s is needed", machine.gpu.c_str(), found / 10, found % 10,
                       wanted / 10, wanted % 10, exact ? "" : is_text ? " or above" : " or above of the same major version");
    return 0;
}

}  // namespace

bool is_gpu_target(const char *target) { return strncmp(target, "cuda:", 5) == 0; }

Machine this_machine(bool with_gpu, int ordinal, void *context) {
    Machine found;
    found.cpu_level = cpu_features().level;
    found.cpu_extras = cpu_features().extras;
    if (with_gpu) cuda::find_device(ordinal, static_cast<cuda::Context>(context), &found);
    return found;
}

int target_rank(const char *target, int lowest_driver, const Machine &machine, std::string *problem) {
    if (is_gpu_target(target)) return gpu_rank(target, lowest_driver, machine, problem);
    static const char *const names[] = {"no x86-64 level", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"};
    const size_t length = strcspn(target, "+");  // "cpu:x86-64-v4+vnni": a level and what else the code needs
    bool runs = false;
    for (int level = 1; level <= machine.cpu_level; ++level) {
        runs |= text_of("cpu:%s", names[level]).compare(0, std::string::npos, target, length) == 0;
    }
    const char *lacks = nullptr;
    for (const char *rest = target + length; runs && *rest && !lacks; rest += 1 + strcspn(rest + 1, "+")) {
        const size_t size = strcspn(rest + 1, "+");
        const auto is = [&](const char *name) { return strlen(name) == size && strncmp(rest + 1, name, size) == 0; };
        const uint32_t wanted = is("vnni") ? kCpuVnni : is("bf16") ? kCpuBf16 : 0;
        if (!(machine.cpu_extras & wanted)) lacks = rest + 1;
    }
    if (runs && !lacks) return kCpuRank;
    const char *const name = names[machine.cpu_level];
    *problem = lacks ? text_of("this CPU supports %s without %.*s", name, static_cast<int>(strcspn(lacks, "+")), lacks)
                     : text_of("this CPU supports %s", name);
    return 0;
}

}  // namespace aot
