// What this CPU can do, and how many of them this process may use.
#pragma once

#include <cstdint>

namespace aot {

struct CpuFeatures {
    bool sha = false;
    bool avx2 = false;    // with operating system support, as everything here
    int level = 0;        // x86-64 micro-architecture level, 1 to 4; 0 elsewhere
};

const CpuFeatures &cpu_features();

// Whether code for a target such as "cpu:x86-64-v3" runs here.
bool target_supported(const char *target);

// CPUs in the affinity mask, limited by the cgroup's quota, rounded up; at least 1.
uint32_t default_thread_count();

}  // namespace aot
