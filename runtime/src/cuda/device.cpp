#include "cuda/device.h"

#include <cstdio>

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

void find_device(int ordinal, Context given, Machine *found) {
    const Driver *driver = find_driver(&found->gpu_problem);
    if (!driver) return;
    found->driver = driver->version;
    Ordinal device = 0;
    if (given) {
        if (device_of_context(*driver, given, &device) != result::OK) {
            found->gpu_problem = "the given context cannot be used";
            return;
        }
    } else {
        int count = 0;
        if (driver->device_count(&count) != result::OK) count = 0;
        if (ordinal < 0 || ordinal >= count || driver->device_get(&device, ordinal) != result::OK) {
            found->gpu_problem = text_of("there is no device %d (the driver has %d)", ordinal, count);
            return;
        }
    }
    int major = 0, minor = 0;
    char name[128] = "";
    if (driver->device_attribute(&major, kCapabilityMajor, device) != result::OK ||
        driver->device_attribute(&minor, kCapabilityMinor, device) != result::OK) {
        found->gpu_problem = "the device does not say its compute capability";
        return;
    }
    driver->device_name(name, sizeof name, device);
    found->gpu = text_of("device %d (%s)", device, name);
    found->capability = 10 * major + minor;
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
