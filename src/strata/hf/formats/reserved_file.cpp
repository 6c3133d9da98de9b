#include "strata/hf/formats/reserved_file.h"

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/write_advice.h"

namespace strata::hf {

Descriptor create_reserved(const std::filesystem::path& path, uint64_t size_bytes,
                           FileSystem& files) {
  const int created = files.create(path);
  if (created < 0) {
    throw IoError(
        "{}: found {} when creating it, expected a writable folder; choose another folder",
        path.string(), errno_text(-created));
  }
  Descriptor file(created);
  const int error = files.reserve(file.get(), size_bytes);
  if (error == 0) return file;
  const uint64_t available = available_bytes(path);
  file.close();
  files.remove(path);
  throw IoError("{}: found {} with {} bytes free, expected room for {} bytes; {}", path.string(),
                errno_text(error), available, size_bytes,
                write_advice(error, "free space or choose another folder"));
}

}  // namespace strata::hf
