#include "strata/shard/home_file.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <new>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::shard {
namespace {

std::span<std::byte> whole_blocks(const at::Tensor& buffer) {
  return {static_cast<std::byte*>(buffer.data_ptr()), aligned_up(buffer.nbytes())};
}

}  // namespace

at::Tensor aligned_buffer(int64_t numel, at::ScalarType type) {
  const auto options = at::TensorOptions().dtype(type);
  const uint64_t bytes = aligned_up(static_cast<uint64_t>(numel) * c10::elementSize(type));
  void* memory = std::aligned_alloc(kDirectAlignment, std::max(bytes, kDirectAlignment));
  if (memory == nullptr) throw std::bad_alloc();
  return at::from_blob(
      memory, {numel}, [](void* p) { std::free(p); }, options);
}

struct HomeFile::Mapping {
  Mapping(const DirectFile& file) : size_bytes(file.size_bytes()) {
    if (size_bytes == 0) return;
    address = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor(), 0);
    if (address != MAP_FAILED) return;
    throw IoError("{}: found {} when mapping {} bytes, expected a mappable file; use a local disk",
                  file.path().string(), errno_text(errno), size_bytes);
  }
  ~Mapping() {
    if (size_bytes > 0) ::munmap(address, size_bytes);
  }
  void* address = nullptr;
  uint64_t size_bytes;
};

uint64_t HomeFile::size_bytes(int64_t numel, at::ScalarType type) {
  return aligned_up(static_cast<uint64_t>(numel) * c10::elementSize(type));
}

HomeFile::HomeFile(const FileHomeOptions& options, const std::string& name, uint64_t capacity_bytes)
    : file_(options.folder / name, capacity_bytes),
      mapping_(std::make_shared<Mapping>(file_)),
      queue_(FileQueue::open(options.queue)) {}

HomeFile::~HomeFile() {
  queue_->drain();
  std::error_code ignored;
  std::filesystem::remove(file_.path(), ignored);
}

FileRegion HomeFile::add(int64_t numel, at::ScalarType type) {
  const FileRegion region{used_bytes_, numel, type};
  used_bytes_ += size_bytes(numel, type);
  if (used_bytes_ > file_.size_bytes()) {
    throw InternalError("{}: found arrays of {} bytes, expected at most {}; report this as a bug",
                        file_.path().string(), used_bytes_, file_.size_bytes());
  }
  return region;
}

at::Tensor HomeFile::view(const FileRegion& region) const {
  return at::from_blob(
      static_cast<std::byte*>(mapping_->address) + region.offset_bytes, {region.numel},
      [mapping = mapping_](void*) {}, at::TensorOptions().dtype(region.type));
}

HomeFile::Ticket HomeFile::read(const FileRegion& region, int64_t begin, const at::Tensor& buffer) {
  const uint64_t at =
      region.offset_bytes + static_cast<uint64_t>(begin) * c10::elementSize(region.type);
  return queue_->read(file_, whole_blocks(buffer), at);
}

HomeFile::Ticket HomeFile::write(const FileRegion& region, int64_t begin,
                                 const at::Tensor& buffer) {
  const uint64_t at =
      region.offset_bytes + static_cast<uint64_t>(begin) * c10::elementSize(region.type);
  return queue_->write(file_, whole_blocks(buffer), at);
}

void HomeFile::forget_pages() {
  if (mapping_->size_bytes == 0) return;
  // Advice: where it is refused, memory is all that is lost.
  ::madvise(mapping_->address, mapping_->size_bytes, MADV_DONTNEED);
  ::posix_fadvise(file_.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace strata::shard
