#include "strata/hf/weights_fingerprint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/descriptor.h"
#include "strata/base/error.h"
#include "strata/base/xxh3.h"

namespace strata::hf {
namespace {

constexpr size_t kMostSampled = 512;
constexpr uint64_t kSampleBytes = 64;

// By read calls: what a map reads around each place would be megabytes of a file.
class Files {
 public:
  void sample(const SafetensorsFile& file, const TensorInfo& tensor, Xxh3& hash) {
    std::array<std::byte, kSampleBytes> bytes;
    const uint64_t size = std::min(kSampleBytes, tensor.size_bytes());
    const uint64_t offset = file.file_offset(tensor) + (tensor.size_bytes() - size) / 2;
    const ssize_t count =
        ::pread(descriptor_of(file), bytes.data(), size, static_cast<off_t>(offset));
    if (count != static_cast<ssize_t>(size)) {
      throw IoError("{}: found {}, expected {} bytes at {}; fetch the file again",
                    file.path().string(), count < 0 ? errno_text(errno) : "its end", size, offset);
    }
    hash.update(std::span(bytes).first(size));
  }

 private:
  int descriptor_of(const SafetensorsFile& file) {
    Descriptor& known = open_[&file];
    if (known.get() < 0) {
      known = Descriptor(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC));
      if (known.get() < 0) {
        throw IoError("{}: found {}, expected a readable file", file.path().string(),
                      errno_text(errno));
      }
      ::posix_fadvise(known.get(), 0, 0, POSIX_FADV_RANDOM);
    }
    return known.get();
  }

  std::map<const SafetensorsFile*, Descriptor> open_;
};

// Which of `count` tensors, sorted by their names: all, or some that no regular order of layers
// makes the same of each (the fractional parts of multiples of the golden ratio).
std::vector<size_t> sampled(size_t count) {
  std::vector<size_t> places;
  for (size_t i = 0; i < std::min(count, kMostSampled); ++i) {
    const uint64_t fraction = (i * 0x9e3779b97f4a7c15u) >> 32u;
    places.push_back(count <= kMostSampled ? i : static_cast<size_t>(fraction * count >> 32u));
  }
  return places;
}

}  // namespace

std::string weights_fingerprint(const ModelFolder& folder) {
  const std::vector<std::string> names = folder.names();
  Xxh3 hash;
  for (const std::string& name : names) {
    const TensorInfo& tensor = *folder.find(name);
    hash.update(fmt::format("{} {} [{}]\n", name, static_cast<int>(tensor.dtype),
                            fmt::join(tensor.shape, ",")));
  }
  Files files;
  for (const size_t i : sampled(names.size())) {
    const TensorInfo& tensor = *folder.find(names[i]);
    files.sample(folder.file_of(tensor), tensor, hash);
  }
  return hash.text_64();
}

}  // namespace strata::hf
