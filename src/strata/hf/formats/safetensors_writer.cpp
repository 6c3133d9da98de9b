// SafetensorsWriter: header first, data as it comes.
#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>
#include <utility>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/base/write_advice.h"
#include "strata/hf/formats/reserved_file.h"
#include "strata/hf/formats/safetensors.h"

namespace strata::hf {
namespace {

std::string header_text(const std::vector<TensorInfo>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto separate = [&text] {
    if (text.size() > 1) text += ',';
  };
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    bool is_first = true;
    for (const auto& [key, value] : metadata) {
      if (!std::exchange(is_first, false)) text += ',';
      text += quote_json(key) + ':' + quote_json(value);
    }
    text += '}';
  }
  for (const TensorInfo& info : tensors) {
    separate();
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        quote_json(info.name), name_of(info.dtype), fmt::join(info.shape, ","),
                        info.begin, info.end);
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

std::string with_length(const std::string& header) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>((header.size() >> (8 * i)) & 0xff);
  return bytes + header;
}

uint64_t bytes_of(const TensorSpec& spec, const std::string& file) {
  uint64_t bytes = size_of(spec.dtype);
  for (const int64_t size : spec.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes) ||
        bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      throw InternalError(
          "{}: tensor \"{}\" has shape [{}], expected sizes that are not negative and "
          "below 2^63 bytes",
          file, spec.name, fmt::join(spec.shape, ", "));
    }
  }
  return bytes;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> specs,
                                     std::map<std::string, std::string> metadata, FileSystem& files)
    : path_(std::move(path)), files_(files) {
  lay_out(std::move(specs));
  const std::string header = with_length(header_text(tensors_, metadata));
  data_begin_ = header.size();
  file_bytes_ = data_begin_ + (tensors_.empty() ? 0 : tensors_.back().end);
  file_ = create_reserved(path_, file_bytes_, files_);
  try {
    write_at(std::as_bytes(std::span(header)), 0);
  } catch (...) {
    discard();
    throw;
  }
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, FileSystem& files)
    : path_(std::move(path)), is_shared_(true), files_(files) {
  const SafetensorsFile existing(path_);
  tensors_ = existing.tensors();
  if (!tensors_.empty()) data_begin_ = existing.file_offset(tensors_[0]);
  file_bytes_ = data_begin_ + (tensors_.empty() ? 0 : tensors_.back().end);
  for (size_t i = 0; i < tensors_.size(); ++i) places_.emplace(tensors_[i].name, i);
  written_.resize(tensors_.size());
  const int descriptor = files_.open_existing(path_);
  if (descriptor < 0) {
    throw IoError("{}: found {} when opening it, expected a file to write to; save again",
                  path_.string(), errno_text(-descriptor));
  }
  file_ = Descriptor(descriptor);
}

void SafetensorsWriter::create_shared(const std::filesystem::path& path,
                                      std::vector<TensorSpec> specs,
                                      std::map<std::string, std::string> metadata,
                                      FileSystem& files) {
  SafetensorsWriter writer(path, std::move(specs), std::move(metadata), files);
  writer.is_shared_ = true;
  writer.finish();
}

std::unique_ptr<SafetensorsWriter> SafetensorsWriter::join(const std::filesystem::path& path,
                                                           FileSystem& files) {
  return std::unique_ptr<SafetensorsWriter>(new SafetensorsWriter(path, files));
}

SafetensorsWriter::~SafetensorsWriter() {
  stream_.reset();
  if (file_.get() >= 0 && !is_shared_) discard();
}

void SafetensorsWriter::stream(size_t block_bytes) {
  direct_ = Descriptor(files_.open_direct(path_));
  stream_.emplace(files_, file_.get(), direct_.get(), block_bytes);
}

void SafetensorsWriter::lay_out(std::vector<TensorSpec> specs) {
  std::sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return std::pair(layout_rank(a.dtype), std::string_view(a.name)) <
           std::pair(layout_rank(b.dtype), std::string_view(b.name));
  });
  uint64_t at = 0;
  for (TensorSpec& spec : specs) {
    const uint64_t bytes = bytes_of(spec, path_.string());
    tensors_.push_back({std::move(spec.name), spec.dtype, std::move(spec.shape), at, at + bytes});
    at += bytes;
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!places_.emplace(tensors_[i].name, i).second || tensors_[i].name == "__metadata__") {
      throw InternalError(
          "{}: found the tensor name \"{}\" twice or reserved, expected every name once",
          path_.string(), tensors_[i].name);
    }
  }
  written_.resize(tensors_.size());
}

void SafetensorsWriter::write_at(std::span<const std::byte> data, uint64_t offset) {
  if (stream_) {
    if (const int error_number = stream_->put(data, offset)) fail_write(error_number, offset);
    return;
  }
  const size_t written = files_.write(file_.get(), data, offset);
  if (written != data.size()) fail_write(errno, offset + written);
}

void SafetensorsWriter::fail_write(int error_number, uint64_t written) const {
  throw IoError("{}: found {} after {} bytes written, expected {} bytes; {}, then save again",
                path_.string(), errno_text(error_number), written, file_bytes_,
                write_advice(error_number, "free space or choose another folder"));
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> data,
                              uint64_t offset_bytes) {
  const auto found = places_.find(name);
  if (found == places_.end() || file_.get() < 0) {
    throw InternalError(
        "{}: found a write of tensor \"{}\", expected one of the header of an open file",
        path_.string(), name);
  }
  const TensorInfo& info = tensors_[found->second];
  if (offset_bytes > info.size_bytes() || data.size() > info.size_bytes() - offset_bytes) {
    throw InternalError(
        "{}: tensor \"{}\": found {} bytes at {}, expected them within its {} bytes",
        path_.string(), name, data.size(), offset_bytes, info.size_bytes());
  }
  if (data.empty()) return;
  write_at(data, data_begin_ + info.begin + offset_bytes);
  note_written(found->second, offset_bytes, offset_bytes + data.size());
}

void SafetensorsWriter::note_written(size_t tensor, uint64_t begin, uint64_t end) {
  std::map<uint64_t, uint64_t>& ranges = written_[tensor];
  auto next = ranges.upper_bound(begin);
  if (next != ranges.begin()) {
    const auto before = std::prev(next);
    if (before->second >= begin) {
      begin = before->first;
      end = std::max(end, before->second);
      next = ranges.erase(before);
    }
  }
  while (next != ranges.end() && next->first <= end) {
    end = std::max(end, next->second);
    next = ranges.erase(next);
  }
  ranges.emplace(begin, end);
}

void SafetensorsWriter::finish() {
  for (size_t i = 0; i < tensors_.size() && !is_shared_; ++i) {
    if (tensors_[i].size_bytes() == 0) continue;
    const auto& ranges = written_[i];
    if (ranges.size() == 1 && ranges.begin()->first == 0 &&
        ranges.begin()->second == tensors_[i].size_bytes()) {
      continue;
    }
    uint64_t written = 0;
    for (const auto& [begin, end] : ranges) written += end - begin;
    throw InternalError("{}: tensor \"{}\": found {} bytes written, expected {} before finish",
                        path_.string(), tensors_[i].name, written, tensors_[i].size_bytes());
  }
  if (stream_) {
    if (const int error = stream_->finish()) fail_write(error, file_bytes_);
    stream_.reset();
    direct_.close();
  }
  if (const int error = files_.sync(file_.get())) {
    throw IoError(
        "{}: found {} when syncing, expected {} bytes on the disk; check the disk, then save "
        "again",
        path_.string(), errno_text(error), file_bytes_);
  }
  file_.close();
}

void SafetensorsWriter::discard() noexcept {
  file_.close();
  files_.remove(path_);
}

}  // namespace strata::hf
