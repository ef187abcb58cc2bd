#include "cpu.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include <cpuid.h>
#include <sched.h>

namespace aot {
namespace {

bool has(uint32_t word, std::initializer_list<int> bits) {
    for (int bit : bits) {
        if (!(word >> bit & 1)) return false;
    }
    return true;
}

// The bits that the x86-64 psABI lists for each level, and XCR0 for what the system saves.
CpuFeatures detect() {
    CpuFeatures found;
    uint32_t a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
    const uint32_t leaf1 = c;
    uint32_t leaf7 = 0, extended = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) leaf7 = b;
    if (__get_cpuid(0x80000001, &a, &b, &c, &d)) extended = c;
    uint32_t saved = 0;
    if (has(leaf1, {27})) {
        uint32_t high;
        __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    }
    const bool ymm = (saved & 0x06) == 0x06;
    const bool zmm = (saved & 0xe6) == 0xe6;
    found.level = 1;
    if (has(leaf1, {0, 9, 13, 19, 20, 23}) && has(extended, {0})) found.level = 2;
    if (found.level == 2 && ymm && has(leaf1, {12, 22, 28, 29}) && has(leaf7, {3, 5, 8}) && has(extended, {5})) {
        found.level = 3;
    }
    if (found.level == 3 && zmm && has(leaf7, {16, 17, 28, 30, 31})) found.level = 4;
    found.sha = has(leaf7, {29}) && has(leaf1, {9, 19});
    found.avx2 = found.level >= 3;
    return found;
}

// CPUs that a cgroup v2 file "quota period" allows; 0 where there is no limit.
double quota_of(const char *path) {
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    char quota[32];
    long long period = 0;
    int fields = fscanf(file, "%31s %lld", quota, &period);
    fclose(file);
    if (fields != 2 || strcmp(quota, "max") == 0 || period <= 0) return 0;
    return static_cast<double>(atoll(quota)) / static_cast<double>(period);
}

double quota_v1(const char *folder) {
    char path[4200];
    long long values[2] = {0, 0};
    const char *names[2] = {"cpu.cfs_quota_us", "cpu.cfs_period_us"};
    for (int i = 0; i < 2; ++i) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        FILE *file = fopen(path, "re");
        if (!file) return 0;
        int fields = fscanf(file, "%lld", &values[i]);
        fclose(file);
        if (fields != 1) return 0;
    }
    return values[0] > 0 && values[1] > 0 ? static_cast<double>(values[0]) / static_cast<double>(values[1]) : 0;
}

void keep_smaller(double *limit, double value) {
    if (value > 0 && (*limit == 0 || value < *limit)) *limit = value;
}

// The tightest quota of this process's cgroup and those above it.
double cgroup_limit() {
    double limit = 0;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file) return 0;
    char line[2048];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : nullptr;
        if (!group) continue;
        *group++ = 0;
        const bool v2 = controllers[1] == 0;
        if (!v2 && !strstr(controllers + 1, "cpu")) continue;
        for (;;) {
            char path[4096];
            if (v2) {
                snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", strcmp(group, "/") ? group : "");
                keep_smaller(&limit, quota_of(path));
            } else {
                snprintf(path, sizeof path, "/sys/fs/cgroup/cpu%s", strcmp(group, "/") ? group : "");
                keep_smaller(&limit, quota_v1(path));
            }
            char *slash = strrchr(group, '/');
            if (!slash || !*group) break;
            *slash = 0;
        }
    }
    fclose(file);
    return limit;
}

}  // namespace

const CpuFeatures &cpu_features() {
    static const CpuFeatures features = detect();
    return features;
}

bool target_supported(const char *target) {
    static const char *const names[] = {"", "cpu:x86-64", "cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4"};
    for (int level = 1; level <= 4; ++level) {
        if (strcmp(target, names[level]) == 0) return cpu_features().level >= level;
    }
    return false;
}

uint32_t default_thread_count() {
    uint32_t count = 1;
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) == 0) {
        count = static_cast<uint32_t>(CPU_COUNT(&mask));
    } else {
        // More CPUs than a cpu_set_t holds.
        for (int size = 4096; size <= 1 << 20; size *= 4) {
            cpu_set_t *large = CPU_ALLOC(static_cast<size_t>(size));
            if (!large) break;
            size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
            bool known = sched_getaffinity(0, bytes, large) == 0;
            if (known) count = static_cast<uint32_t>(CPU_COUNT_S(bytes, large));
            CPU_FREE(large);
            if (known) break;
        }
    }
    double limit = cgroup_limit();
    if (limit > 0 && limit < count) count = static_cast<uint32_t>(limit + 0.999);
    return count ? count : 1;
}

}  // namespace aot
