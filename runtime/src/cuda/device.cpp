#include "cuda/device.h"

#include <cstdio>
#include <cstdlib>

namespace aot::cuda {
namespace {

const Driver &need_driver(const char *where) {
    std::string reason;
    const Driver *driver = find_driver(&reason);
    if (!driver) throw Failure(AOT_ERROR_TARGET, where, "Install a driver of the GPU.", "%s", reason.c_str());
    return *driver;
}

// The device of a context, without leaving it current.
Result device_of_context(const Driver &driver, Context context, Ordinal *device) {
    Result code = driver.context_push(context);
    if (code != result::OK) return code;
    code = driver.context_device(device);
    Context popped;
    driver.context_pop(&popped);
    return code;
}

}  // namespace

std::string target_problem(const char *target, int lowest_driver, int ordinal, Context given) {
    std::string reason;
    const bool is_text = strncmp(target, "cuda:compute_", 13) == 0;  // PTX, which the driver compiles
    const char *number = is_text ? target + 13 : strncmp(target, "cuda:sm_", 8) == 0 ? target + 8 : "";
    char *suffix = nullptr;
    const long wanted = strtol(number, &suffix, 10);
    const bool exact = strcmp(suffix, "a") == 0, family = strcmp(suffix, "f") == 0;
    if (wanted < 10 || wanted > 9999 || (*suffix && !exact && !family)) return "this runtime does not know the architecture";
    const Driver *driver = find_driver(&reason);
    if (!driver) return reason;
    if (driver->version < lowest_driver) return too_old(driver->version, lowest_driver);
    Ordinal device = 0;
    if (given) {
        if (device_of_context(*driver, given, &device) != result::OK) return "the given context cannot be used";
    } else {
        int count = 0;
        if (driver->device_count(&count) != result::OK) count = 0;
        if (ordinal < 0 || ordinal >= count || driver->device_get(&device, ordinal) != result::OK) {
            return text_of("there is no device %d (the driver has %d)", ordinal, count);
        }
    }
    int major = 0, minor = 0;
    char name[128] = "";
    if (driver->device_attribute(&major, kCapabilityMajor, device) != result::OK ||
        driver->device_attribute(&minor, kCapabilityMinor, device) != result::OK) {
        return "the device does not say its compute capability";
    }
    driver->device_name(name, sizeof name, device);
    const int found = 10 * major + minor;
    const bool fits = is_text ? found >= wanted
                      : exact ? found == wanted
                              : found / 10 == wanted / 10 && found >= wanted;
    if (fits) return "";
    return text_of("device %d (%s) has compute capability %d.%d, %ld.%ld%s is needed", device, name, major, minor, wanted / 10,
                   wanted % 10, exact ? "" : is_text ? " or above" : " or above of the same major version");
}

Device::Device(int wanted, Context given, const char *where) : driver(need_driver(where)) {
    if (given) {
        context = given;
        check(driver, device_of_context(driver, given, &ordinal), where, "using the given context");
    } else {
        check(driver, driver.device_get(&ordinal, wanted), where, "finding the device");
    }
    int major = 0, minor = 0;
    check(driver, driver.device_attribute(&major, kCapabilityMajor, ordinal), where, "asking for the compute capability");
    check(driver, driver.device_attribute(&minor, kCapabilityMinor, ordinal), where, "asking for the compute capability");
    check(driver, driver.device_attribute(&multiprocessors, kMultiprocessors, ordinal), where, "asking for multiprocessors");
    capability = 10 * major + minor;
    if (given) return;
    check(driver, driver.primary_retain(&context, ordinal), where, "retaining the device's primary context");
    retained_ = true;
}

Device::~Device() {
    if (retained_) driver.primary_release(ordinal);
}

DeviceBlock::DeviceBlock(const Device &device, size_t bytes, const char *where, const char *purpose) : device_(&device) {
    if (!bytes) return;
    const Result code = device.driver.memory_allocate(&address_, bytes);
    if (code == result::OUT_OF_MEMORY) {
        size_t free_bytes = 0, total_bytes = 0;
        device.driver.memory_info(&free_bytes, &total_bytes);
        throw Failure(AOT_ERROR_MEMORY, where, "Free device memory, use smaller inputs, or fewer sessions.",
                      "device %d has no %zu bytes for %s: %zu of its %zu bytes are free", device.ordinal, bytes, purpose,
                      free_bytes, total_bytes);
    }
    char doing[160];
    snprintf(doing, sizeof doing, "allocating %zu bytes of device memory for %s", bytes, purpose);
    check(device.driver, code, where, doing);
    bytes_ = bytes;
}

DeviceBlock::~DeviceBlock() {
    if (address_ && bytes_) device_->driver.memory_free(address_);
}

}  // namespace aot::cuda
