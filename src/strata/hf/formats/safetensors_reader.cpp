// SafetensorsFile: reading, with every rule of the header checked.
#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/hf/formats/safetensors.h"

namespace strata::hf {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's limit
constexpr const char* kMetadataKey = "__metadata__";

// Messages: "FILE: header: ..." and "FILE: tensor "NAME": ...".
struct Subject {
  std::string file;

  std::string tensor(const std::string& name) const {
    return fmt::format("{}: tensor {}", file, quote_json(name));
  }
};

std::string text_of(const Json& value) {
  return dump_python(value, /*indent=*/-1, /*sort_keys=*/false, /*ensure_ascii=*/false);
}

uint64_t header_bytes(std::span<const std::byte> file, const Subject& subject) {
  if (file.size() < kLengthBytes) {
    throw FormatError(
        "{}: found {} bytes, expected at least the 8 bytes of the header length; the "
        "file is truncated, fetch it again",
        subject.file, file.size());
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    throw FormatError(
        "{}: found a header length of {} bytes, expected at most {}; this is no "
        "safetensors file",
        subject.file, length, kMaxHeaderBytes);
  }
  if (length > file.size() - kLengthBytes) {
    throw FormatError(
        "{}: found a header length of {} bytes in a file of {}, expected the header "
        "within the file; the file is truncated, fetch it again",
        subject.file, length, file.size());
  }
  return length;
}

Json parse_header(std::string_view text, const Subject& subject) {
  if (text.empty() || text[0] != '{') {
    throw FormatError(
        "{}: header: found no '{{' at its start, expected a json object; this is no "
        "safetensors file",
        subject.file);
  }
  return parse_json(text, subject.file + ": header", {.duplicates = DuplicateKeys::kReject});
}

std::map<std::string, std::string> parse_metadata(const Json& json, const Subject& subject) {
  std::map<std::string, std::string> metadata;
  if (!json.is_object()) {
    throw FormatError(
        "{}: __metadata__: found {}, expected an object of strings; write the file "
        "again",
        subject.file, text_of(json));
  }
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      throw FormatError(
          "{}: __metadata__: found {} for the key {}, expected a string; write the file "
          "again",
          subject.file, text_of(value), quote_json(key));
    }
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

const Json& require_key(const Json& json, const char* key, const std::string& subject) {
  const auto found = json.find(key);
  if (found == json.end()) {
    throw FormatError(
        "{}: found no key \"{}\", expected dtype, shape and data_offsets; write the "
        "file again",
        subject, key);
  }
  return *found;
}

std::vector<int64_t> parse_shape(const Json& json, const std::string& subject) {
  const auto is_size = [](const Json& item) {
    return item.is_number_unsigned() &&
           item.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  };
  if (!json.is_array() || !std::all_of(json.begin(), json.end(), is_size)) {
    throw FormatError(
        "{}: shape: found {}, expected a list of sizes from 0 to 2^63-1; write the file "
        "again",
        subject, text_of(json));
  }
  return json.get<std::vector<int64_t>>();
}

DType parse_header_dtype(const Json& json, const std::string& subject) {
  const auto dtype =
      json.is_string() ? find_dtype(json.get_ref<const std::string&>()) : std::nullopt;
  if (!dtype) {
    throw FormatError(
        "{}: dtype: found {}, expected one of F64, F32, F16, BF16, F8_E4M3, F8_E5M2, "
        "I64, I32, I16, I8, U64, U32, U16, U8, BOOL; convert the tensor",
        subject, text_of(json));
  }
  return *dtype;
}

// Bytes that a tensor of this type and shape takes; throws when they do not fit 63 bits.
uint64_t implied_bytes(const TensorInfo& info, const std::string& subject) {
  uint64_t bytes = size_of(info.dtype);
  for (const int64_t size : info.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes) ||
        bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      throw FormatError(
          "{}: shape: found [{}] of {}, expected a size below 2^63 bytes; write the "
          "file again",
          subject, fmt::join(info.shape, ", "), name_of(info.dtype));
    }
  }
  return bytes;
}

TensorInfo parse_tensor(const std::string& name, const Json& json, uint64_t data_bytes,
                        const Subject& file) {
  const std::string subject = file.tensor(name);
  if (!json.is_object()) {
    throw FormatError(
        "{}: found {}, expected an object with dtype, shape and data_offsets; write the "
        "file again",
        subject, text_of(json));
  }
  TensorInfo info;
  info.name = name;
  info.dtype = parse_header_dtype(require_key(json, "dtype", subject), subject);
  info.shape = parse_shape(require_key(json, "shape", subject), subject);
  const Json& offsets = require_key(json, "data_offsets", subject);
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    throw FormatError(
        "{}: data_offsets: found {}, expected two byte positions; write the file again", subject,
        text_of(offsets));
  }
  info.begin = offsets[0].get<uint64_t>();
  info.end = offsets[1].get<uint64_t>();
  if (info.begin > info.end || info.end > data_bytes) {
    throw FormatError(
        "{}: data_offsets: found [{}, {}] with {} bytes of data, expected an ascending "
        "pair within them; the file is truncated or damaged, fetch it again",
        subject, info.begin, info.end, data_bytes);
  }
  const uint64_t implied = implied_bytes(info, subject);
  if (implied != info.size_bytes()) {
    throw FormatError(
        "{}: data_offsets: found {} bytes, expected {} for {} [{}]; write the file again", subject,
        info.size_bytes(), implied, name_of(info.dtype), fmt::join(info.shape, ", "));
  }
  return info;
}

// The tensors, sorted by offset, must cover the data area exactly.
void check_tiling(const std::vector<TensorInfo>& tensors, uint64_t data_bytes,
                  const Subject& subject) {
  uint64_t at = 0;
  for (const TensorInfo& info : tensors) {
    if (info.begin != at) {
      throw FormatError(
          "{}: data_offsets: found a start at {}, expected {} where the tensor before it "
          "ends ({}); write the file again",
          subject.tensor(info.name), info.begin, at,
          info.begin < at ? "they overlap" : "there is a gap");
    }
    at = info.end;
  }
  if (at != data_bytes) {
    throw FormatError(
        "{}: found {} bytes of data, expected {} by the header; the file was damaged or "
        "appended to, fetch it again",
        subject.file, data_bytes, at);
  }
}

}  // namespace

int64_t TensorInfo::numel() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const Subject subject{path.string()};
  const std::span<const std::byte> file = file_.data();
  const uint64_t length = header_bytes(file, subject);
  data_ = file.subspan(kLengthBytes + length);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  const Json header = parse_header(text, subject);
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataKey) {
      metadata_ = parse_metadata(value, subject);
    } else {
      tensors_.push_back(parse_tensor(name, value, data_.size(), subject));
    }
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_tiling(tensors_, data_.size(), subject);
  index();
}

void SafetensorsFile::index() {
  places_.clear();
  for (size_t i = 0; i < tensors_.size(); ++i) places_.emplace(tensors_[i].name, i);
}

void SafetensorsFile::rename(const std::function<std::string(const std::string&)>& name_of) {
  for (TensorInfo& info : tensors_) info.name = name_of(info.name);
  index();
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& info) const {
  if (info.begin > info.end || info.end > data_.size()) {
    throw InternalError("{}: found tensor \"{}\" at [{}, {}], expected one of this file",
                        path().string(), info.name, info.begin, info.end);
  }
  return data_.subspan(info.begin, info.size_bytes());
}

uint64_t SafetensorsFile::file_offset(const TensorInfo& info) const {
  return static_cast<uint64_t>(bytes(info).data() - file_.data().data());
}

}  // namespace strata::hf
