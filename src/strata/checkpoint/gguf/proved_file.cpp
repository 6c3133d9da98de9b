#include "strata/checkpoint/gguf/proved_file.h"

#include <unistd.h>

#include <array>
#include <optional>

#include "strata/base/abandoned.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/xxh3.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

// A file with a name of its own until commit(). The destructor without it removes the file.
class FileAside {
 public:
  FileAside(fs::path out, FileSystem& files) : out_(std::move(out)), files_(files) {
    const fs::path parent = fs::absolute(out_).parent_path();
    if (const int error = make_durable_folders(parent, files)) {
      throw IoError("{}: found {} when creating it, expected a writable folder; choose another",
                    parent.string(), errno_text(error));
    }
    aside_ = parent / fmt::format("{}.tmp-{}", out_.filename().string(), ::getpid());
  }
  ~FileAside() {
    if (!is_in_place_) files_.remove(aside_);
  }
  FileAside(const FileAside&) = delete;
  FileAside& operator=(const FileAside&) = delete;

  const fs::path& path() const { return aside_; }

  void commit() {
    require_new_file(out_);  // what came there meanwhile stays
    if (const int error = files_.rename(aside_, out_)) fail(error, "renaming it into place");
    is_in_place_ = true;
    if (const int error = files_.sync_path(aside_.parent_path())) fail(error, "syncing its folder");
  }

 private:
  [[noreturn]] void fail(int error, const char* doing) const {
    throw IoError("{}: found {} when {}, expected a file; check the disk, then convert again",
                  out_.string(), errno_text(error), doing);
  }

  fs::path out_, aside_;
  FileSystem& files_;
  bool is_in_place_ = false;
};

// Returns a checksum a tensor.
std::vector<uint64_t> write_content(const fs::path& path, const GgufContent& content,
                                    FileSystem& files, std::optional<WriteClaim>& claim) {
  std::vector<uint64_t> sums;
  hf::GgufWriter writer(path, content.metadata, content.tensors, files);
  claim.emplace(path);
  for (size_t i = 0; i < content.tensors.size(); ++i) {
    Xxh3 sum;
    content.write(i, [&](std::span<const std::byte> bytes) {
      sum.update(bytes);
      writer.append(content.tensors[i].name, bytes);
    });
    sums.push_back(sum.digest_64());
  }
  writer.finish();
  return sums;
}

// Reads the file as any reader would see it.
bool holds(const fs::path& path, const GgufContent& content, const std::vector<uint64_t>& sums) {
  const hf::GgufFile file(path);
  if (file.metadata() != content.metadata || file.tensors().size() != sums.size()) return false;
  for (size_t i = 0; i < sums.size(); ++i) {
    const hf::GgufTensorInfo& info = file.tensors()[i];
    Xxh3 sum;
    sum.update(file.bytes(info));
    forget_pages(file.bytes(info));
    if (info.tensor != content.tensors[i] || sum.digest_64() != sums[i]) return false;
  }
  return true;
}

}  // namespace

std::string gguf_name(const fs::path& folder) {
  const fs::path path = fs::canonical(folder);
  const bool is_checkpoint = path.filename().string().starts_with("checkpoint-");
  return (is_checkpoint ? path.parent_path() : path).filename().string();
}

void require_new_file(const fs::path& out) {
  const fs::path name = out.filename();
  if (name.empty() || name == "." || name == "..") {
    throw ConfigError("{}: found the name of a folder, expected that of a file; use {}/model.gguf",
                      out.string(), out.parent_path().string());
  }
  if (!fs::exists(fs::symlink_status(out))) return;
  throw ConfigError("{}: found something there already, expected no file; choose another name",
                    out.string());
}

std::vector<std::string> write_proved(const fs::path& out, const GgufContent& content,
                                      const std::string& source, FileSystem& files) {
  std::vector<std::string> notes = remove_abandoned(out, std::array{fs::path(source)});
  std::optional<WriteClaim> claim;
  FileAside file(out, files);
  const std::vector<uint64_t> sums = write_content(file.path(), content, files, claim);
  if (!holds(file.path(), content, sums)) {
    throw IoError(
        "{}: found other content after writing, expected what {} holds; "
        "check the disk and convert again",
        out.string(), source);
  }
  file.commit();
  return notes;
}

}  // namespace strata::checkpoint
