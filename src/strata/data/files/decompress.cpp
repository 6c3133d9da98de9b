#include "strata/data/files/decompress.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::data {
namespace {

constexpr size_t kStep = size_t{1} << 20;

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& found) {
  throw FormatError("{}: found {}, expected a whole compressed file; it may be cut off",
                    path.string(), found);
}

using Take = std::function<void(std::string_view)>;

// One call of inflate; hands out what it made. Z_STREAM_END at the end of a member.
int inflate_step(z_stream& stream, std::string& room, const Take& take, const MappedFile& file) {
  stream.next_out = reinterpret_cast<Bytef*>(room.data());
  stream.avail_out = static_cast<uInt>(room.size());
  const int code = inflate(&stream, Z_NO_FLUSH);
  if (code != Z_OK && code != Z_BUF_ERROR && code != Z_STREAM_END) {
    refuse(file.path(), stream.msg ? stream.msg : "broken data");
  }
  take({room.data(), room.size() - stream.avail_out});
  return code;
}

// A text under the name of a compressed file, which somebody unpacked or never packed.
void refuse_unpacked_json(const MappedFile& file, std::string_view ending) {
  const auto first = static_cast<char>(file.data()[0]);
  if (first != '{' && first != '[') return;
  throw FormatError(
      "{}: found '{}' as its first byte, expected a compressed file; remove the ending {} from its "
      "name",
      file.path().string(), first, ending);
}

bool ends_with_gz(const std::filesystem::path& path) {
  const std::string ending = path.extension().string();
  return ending == ".gz" || ending == ".GZ";
}

void inflate_gzip(const MappedFile& file, const Take& take) {
  z_stream stream = {};
  constexpr int kGzipHeader = 16 + MAX_WBITS;
  if (inflateInit2(&stream, kGzipHeader) != Z_OK) throw OutOfMemoryError("zlib: found no memory");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> closer(&stream, inflateEnd);
  auto bytes = file.data();
  std::string room(kStep, '\0');
  bool is_open = true;
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(kStep, bytes.size()));
    bytes = bytes.subspan(part.size());
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(part.data()));
    stream.avail_in = static_cast<uInt>(part.size());
    while (stream.avail_in > 0) {
      if (!is_open && *stream.next_in == 0) {  // zeros after the end, as Python's gzip reads them
        ++stream.next_in;
        --stream.avail_in;
        continue;
      }
      if (!is_open) inflateReset(&stream);
      is_open = inflate_step(stream, room, take, file) != Z_STREAM_END;
    }
    forget_pages(part);
  }
  // Output that did not fit into the last step.
  while (is_open) {
    is_open = inflate_step(stream, room, take, file) != Z_STREAM_END;
    if (is_open && stream.avail_out == room.size()) refuse(file.path(), "the end of the file");
  }
}

void inflate_zstd(const MappedFile& file, const Take& take) {
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                        ZSTD_freeDStream);
  if (!stream) throw OutOfMemoryError("zstd: found no memory");
  ZSTD_inBuffer in{file.data().data(), file.data().size(), 0};
  std::string room(kStep, '\0');
  size_t code = 1, forgotten = 0;
  while (true) {
    ZSTD_outBuffer out{room.data(), room.size(), 0};
    code = ZSTD_decompressStream(stream.get(), &out, &in);
    if (ZSTD_isError(code)) refuse(file.path(), ZSTD_getErrorName(code));
    take({room.data(), out.pos});
    if (in.pos == in.size && out.pos < out.size) break;
    if (in.pos - forgotten >= kStep) {
      forget_pages(file.data().subspan(forgotten, in.pos - forgotten));
      forgotten = in.pos;
    }
  }
  if (code != 0) refuse(file.path(), "the end of the file");
}

}  // namespace

void decompress_file(const std::filesystem::path& path, const Take& take) {
  const MappedFile file(path);
  if (file.data().empty()) refuse(path, "nothing");
  const bool is_gzip = ends_with_gz(path);
  refuse_unpacked_json(file, is_gzip ? ".gz" : ".zst");
  return is_gzip ? inflate_gzip(file, take) : inflate_zstd(file, take);
}

}  // namespace strata::data
