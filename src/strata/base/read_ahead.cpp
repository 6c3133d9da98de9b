#include "strata/base/read_ahead.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <new>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata {
void ReadAhead::FreeMemory::operator()(std::byte* memory) const { std::free(memory); }

ReadAhead::ReadAhead(const ReadAheadOptions& options)
    : options_(options), queue_(options.open_queue()) {
  for (size_t i = 0; i < options_.num_blocks; ++i) {
    Block& block = blocks_.emplace_back();
    block.memory.reset(
        static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, options_.block_bytes)));
    if (!block.memory) throw std::bad_alloc();
  }
}

ReadAhead::~ReadAhead() = default;

void ReadAhead::open(const std::filesystem::path& path) {
  if (file_ && file_->path() == path) return;
  file_.reset();
  buffered_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (buffered_.get() < 0) {
    throw IoError("{}: found {}, expected a readable file; check its permissions", path.string(),
                  errno_text(errno));
  }
  file_.emplace(DirectFile::open_to_read(path, options_.past_cache));
}

void ReadAhead::start(const std::filesystem::path& path, uint64_t begin, uint64_t end) {
  queue_->drain();
  open(path);
  if (end > file_->size_bytes()) {
    throw IoError(
        "{}: found its end at byte {}, expected {} more; the file is damaged, use another",
        path.string(), file_->size_bytes(), end - file_->size_bytes());
  }
  begin_ = begin;
  end_ = end;
  next_ = aligned_down(begin);
  current_ = 0;
  is_in_use_ = false;
  for (Block& block : blocks_) issue(block);
}

void ReadAhead::issue(Block& block) {
  block.ticket.reset();
  block.begin = std::min(next_, end_);
  block.end = std::min(next_ + options_.block_bytes, end_);
  block.middle =
      std::max(std::min(aligned_up(block.end), aligned_down(file_->size_bytes())), block.begin);
  next_ = block.end;
  if (block.end <= block.begin || block.middle <= block.begin) return;
  block.ticket =
      queue_->read(*file_, {block.memory.get(), block.middle - block.begin}, block.begin);
}

std::span<const std::byte> ReadAhead::next() {
  if (is_in_use_) {
    issue(blocks_[current_]);
    current_ = (current_ + 1) % blocks_.size();
    is_in_use_ = false;
  }
  Block& block = blocks_[current_];
  if (block.end <= block.begin) return {};
  finish(block);
  is_in_use_ = true;
  const uint64_t skipped = std::max(begin_, block.begin) - block.begin;
  return {block.memory.get() + skipped, block.end - block.begin - skipped};
}

void ReadAhead::finish(Block& block) {
  if (block.ticket) {
    try {
      queue_->wait(*block.ticket);
    } catch (const IoError&) {
      // A file system that refuses direct transfers only now. A disk that fails says so again.
      read_plainly(block, block.begin, std::min(block.middle, block.end));
    }
    block.ticket.reset();
  }
  if (block.middle < block.end) read_plainly(block, block.middle, block.end);
}

void ReadAhead::read_plainly(Block& block, uint64_t begin, uint64_t end) const {
  while (begin < end) {
    const ssize_t count = ::pread(buffered_.get(), block.memory.get() + (begin - block.begin),
                                  end - begin, static_cast<off_t>(begin));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw IoError("{}: found {} at byte {}, expected {} more; the disk or the file is damaged",
                    file_->path().string(), count == 0 ? "its end" : errno_text(errno), begin,
                    end - begin);
    }
    begin += static_cast<uint64_t>(count);
  }
}

}  // namespace strata
