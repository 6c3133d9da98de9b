#include "strata/base/write_stream.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>

#include "strata/base/file_queue.h"

namespace strata {
void WriteStream::FreeMemory::operator()(std::byte* memory) const { std::free(memory); }

WriteStream::WriteStream(FileSystem& files, int buffered, int direct, size_t block_bytes)
    : files_(files), buffered_(buffered), direct_(direct), block_bytes_(block_bytes) {}

WriteStream::~WriteStream() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int WriteStream::put(std::span<const std::byte> data, uint64_t offset) {
  if (current().end > current().begin && offset != current().end) submit();
  while (!data.empty()) {
    Block& block = current();
    if (block.begin == block.end) {
      block.base = aligned_down(offset);
      block.begin = block.end = offset;
      if (!block.memory) {
        block.memory.reset(
            static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, block_bytes_)));
        if (!block.memory) throw std::bad_alloc();
      }
    }
    const uint64_t room = block.base + block_bytes_ - block.end;
    const std::span<const std::byte> part = data.first(std::min<uint64_t>(room, data.size()));
    std::memcpy(block.memory.get() + (block.end - block.base), part.data(), part.size());
    block.end += part.size();
    offset += part.size();
    data = data.subspan(part.size());
    if (block.end == block.base + block_bytes_) submit();
  }
  const std::lock_guard lock(mutex_);
  return error_;
}

int WriteStream::finish() {
  if (thread_.joinable()) {
    if (current().end > current().begin) submit();
    return wait();
  }
  // Less than a block in all: no thread for that.
  if (error_ == 0) error_ = write(current());
  current().begin = current().end = 0;
  return error_;
}

void WriteStream::submit() {
  wait();
  if (has_thread()) {
    {
      const std::lock_guard lock(mutex_);
      job_ = &current();
    }
    changed_.notify_all();
    current_ = 1 - current_;
  } else if (error_ == 0) {
    error_ = write(current());
  }
  current().begin = current().end = 0;
}

bool WriteStream::has_thread() {
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error&) {  // no more threads; the next block may get one
  }
  return thread_.joinable();
}

int WriteStream::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return job_ == nullptr; });
  return error_;
}

void WriteStream::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_ending_ || job_ != nullptr; });
    if (job_ == nullptr) return;
    if (error_ == 0) {  // after an error nothing more is written
      lock.unlock();
      const int error = write(*job_);
      lock.lock();
      error_ = error;
    }
    job_ = nullptr;
    changed_.notify_all();
  }
}

// Whole pages go directly; the page that a range begins or ends in is shared with what lies beside
// it and goes through the page cache.
int WriteStream::write(const Block& block) {
  const uint64_t middle = std::min(aligned_up(block.begin), block.end);
  const uint64_t tail = std::max(aligned_down(block.end), middle);
  if (direct_ < 0 || middle == tail) {
    return write_part(buffered_, block, block.begin, block.end);
  }
  if (const int error = write_part(buffered_, block, block.begin, middle)) return error;
  int error = write_part(direct_, block, middle, tail);
  if (error == EINVAL) {  // a file system that says so only now
    direct_ = -1;
    error = write_part(buffered_, block, middle, tail);
  }
  return error != 0 ? error : write_part(buffered_, block, tail, block.end);
}

int WriteStream::write_part(int descriptor, const Block& block, uint64_t begin, uint64_t end) {
  if (begin >= end) return 0;
  const std::span<const std::byte> part(block.memory.get() + (begin - block.base), end - begin);
  return files_.write(descriptor, part, begin) == part.size() ? 0 : errno;
}

}  // namespace strata
