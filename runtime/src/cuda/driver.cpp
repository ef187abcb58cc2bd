#include "cuda/driver.h"

#include <cstdio>
#include <mutex>

#include <dlfcn.h>

namespace aot::cuda {
namespace {

struct Name {
    const char *name;
    size_t offset;
    bool newer;
};

constexpr Name kNames[] = {
#define AOT_NAME(field, name, arguments) {name, offsetof(Driver, field), false},
    AOT_CUDA_FUNCTIONS(AOT_NAME)
#undef AOT_NAME
#define AOT_NAME(field, name, arguments) {name, offsetof(Driver, field), true},
    AOT_CUDA_NEWER_FUNCTIONS(AOT_NAME)
#undef AOT_NAME
};

// "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"
std::string code_text(const Driver &driver, Result code) {
    const char *name = nullptr, *text = nullptr;
    driver.error_name(code, &name);
    driver.error_text(code, &text);
    return name ? text_of("%s: %s", name, text ? text : "") : text_of("error %d", code);
}

bool load(Driver &driver, std::string *reason) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *text = dlerror();
        const bool missing = !text || strstr(text, "No such file");
        *reason = missing ? "no driver (libcuda.so.1 not found)" : text_of("the driver cannot be loaded: %s", text);
        return false;
    }
    const char *lacking = nullptr;
    for (const Name &entry : kNames) {
        void *found = dlsym(library, entry.name);
        memcpy(reinterpret_cast<char *>(&driver) + entry.offset, &found, sizeof found);
        if (!found && !entry.newer && !lacking) lacking = entry.name;
    }
    if (driver.driver_version) driver.driver_version(&driver.version);
    if (driver.version < kLowestDriver) {
        *reason = too_old(driver.version, kLowestDriver);
        return false;
    }
    if (lacking) {
        *reason = text_of("the driver lacks the function %s: update the driver", lacking);
        return false;
    }
    const Result code = driver.init(0);
    if (code != result::OK) {
        *reason = text_of("the driver does not start (%s)", code_text(driver, code).c_str());
        return false;
    }
    return true;
}

struct Advice {
    Result first, last;
    const char *hint;
};

constexpr char kUnusable[] = "The context is unusable from now on: restart the process.";
constexpr Advice kAdvice[] = {
    {result::OUT_OF_MEMORY, result::OUT_OF_MEMORY, "Free device memory, or use smaller inputs."},
    {result::NOT_INITIALIZED, result::NOT_INITIALIZED,
     "A forked child cannot use a GPU that its parent used: start processes by spawn."},
    {result::DEINITIALIZED, result::DEINITIALIZED, "The process is exiting: stop runs before that."},
    {result::INVALID_CONTEXT, result::INVALID_CONTEXT, "Give a context that lives as long as the model."},
    {result::INVALID_IMAGE, result::INVALID_IMAGE, "Update the driver, or build the artifact again for an older one."},
    {result::NO_BINARY_FOR_GPU, result::NO_BINARY_FOR_GPU, "Build the artifact for this GPU's architecture, or update the driver."},
    {result::UNCORRECTABLE, result::UNCORRECTABLE, kUnusable},
    {result::INVALID_PTX, result::INVALID_PTX, "Update the driver, or build the artifact for this GPU's architecture."},
    {result::NVLINK_UNCORRECTABLE, result::NVLINK_UNCORRECTABLE, kUnusable},
    {result::NO_JIT_COMPILER, result::UNSUPPORTED_PTX, "Update the driver, or build the artifact for this GPU's architecture."},
    {result::CONTAINED, result::CONTAINED, kUnusable},
    {result::ILLEGAL_ADDRESS, result::ILLEGAL_ADDRESS, kUnusable},
    {result::OUT_OF_RESOURCES, result::OUT_OF_RESOURCES, "Report this: a kernel wants more than a block may have."},
    {result::LAUNCH_TIMEOUT, result::LAUNCH_TIMEOUT, kUnusable},
    {result::CONTEXT_DESTROYED, result::ASSERT, kUnusable},
    {result::STACK_ERROR, result::LAUNCH_FAILED, kUnusable},
    {result::SYSTEM_NOT_READY, result::DRIVER_MISMATCH, "Check that nvidia-smi works, and restart the machine after updating the driver."},
    {result::CAPTURE_FIRST, result::CAPTURE_LAST,
     "While a stream is captured, run once before the capture, give only device tensors, and the captured stream."},
};

}  // namespace

std::string too_old(int version, int lowest) {
    return text_of("the driver supports CUDA %d.%d, %d.%d or newer is needed: update the driver", version / 1000,
                   version % 1000 / 10, lowest / 1000, lowest % 1000 / 10);
}

const Driver *find_driver(std::string *reason) {
    static std::mutex mutex;
    static Driver driver;
    static bool found = false;
    std::lock_guard<std::mutex> lock(mutex);
    // A failure is not kept: a container may get its driver, and a program its rights, later.
    if (!found) {
        driver = Driver();
        found = load(driver, reason);
    }
    return found ? &driver : nullptr;
}

Failure driver_failure(const Driver &driver, Result code, const char *where, const char *doing) {
    const char *hint = "";
    for (const Advice &advice : kAdvice) {
        if (code >= advice.first && code <= advice.last) hint = advice.hint;
    }
    const int32_t status = code == result::OUT_OF_MEMORY ? AOT_ERROR_MEMORY : AOT_ERROR_DEVICE;
    return Failure(status, where, hint, "%s failed: %s", doing, code_text(driver, code).c_str())
        .because(hint == kUnusable ? AOT_REASON_DEVICE_LOST : AOT_REASON_NONE);
}

}  // namespace aot::cuda
