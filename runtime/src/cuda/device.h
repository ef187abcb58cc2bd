// A GPU: what it is, its context and its memory.
#pragma once

#include "cuda/driver.h"
#include "machine.h"

namespace aot::cuda {

// Fills in the driver and the device `ordinal`, or that of the caller's context, as far as they are there.
void find_device(int ordinal, Context given, Machine *found);

// A device in the caller's context, or in its primary context, which is retained.
class Device {
public:
    Device(int ordinal, Context given, const char *where);  // throws a Failure
    ~Device();
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;

    const Driver &driver;
    int ordinal = 0;
    Context context = nullptr;
    int multiprocessors = 1;
    int capability = 0;  // ten times the compute capability

private:
    bool retained_ = false;
};

// Makes a device's context current for a scope, and the thread's own one afterwards.
class Current {
public:
    explicit Current(const Device &device) noexcept : driver_(device.driver) {
        Context now = nullptr;
        code_ = driver_.context_current(&now);
        if (code_ == result::OK && now != device.context) {
            code_ = driver_.context_push(device.context);
            pushed_ = code_ == result::OK;
        }
    }
    ~Current() {
        Context popped;
        if (pushed_) driver_.context_pop(&popped);
    }
    Current(const Current &) = delete;
    Current &operator=(const Current &) = delete;
    void require(const char *where) const { check(driver_, code_, where, "making the context current"); }

private:
    const Driver &driver_;
    Result code_;
    bool pushed_ = false;
};

// Device memory. The context must be current where it is made and where it goes.
class DeviceBlock {
public:
    DeviceBlock() = default;
    DeviceBlock(const Device &device, size_t bytes, const char *where, const char *purpose);  // throws a Failure
    DeviceBlock(DeviceBlock &&other) noexcept { swap(other); }
    DeviceBlock &operator=(DeviceBlock &&other) noexcept {
        swap(other);
        return *this;
    }
    ~DeviceBlock();
    void swap(DeviceBlock &other) noexcept {
        std::swap(device_, other.device_);
        std::swap(address_, other.address_);
        std::swap(bytes_, other.bytes_);
    }
    // Leaves the memory to the caller.
    Address give() {
        bytes_ = 0;
        return address_;
    }
    Address address() const { return address_; }
    size_t bytes() const { return bytes_; }

private:
    const Device *device_ = nullptr;
    Address address_ = 0;
    size_t bytes_ = 0;
};

inline Address address_of(const uint8_t *pointer) { return static_cast<Address>(reinterpret_cast<uintptr_t>(pointer)); }
inline uint8_t *pointer_of(Address address) { return reinterpret_cast<uint8_t *>(static_cast<uintptr_t>(address)); }

// Room for one more, so that pushing it cannot fail and lose a handle.
template <class T> void make_room(Vector<T> &items) {
    if (items.size() == items.capacity()) items.reserve(2 * items.size() + 16);
}

}  // namespace aot::cuda
