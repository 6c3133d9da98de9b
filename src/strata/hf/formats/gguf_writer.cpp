// GgufWriter: header first, then tensors in their order.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <unordered_set>

#include "strata/base/error.h"
#include "strata/base/write_advice.h"
#include "strata/hf/formats/gguf.h"
#include "strata/hf/formats/reserved_file.h"

namespace strata::hf {
namespace {

constexpr uint32_t kVersion = 3;

uint64_t aligned(uint64_t position) {
  return (position + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
}

class HeaderText {
 public:
  template <typename Number>
  void put(Number number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void put_text(std::string_view text) {
    put<uint64_t>(text.size());
    bytes_ += text;
  }
  void put_raw(std::string_view text) { bytes_ += text; }

  void put_value(const GgufValue& value) {
    put(static_cast<uint32_t>(value.index()));
    std::visit([this](const auto& content) { put_content(content); }, value);
  }

  std::string take() && { return std::move(bytes_); }

 private:
  void put_content(const std::string& text) { put_text(text); }
  void put_content(bool flag) { put<uint8_t>(flag ? 1 : 0); }
  template <typename Number>
  void put_content(Number number) {
    put(number);
  }
  void put_content(const GgufArray& array) {
    put(static_cast<uint32_t>(array.index()));
    std::visit(
        [this](const auto& list) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(list)>, std::monostate>) {
            put<uint64_t>(list.size());
            for (const auto& element : list) put_content(element);
          }
        },
        array);
  }

  std::string bytes_;
};

uint64_t bytes_of(const GgufTensor& tensor, const std::string& path) {
  const GgufBlock block = gguf_block(tensor.type).value();
  uint64_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= static_cast<uint64_t>(size);
  const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (static_cast<uint64_t>(row) % block.elements == 0) {
    return elements / block.elements * block.bytes;
  }
  throw InternalError("{}: tensor \"{}\": found rows of {}, expected a multiple of {} for {}", path,
                      tensor.name, row, block.elements, gguf_type_name(tensor.type));
}

std::string header_text(const GgufMetadata& metadata, const std::vector<GgufTensorInfo>& tensors) {
  HeaderText text;
  text.put_raw("GGUF");
  text.put(kVersion);
  text.put<uint64_t>(tensors.size());
  text.put<uint64_t>(metadata.size());
  for (const auto& [key, value] : metadata) {
    text.put_text(key);
    text.put_value(value);
  }
  for (const auto& [tensor, begin, size_bytes] : tensors) {
    text.put_text(tensor.name);
    text.put(static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) {
      text.put(static_cast<uint64_t>(*size));
    }
    text.put(static_cast<uint32_t>(tensor.type));
    text.put(begin);
  }
  std::string bytes = std::move(text).take();
  bytes.resize(aligned(bytes.size()), '\0');
  return bytes;
}

}  // namespace

GgufWriter::GgufWriter(std::filesystem::path path, const GgufMetadata& metadata,
                       const std::vector<GgufTensor>& tensors, FileSystem& files)
    : path_(std::move(path)), files_(files) {
  lay_out(tensors);
  const std::string header = header_text(metadata, tensors_);
  for (GgufTensorInfo& info : tensors_) info.begin += header.size();
  file_bytes_ = header.size();
  if (!tensors_.empty()) {
    file_bytes_ = aligned(tensors_.back().begin + tensors_.back().size_bytes);
  }
  file_ = create_reserved(path_, file_bytes_, files_);
  try {
    write_at(std::as_bytes(std::span(header)), 0);
    close_tensor();
  } catch (...) {
    discard();
    throw;
  }
}

GgufWriter::~GgufWriter() {
  if (file_.get() >= 0) discard();
}

void GgufWriter::discard() noexcept {
  file_.close();
  files_.remove(path_);
}

void GgufWriter::lay_out(const std::vector<GgufTensor>& tensors) {
  std::unordered_set<std::string_view> names;
  uint64_t at = 0;
  for (const GgufTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw InternalError("{}: found the tensor name \"{}\" twice, expected every name once",
                          path_.string(), tensor.name);
    }
    tensors_.push_back({tensor, at, bytes_of(tensor, path_.string())});
    at = aligned(at + tensors_.back().size_bytes);
  }
}

void GgufWriter::write_at(std::span<const std::byte> data, uint64_t offset) {
  const size_t written = files_.write(file_.get(), data, offset);
  if (written == data.size()) return;
  const int error = errno;
  throw IoError("{}: found {} after {} bytes written, expected {} bytes; {}, then convert again",
                path_.string(), errno_text(error), offset + written, file_bytes_,
                write_advice(error, "free space or choose another folder"));
}

void GgufWriter::close_tensor() {
  constexpr std::array<std::byte, kGgufAlignment> kZeros{};
  while (current_ < tensors_.size() && written_ == tensors_[current_].size_bytes) {
    const uint64_t end = tensors_[current_].begin + written_;
    write_at(std::span(kZeros).first(aligned(end) - end), end);
    ++current_;
    written_ = 0;
  }
}

void GgufWriter::append(std::string_view name, std::span<const std::byte> data) {
  if (file_.get() < 0 || current_ == tensors_.size() || tensors_[current_].tensor.name != name ||
      data.size() > tensors_[current_].size_bytes - written_) {
    throw InternalError("{}: found {} bytes of \"{}\", expected the rest of {}", path_.string(),
                        data.size(), name,
                        current_ == tensors_.size() ? "nothing" : tensors_[current_].tensor.name);
  }
  write_at(data, tensors_[current_].begin + written_);
  written_ += data.size();
  close_tensor();
}

void GgufWriter::finish() {
  if (current_ < tensors_.size()) {
    throw InternalError("{}: tensor \"{}\": found {} bytes written, expected {} before finish",
                        path_.string(), tensors_[current_].tensor.name, written_,
                        tensors_[current_].size_bytes);
  }
  if (const int error = files_.sync(file_.get())) {
    throw IoError(
        "{}: found {} when syncing, expected {} bytes on the disk; "
        "check the disk, then convert again",
        path_.string(), errno_text(error), file_bytes_);
  }
  file_.close();
}

}  // namespace strata::hf
