// GgufFile: the header, every size of it checked before it is used.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "strata/base/error.h"
#include "strata/hf/formats/gguf.h"

namespace strata::hf {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian");

constexpr size_t kMaxDimensions = 4;
// A vocabulary of a million tokens takes half of it. A file may have holes: its size says nothing
// of what it holds.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Reads forward through the header.
class Cursor {
 public:
  Cursor(std::span<const std::byte> data, const std::filesystem::path& path)
      : data_(data), path_(path.string()) {}

  uint64_t position() const { return at_; }
  const std::string& path() const { return path_; }

  std::span<const std::byte> take(uint64_t size_bytes) {
    if (size_bytes > data_.size() - at_) {
      throw FormatError(
          "{}: found {} bytes after byte {}, expected {}; "
          "the file is cut off, copy it again",
          path_, data_.size() - at_, at_, size_bytes);
    }
    if (size_bytes > room()) {
      throw FormatError(
          "{}: found {} bytes of a header after byte {}, expected at most {} in all; "
          "use another file",
          path_, size_bytes, at_, kMaxHeaderBytes);
    }
    at_ += size_bytes;
    return data_.subspan(at_ - size_bytes, size_bytes);
  }

  template <typename Number>
  Number number() {
    Number value;
    std::memcpy(&value, take(sizeof(Number)).data(), sizeof(Number));
    return value;
  }

  std::string text() {
    const auto size = number<uint64_t>();
    const auto bytes = take(size);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  // How many of `least_bytes` each follow: not more than there is room for.
  uint64_t count(uint64_t least_bytes, std::string_view what) {
    const auto found = number<uint64_t>();
    if (found <= room() / least_bytes) return found;
    throw FormatError(
        "{}: found {} {}, expected at most {} after byte {} of {}, in a header of at most {} "
        "bytes; "
        "use another file",
        path_, found, what, room() / least_bytes, at_, data_.size(), kMaxHeaderBytes);
  }

 private:
  // Bytes left in the header after what was read.
  uint64_t room() const { return std::min<uint64_t>(data_.size(), kMaxHeaderBytes) - at_; }

  std::span<const std::byte> data_;
  std::string path_;
  uint64_t at_ = 0;
};

template <typename Number>
Number read_one(Cursor& cursor) {
  if constexpr (std::is_same_v<Number, std::string>) return cursor.text();
  if constexpr (std::is_same_v<Number, bool>) return cursor.number<uint8_t>() != 0;
  if constexpr (std::is_arithmetic_v<Number> && !std::is_same_v<Number, bool>) {
    return cursor.number<Number>();
  }
}

template <typename Number>
GgufArray read_list(Cursor& cursor) {
  const bool is_text = std::is_same_v<Number, std::string>;
  const uint64_t count =
      cursor.count(is_text ? sizeof(uint64_t) : sizeof(Number), "array elements");
  std::vector<Number> list;
  list.reserve(count);
  for (uint64_t i = 0; i < count; ++i) list.push_back(read_one<Number>(cursor));
  return list;
}

[[noreturn]] void refuse_type(const Cursor& cursor, const std::string& key, uint32_t type) {
  throw FormatError(
      "{}: found value type {} of \"{}\", expected 0 to 12, and no array of arrays; "
      "use another file",
      cursor.path(), type, key);
}

// Calls `use` with a value of the C++ type of the format's number.
template <typename Use>
auto with_type(uint32_t type, const Cursor& cursor, const std::string& key, const Use& use) {
  switch (type) {
    case 0:
      return use(uint8_t{});
    case 1:
      return use(int8_t{});
    case 2:
      return use(uint16_t{});
    case 3:
      return use(int16_t{});
    case 4:
      return use(uint32_t{});
    case 5:
      return use(int32_t{});
    case 6:
      return use(float{});
    case 7:
      return use(bool{});
    case 8:
      return use(std::string{});
    case 10:
      return use(uint64_t{});
    case 11:
      return use(int64_t{});
    case 12:
      return use(double{});
    default:
      refuse_type(cursor, key, type);
  }
}

GgufValue read_value(Cursor& cursor, const std::string& key) {
  const auto type = cursor.number<uint32_t>();
  constexpr uint32_t kArray = 9;
  if (type == kArray) {
    const auto element = cursor.number<uint32_t>();
    return with_type(element, cursor, key, [&]([[maybe_unused]] auto zero) -> GgufValue {
      return read_list<decltype(zero)>(cursor);
    });
  }
  return with_type(type, cursor, key, [&]([[maybe_unused]] auto zero) -> GgufValue {
    return read_one<decltype(zero)>(cursor);
  });
}

[[noreturn]] void refuse_tensor(const Cursor& cursor, const GgufTensor& tensor,
                                const std::string& why) {
  throw FormatError("{}: tensor \"{}\" has shape [{}] and type {}: found {}; use another file",
                    cursor.path(), tensor.name, fmt::join(tensor.shape, ", "),
                    gguf_type_name(tensor.type), why);
}

uint64_t bytes_of(const Cursor& cursor, const GgufTensor& tensor) {
  const auto block = gguf_block(tensor.type);
  if (!block) refuse_tensor(cursor, tensor, "a type that is not known, expected one of ggml's");
  uint64_t elements = 1;
  for (const int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(elements, static_cast<uint64_t>(size), &elements) ||
        elements > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / 8) {
      refuse_tensor(cursor, tensor, "too many elements, expected below 2^60");
    }
  }
  const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (static_cast<uint64_t>(row) % block->elements != 0) {
    refuse_tensor(cursor, tensor,
                  fmt::format("rows of {}, expected a multiple of {}", row, block->elements));
  }
  return elements / block->elements * block->bytes;
}

GgufTensorInfo read_tensor(Cursor& cursor) {
  GgufTensorInfo info;
  info.tensor.name = cursor.text();
  const auto dimensions = cursor.number<uint32_t>();
  if (dimensions > kMaxDimensions) {
    throw FormatError("{}: tensor \"{}\" has {} dimensions, expected at most {}; use another file",
                      cursor.path(), info.tensor.name, dimensions, kMaxDimensions);
  }
  for (uint32_t i = 0; i < dimensions; ++i) {
    info.tensor.shape.push_back(static_cast<int64_t>(cursor.number<uint64_t>()));
  }
  std::ranges::reverse(info.tensor.shape);
  info.tensor.type = static_cast<GgufType>(cursor.number<uint32_t>());
  info.begin = cursor.number<uint64_t>();
  info.size_bytes = bytes_of(cursor, info.tensor);
  return info;
}

[[noreturn]] void refuse_magic(std::span<const std::byte> found,
                               const std::filesystem::path& path) {
  const std::string_view magic(reinterpret_cast<const char*>(found.data()), found.size());
  const char* what = "another format";
  const char* advice = "name a GGUF file";
  if (magic == "lmgg" || magic == "fmgg" || magic == "tjgg" || magic == "algg") {
    what = "a file of llama.cpp from before GGUF";
    advice = "convert the model again";
  } else if (magic == "PK\x03\x04") {
    what = "a zip archive";
  }
  std::string bytes;
  for (const std::byte byte : found) {
    bytes += fmt::format(" {:02x}", std::to_integer<unsigned>(byte));
  }
  throw FormatError(
      "{}: found no GGUF at its beginning but the bytes{} ({}), expected a GGUF file; {}",
      path.string(), bytes, what, advice);
}

uint64_t alignment_of(const GgufFile& file, const std::string& path) {
  const GgufValue* value = file.find("general.alignment");
  if (value == nullptr) return kGgufAlignment;
  const auto* alignment = std::get_if<uint32_t>(value);
  if (alignment != nullptr && std::has_single_bit(*alignment)) return *alignment;
  throw FormatError(
      "{}: found another general.alignment than a power of two in 32 bits; "
      "use another file",
      path);
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) : file_(path) {
  Cursor cursor(file_.data(), path);
  const auto magic = cursor.take(4);
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) refuse_magic(magic, path);
  version_ = cursor.number<uint32_t>();
  if (version_ != 2 && version_ != 3) {
    throw FormatError(
        "{}: found version {} of GGUF, expected 2 or 3, little-endian; "
        "convert the model again",
        path.string(), version_);
  }
  constexpr uint64_t kLeastTensor = 24, kLeastPair = 13;
  const uint64_t num_tensors = cursor.count(kLeastTensor, "tensors");
  const uint64_t num_pairs = cursor.count(kLeastPair, "keys");
  std::unordered_set<std::string> names;
  const auto require_new = [&](const std::string& name) {
    if (names.insert(name).second) return;
    throw FormatError("{}: found \"{}\" twice, expected it once; use another file", path.string(),
                      name);
  };
  for (uint64_t i = 0; i < num_pairs; ++i) {
    std::string key = cursor.text();
    require_new(key);
    GgufValue value = read_value(cursor, key);
    metadata_.emplace_back(std::move(key), std::move(value));
  }
  names.clear();
  for (uint64_t i = 0; i < num_tensors; ++i) {
    tensors_.push_back(read_tensor(cursor));
    require_new(tensors_.back().tensor.name);
  }
  const uint64_t alignment = alignment_of(*this, path.string());
  const uint64_t begin = (cursor.position() + alignment - 1) / alignment * alignment;
  for (GgufTensorInfo& info : tensors_) {
    const uint64_t size = file_.data().size();
    const bool fits = begin <= size && info.begin <= size - begin &&
                      info.size_bytes <= size - begin - info.begin && info.begin % alignment == 0;
    if (!fits) {
      throw FormatError(
          "{}: tensor \"{}\": found {} bytes at {} after the header of {}, expected them aligned "
          "to {} within {} bytes; the file is cut off, copy it again",
          path.string(), info.tensor.name, info.size_bytes, info.begin, begin, alignment, size);
    }
    info.begin += begin;
  }
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found =
      std::ranges::find_if(metadata_, [&](const auto& pair) { return pair.first == key; });
  return found == metadata_.end() ? nullptr : &found->second;
}

}  // namespace strata::hf
