#include "cpu.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>
#include <string>

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
    uint32_t leaf7 = 0, leaf7c = 0, leaf71 = 0, extended = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        leaf7 = b, leaf7c = c;
        if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) leaf71 = a;
    }
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
    if (found.level == 4 && has(leaf7c, {11})) found.extras |= kCpuVnni;
    if (found.level == 4 && has(leaf71, {5})) found.extras |= kCpuBf16;
    found.sha = has(leaf7, {29}) && has(leaf1, {9, 19});
    found.avx2 = found.level >= 3;
    return found;
}

// The one or two numbers that a file holds, 0 for "max" and other words; false where it cannot be read.
bool read_numbers(const std::string &path, double *first, double *second) {
    FILE *file = fopen(path.c_str(), "re");
    if (!file) return false;
    char one[32] = "", two[32] = "";
    const int fields = fscanf(file, "%31s %31s", one, two);
    fclose(file);
    *first = fields >= 1 ? atof(one) : 0;  // "max" is 0
    *second = fields >= 2 ? atof(two) : 0;
    return fields >= 1;
}

// CPUs that a group's quota allows; 0 where it has none.
double quota_of(const std::string &folder, bool v2) {
    double quota = 0, period = 0, rest = 0;
    if (v2) {
        if (!read_numbers(folder + "/cpu.max", &quota, &period)) return 0;
    } else if (!read_numbers(folder + "/cpu.cfs_quota_us", &quota, &rest) ||
               !read_numbers(folder + "/cpu.cfs_period_us", &period, &rest)) {
        return 0;
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

// Whether a comma-separated list of controllers has "cpu"; "cpuset" is another one.
bool names_cpu(const std::string &controllers) {
    for (size_t at = 0; at <= controllers.size();) {
        const size_t comma = std::min(controllers.find(',', at), controllers.size());
        if (controllers.compare(at, comma - at, "cpu") == 0) return true;
        at = comma + 1;
    }
    return false;
}

}  // namespace

const CpuFeatures &cpu_features() {
    static const CpuFeatures features = detect();
    return features;
}

double cgroup_cpus(const char *membership, const char *root) {
    double limit = 0;
    FILE *file = fopen(membership, "re");
    if (!file) return 0;
    char line[4096];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(++controllers, ':') : nullptr;
        if (!path) continue;
        *path++ = 0;
        const bool v2 = *controllers == 0;
        if (!v2 && !names_cpu(controllers)) continue;
        // In a container the path may be the host's, which is not mounted here: then only the root has files.
        const std::string base = std::string(root) + (v2 ? "" : "/cpu");
        for (std::string group = path;;) {
            const double quota = quota_of(base + (group == "/" ? "" : group), v2);
            if (quota > 0 && (limit == 0 || quota < limit)) limit = quota;
            const size_t slash = group.rfind('/');
            if (group.empty()) break;
            group.resize(slash == std::string::npos ? 0 : slash);
        }
    }
    fclose(file);
    return limit;
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
    double limit = 0;
    try {
        limit = cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup");
    } catch (const std::bad_alloc &) {  // no memory for a path: as without a quota
    }
    if (limit > 0 && limit < count) count = static_cast<uint32_t>(limit + 0.999);
    return count ? count : 1;
}

}  // namespace aot
