// How many CPUs a cgroup allows, on folders made up for the test: cpu_test.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <sched.h>
#include <unistd.h>

#include "cpu.h"

namespace fs = std::filesystem;

namespace {

fs::path folder;

void write(const std::string &path, const std::string &text) {
    fs::create_directories((folder / path).parent_path());
    std::ofstream(folder / path) << text;
}

void expect(const char *what, const std::string &membership, double cpus) {
    write("membership", membership);
    const double found = aot::cgroup_cpus((folder / "membership").c_str(), (folder / "root").c_str());
    if (std::fabs(found - cpus) > 1e-9) {
        fprintf(stderr, "%s: expected %g, got %g\n", what, cpus, found);
        exit(1);
    }
}

void version_2() {
    expect("nothing is mounted", "0::/\n", 0);
    write("root/cpu.max", "max 100000\n");
    expect("no limit", "0::/\n", 0);
    write("root/a/cpu.max", "150000 100000\n");
    expect("of the group", "0::/a\n", 1.5);
    write("root/a/b/cpu.max", "max 100000\n");
    expect("of the group above", "0::/a/b\n", 1.5);
    write("root/a/b/cpu.max", "50000 100000\n");
    expect("the tighter one, below", "0::/a/b\n", 0.5);
    write("root/a/b/cpu.max", "400000 100000\n");
    expect("the tighter one, above", "0::/a/b\n", 1.5);
    expect("another group", "0::/c\n", 0);
    write("root/cpu.max", "200000 100000\n");
    expect("the host's path in a container", "0::/docker/0123\n", 2);
    expect("a path out of the namespace", "0::/../../system.slice\n", 2);
    expect("no newline at the end", "0::/a", 1.5);
    expect("no path", "0::", 2);
    expect("no slash", "0::a\n", 2);
    write("root/cpu.max", "max\n");
    for (const char *text : {"", "\n", "max", "100000", "-1 100000", "100000 0", "0 100000", "what 100000", "nan 1", "1 nan"}) {
        write("root/a/cpu.max", text);
        expect("not a limit", "0::/a\n", 0);
    }
}

void version_1() {
    fs::remove_all(folder / "root");
    write("root/cpu/cpu.cfs_quota_us", "-1\n");
    write("root/cpu/cpu.cfs_period_us", "100000\n");
    const std::string lines = "12:cpuset:/other\n5:cpu,cpuacct:/a/b\n1:name=systemd:/c\n0::/unified\n";
    expect("no limit", lines, 0);
    write("root/cpu/a/cpu.cfs_quota_us", "300000\n");
    write("root/cpu/a/cpu.cfs_period_us", "100000\n");
    expect("of the group above", lines, 3);
    write("root/cpu/a/b/cpu.cfs_quota_us", "25000\n");
    expect("a quota without a period", lines, 3);
    write("root/cpu/a/b/cpu.cfs_period_us", "50000\n");
    expect("of the group", lines, 0.5);
    write("root/cpu/other/cpu.cfs_quota_us", "1000\n");
    write("root/cpu/other/cpu.cfs_period_us", "100000\n");
    expect("cpuset is not cpu", lines, 0.5);
    expect("the second controller", "3:cpuacct,cpu:/a\n", 3);
    expect("no controller", "garbage\n::\n:::\n4:memory:/a\n", 0);
}

}  // namespace

int main() {
    char name[] = "/tmp/aot-cpu-XXXXXX";
    if (!mkdtemp(name)) return 1;
    folder = name;
    version_2();
    version_1();
    fs::remove_all(folder);
    if (aot::cgroup_cpus("/nowhere", "/nowhere") != 0) return 1;
    // The affinity mask is the other limit.
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(sched_getcpu(), &mask);
    if (sched_setaffinity(0, sizeof mask, &mask) != 0 || aot::default_thread_count() != 1) return 1;
    puts("ok");
    return 0;
}
