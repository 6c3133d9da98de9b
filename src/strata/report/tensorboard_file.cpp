#include "strata/report/tensorboard_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/owner_file.h"

namespace strata::report {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

constexpr std::array<uint32_t, 256> crc_table() {
  constexpr uint32_t kReflectedPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ (rest & 1 ? kReflectedPolynomial : 0);
    table[byte] = rest;
  }
  return table;
}

// As stored: sums of records that hold sums would be no good ones.
uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

template <typename T>
std::string bytes_of(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

// The parts of protocol buffers that an Event needs. A key is the field's number and how it is
// stored.
enum class Wire : uint8_t { kVarint = 0, kEightBytes = 1, kLength = 2, kFourBytes = 5 };

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key(int field, Wire wire) {
  return varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire));
}

std::string sized(int field, std::string_view content) {
  return key(field, Wire::kLength) + varint(content.size()) + std::string(content);
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Event.wall_time and Event.step.
std::string event_start(int64_t step) {
  return key(1, Wire::kEightBytes) + bytes_of(seconds_since_1970()) + key(2, Wire::kVarint) +
         varint(static_cast<uint64_t>(step));
}

// Summary.Value with a tag and a simple_value.
std::string summary_value(const std::string& tag, double value) {
  return sized(1, tag) + key(2, Wire::kFourBytes) + bytes_of(static_cast<float>(value));
}

std::string tag_of(const std::string& name) {
  constexpr std::string_view kEval = "eval_";
  return name.starts_with(kEval) ? "eval/" + name.substr(kEval.size()) : "train/" + name;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~crc;
}

std::filesystem::path tensorboard_folder(const std::filesystem::path& output_dir) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[32] = {};
  std::strftime(text, sizeof(text), "%b%d_%H-%M-%S", &local);
  return output_dir / "runs" / fmt::format("{}_{}", text, host_name());
}

TensorboardFile::TensorboardFile(const std::filesystem::path& folder) {
  require_writable_folder(folder);
  path_ = folder / fmt::format("events.out.tfevents.{:010d}.{}.{}.0",
                               static_cast<int64_t>(seconds_since_1970()), host_name(), ::getpid());
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    throw IoError(
        "{}: found that it cannot be made ({}), expected a new file; choose another logging_dir",
        path_.string(), errno_text(errno));
  }
  // What every such file begins with.
  try {
    write_record(key(1, Wire::kEightBytes) + bytes_of(seconds_since_1970()) +
                 sized(3, "brain.Event:2"));
  } catch (const IoError&) {
    ::close(descriptor_);
    throw;
  }
}

TensorboardFile::~TensorboardFile() { ::close(descriptor_); }

void TensorboardFile::append(const Json& values, int64_t step) {
  std::string summary;
  for (const auto& [name, value] : values.items()) {
    if (!value.is_number() || name == "step") continue;
    summary += sized(1, summary_value(tag_of(name), value.get<double>()));
  }
  write_record(event_start(step) + sized(5, summary));
}

void TensorboardFile::write_record(std::string_view event) {
  const std::string length = bytes_of(static_cast<uint64_t>(event.size()));
  const std::string record =
      length + bytes_of(masked_crc(length)) + std::string(event) + bytes_of(masked_crc(event));
  const off_t begin = ::lseek(descriptor_, 0, SEEK_END);
  const char* rest = record.data();
  for (size_t left = record.size(); left > 0;) {
    const ssize_t written = ::write(descriptor_, rest, left);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error_number = errno;
      // No half record, after which TensorBoard would read no other.
      [[maybe_unused]] const int ignored = begin < 0 ? -1 : ::ftruncate(descriptor_, begin);
      throw IoError("{}: found that a record cannot be written ({}), expected room for it",
                    path_.string(), errno_text(error_number));
    }
    rest += written;
    left -= static_cast<size_t>(written);
  }
}

}  // namespace strata::report
