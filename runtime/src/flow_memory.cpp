#include "flow_memory.h"

#include <algorithm>

namespace aot {

namespace {

constexpr size_t kWindowBytes = 4096;  // copied at once where an element is read
constexpr uint32_t kMostBusy = 64;     // storages of the host that wait for the device

}  // namespace

FlowMemory::FlowMemory(const Memory &memory, Space &host, Space *device)
    : spaces_{&host, device}, storages_(Allocator<Storage>(memory)), window_(Allocator<uint8_t>(memory)) {}

FlowMemory::~FlowMemory() {
    for (Storage &storage : storages_) {
        for (int place = 0; place < 2; ++place) {
            Copy &copy = storage.copies[place];
            if (copy.own) spaces_[place]->release(copy.own, copy.capacity);
        }
    }
}

void FlowMemory::begin() {
    for (Storage &storage : storages_) storage.users = 0;
    forget();
}

// The smallest free storage that is large enough, or else the largest free one, or a new one. Of equals on the host, one
// that has been on the device before; of those on the device, one that has not been on the host.
int32_t FlowMemory::free_one(Place place, size_t capacity) {
    if (busy_ > kMostBusy) wait();
    const Place other_place = place == kHost ? kDevice : kHost;
    const size_t count = storages_.size();
    size_t best = count, held = 0;
    for (size_t i = 0; i < count; ++i) {
        const Storage &storage = storages_[i];
        if (storage.users || (place == kHost && storage.copies[kHost].busy)) continue;
        const size_t one = storage.copies[place].capacity;
        bool is_better = best == count;
        if (!is_better && one == held) {
            const size_t mine = storage.copies[other_place].capacity, best_one = storages_[best].copies[other_place].capacity;
            is_better = place == kHost ? mine > best_one : mine < best_one;
        } else if (!is_better) {
            is_better = one < held ? one >= capacity : held < capacity;
        }
        if (!is_better) continue;
        best = i, held = one;
        if (one == capacity && !has_device()) break;  // none is better
    }
    if (best == storages_.size()) storages_.push_back(Storage{});
    Storage &storage = storages_[best];
    for (Copy &copy : storage.copies) copy.valid = false, copy.data = copy.own;
    return static_cast<int32_t>(best);
}

void FlowMemory::reserve(Copy &copy, Place place, size_t capacity) {
    if (copy.capacity < capacity || !copy.own) {
        if (copy.busy) wait();
        uint8_t *const old = copy.own;
        copy.own = copy.data = nullptr;
        // The old bytes go first: they are of no use, and both would double the peak.
        if (old) spaces_[place]->release(old, copy.capacity);
        copy.capacity = 0;
        copy.own = spaces_[place]->allocate(capacity ? capacity : 1);
        copy.capacity = capacity ? capacity : 1;
    }
    copy.data = copy.own;
}

int32_t FlowMemory::borrow(Place place, uint8_t *data, size_t bytes) {
    const int32_t number = free_one(place, 0);
    Storage &storage = of(number);
    storage.copies[place].data = data;
    storage.copies[place].valid = true;
    storage.bytes = bytes;
    storage.users = 1;
    return number;
}

int32_t FlowMemory::take(Place place, size_t bytes, size_t capacity) {
    const int32_t number = free_one(place, capacity);
    Storage &storage = of(number);
    reserve(storage.copies[place], place, capacity);
    storage.copies[place].valid = true;
    storage.bytes = bytes;
    storage.users = 1;
    return number;
}

// Copied to a place where it is not.
uint8_t *FlowMemory::brought(int32_t number, Place place) {
    Storage &storage = of(number);
    Copy &copy = storage.copies[place], &other = storage.copies[place == kHost ? kDevice : kHost];
    reserve(copy, place, storage.bytes);
    if (storage.bytes && place == kHost) {
        spaces_[kDevice]->copy_out(copy.data, other.data, storage.bytes);
        pending_ = true;
    } else if (storage.bytes) {
        if (!other.busy) other.busy = true, ++busy_;
        spaces_[kDevice]->copy_in(copy.data, other.data, storage.bytes);
    }
    copy.valid = true;
    return copy.data;
}

void FlowMemory::wait() {
    if (spaces_[kDevice]) spaces_[kDevice]->wait();
    waited();
}

void FlowMemory::waited() {
    for (Storage &storage : storages_) storage.copies[kHost].busy = false;
    busy_ = 0;
    pending_ = false;
}

const uint8_t *FlowMemory::peeked(int32_t number, size_t offset, size_t bytes) {
    Storage &storage = of(number);
    if (storage.copies[kHost].valid || storage.bytes <= kWindowBytes) {
        const uint8_t *data = at(number, kHost) + offset;
        settle();
        return data;
    }
    if (window_storage_ != number || offset < window_first_ || offset + bytes > window_first_ + window_.size()) {
        forget();
        window_.resize(std::min(kWindowBytes, storage.bytes - offset));
        spaces_[kDevice]->copy_out(window_.data(), storage.copies[kDevice].data + offset, window_.size());
        wait();
        window_storage_ = number;
        window_first_ = offset;
    }
    return window_.data() + (offset - window_first_);
}

int32_t FlowMemory::append(int32_t number, size_t bytes, int32_t from, size_t from_bytes) {
    const bool on_host = is_at(from, kHost) && (bytes == 0 || is_at(number, kHost));
    const Place place = on_host || !has_device() ? kHost : kDevice;
    const uint8_t *piece = at(from, place);
    const size_t total = bytes + from_bytes;
    const uint8_t *old = bytes ? at(number, place) : nullptr;
    const Copy &held = of(number).copies[place];
    if (of(number).users > 1 || held.data != held.own || held.capacity < total) {
        const int32_t larger = take(place, total, total + total / 2);
        if (bytes) spaces_[place]->copy(of(larger).copies[place].data, old, bytes);
        leave(number);
        number = larger;
    }
    Storage &storage = of(number);
    if (from_bytes) spaces_[place]->copy(storage.copies[place].data + bytes, piece, from_bytes);
    storage.bytes = total;
    storage.copies[place].valid = true;
    storage.copies[place == kHost ? kDevice : kHost].valid = false;
    return number;
}

int32_t FlowMemory::detached(int32_t number) {
    const Storage &storage = of(number);
    for (Place place : {kHost, kDevice}) {
        const Copy &copy = storage.copies[place];
        if (!copy.valid || copy.data == copy.own || !storage.bytes) continue;
        const size_t bytes = storage.bytes;
        uint8_t *const data = copy.data;
        const int32_t own = take(place, bytes, bytes);
        spaces_[place]->copy(of(own).copies[place].data, data, bytes);
        leave(number);
        return own;
    }
    return number;
}

void FlowMemory::store(int32_t number, size_t bytes, uint8_t *to, Place place) {
    if (!bytes) return;
    Storage &storage = of(number);
    if (storage.copies[place].valid) {
        if (place == kHost && busy_) wait();  // the caller's memory may be on its way to the device
        return spaces_[place]->copy(to, storage.copies[place].data, bytes);
    }
    if (place == kDevice) {
        Copy &copy = storage.copies[kHost];
        if (!copy.busy) copy.busy = true, ++busy_;
        return spaces_[kDevice]->copy_in(to, copy.data, bytes);
    }
    spaces_[kDevice]->copy_out(to, storage.copies[kDevice].data, bytes);
    pending_ = true;
}

size_t FlowMemory::held_bytes() const {
    size_t total = storages_.capacity() * sizeof(Storage) + window_.capacity();
    for (const Storage &storage : storages_) total += storage.copies[kHost].capacity + storage.copies[kDevice].capacity;
    return total;
}

}  // namespace aot
