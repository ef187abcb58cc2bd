// What this CPU can do, and how many of them this process may use.
#pragma once

#include <cstdint>

namespace aot {

constexpr uint32_t kCpuVnni = 1, kCpuBf16 = 2;  // as AOT_CPU_VNNI and AOT_CPU_BF16

struct CpuFeatures {
    bool sha = false;
    bool avx2 = false;    // with operating system support, as everything here
    int level = 0;        // x86-64 micro-architecture level, 1 to 4; 0 elsewhere
    uint32_t extras = 0;  // kCpuVnni and kCpuBf16: what code for level 4 may also need
};

const CpuFeatures &cpu_features();

// CPUs that the tightest quota of this process's cgroup and those above it allows, as a fraction; 0 where there is none.
// `membership` is /proc/self/cgroup and `root` the folder where cgroup v2, or the controllers of v1, are mounted.
double cgroup_cpus(const char *membership, const char *root);

// CPUs in the affinity mask, limited by the cgroup's quota, rounded up; at least 1.
uint32_t default_thread_count();

}  // namespace aot
