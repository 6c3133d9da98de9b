#include "strata/base/status_page.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>

namespace strata {
namespace {

StatusPage* map_page(int descriptor) {
  struct stat file {};
  if (descriptor < 0 || ::fstat(descriptor, &file) != 0 ||
      file.st_size != static_cast<off_t>(kStatusBytes)) {
    return nullptr;
  }
  void* page =
      ::mmap(nullptr, kStatusBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, /*offset=*/0);
  return page == MAP_FAILED ? nullptr : static_cast<StatusPage*>(page);
}

}  // namespace

// A word that a writer put there brings the writer's version with it (release, acquire).
template <size_t kWords>
void StatusText<kWords>::set(std::string_view text) {
  uint64_t copy[kWords] = {};
  std::memcpy(copy, text.data(), std::min(text.size(), sizeof(copy) - 1));
  for (size_t i = 0; i < kWords; ++i) words[i].store(copy[i], std::memory_order_release);
}

template <size_t kWords>
std::string StatusText<kWords>::get() const {
  uint64_t copy[kWords];
  for (size_t i = 0; i < kWords; ++i) copy[i] = words[i].load(std::memory_order_acquire);
  const auto* text = reinterpret_cast<const char*>(copy);
  return {text, ::strnlen(text, sizeof(copy))};
}

int64_t monotonic_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int stack_trace_signal() { return SIGRTMIN + 7; }

namespace {

int64_t lasted_ms(int64_t since) {
  return since == 0 ? 0 : std::max<int64_t>(monotonic_ms() - since, 1);
}

// Into what is waited for in `reading`.
void read_device(const StatusPage::OfDevice& device, StatusReading& reading) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const uint32_t before = device.version.load(std::memory_order_acquire);
    reading.number = device.number.load(std::memory_order_relaxed);
    reading.collective = device.collective.get();
    reading.group = device.group.get();
    reading.waiting_ms = lasted_ms(device.since_ms.load(std::memory_order_acquire));
    if (before % 2 == 0 && before == device.version.load(std::memory_order_acquire)) return;
  }
}

}  // namespace

StatusReading read_status(const StatusPage& page) {
  StatusReading reading;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const uint32_t before = page.version.load(std::memory_order_acquire);
    reading.process = page.process.load(std::memory_order_acquire);
    reading.step = page.step.load(std::memory_order_relaxed);
    reading.number = page.number.load(std::memory_order_relaxed);
    reading.phase = page.phase.get();
    reading.collective = page.collective.get();
    reading.group = page.group.get();
    reading.waiting_ms = lasted_ms(page.waiting_since_ms.load(std::memory_order_acquire));
    // A text that is still being written after so many looks: its rank stopped right there.
    if (before % 2 == 0 && before == page.version.load(std::memory_order_acquire)) break;
  }
  if (reading.waiting_ms == 0 && page.device.since_ms.load(std::memory_order_acquire) != 0) {
    read_device(page.device, reading);
  }
  return reading;
}

Status::Status() : own_(std::make_unique<StatusPage>()) { page_ = own_.get(); }

Status::Status(int descriptor) : page_(map_page(descriptor)) {
  if (page_ == nullptr) {
    own_ = std::make_unique<StatusPage>();
    page_ = own_.get();
  }
  page_->process.store(::getpid(), std::memory_order_release);
}

Status::~Status() {
  if (own_) return;
  page_->process.store(0, std::memory_order_release);
  ::munmap(page_, kStatusBytes);
}

void Status::set_phase(std::string_view phase) {
  page_->version.fetch_add(1, std::memory_order_acq_rel);
  page_->phase.set(phase);
  page_->version.fetch_add(1, std::memory_order_release);
}

void Status::tell_device_wait(const void* watcher, const DeviceWait& wait) {
  const std::lock_guard lock(device_mutex_);
  if (wait.since_ms != 0) {
    device_waits_[watcher] = wait;
  } else if (device_waits_.erase(watcher) == 0) {
    return;
  }
  const auto longest = std::ranges::min_element(device_waits_, {},
                                                [](const auto& of) { return of.second.since_ms; });
  StatusPage::OfDevice& device = page_->device;
  device.version.fetch_add(1, std::memory_order_acq_rel);
  if (longest == device_waits_.end()) {
    device.since_ms.store(0, std::memory_order_release);
  } else {
    const DeviceWait& shown = longest->second;
    device.collective.set(shown.collective);
    device.group.set(shown.group);
    device.number.store(shown.number, std::memory_order_relaxed);
    device.since_ms.store(shown.since_ms, std::memory_order_release);
  }
  device.version.fetch_add(1, std::memory_order_release);
}

Status::Waiting::Waiting(Status& status, std::string_view collective, std::string_view group,
                         uint64_t number)
    : page_(*status.page_) {
  page_.version.fetch_add(1, std::memory_order_acq_rel);
  page_.collective.set(collective);
  page_.group.set(group);
  page_.number.store(number, std::memory_order_relaxed);
  page_.version.fetch_add(1, std::memory_order_release);
  page_.waiting_since_ms.store(monotonic_ms(), std::memory_order_release);
}

}  // namespace strata
