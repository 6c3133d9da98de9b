#include "strata/data/decompress.h"

#include <zlib.h>
#include <zstd.h>

#include <memory>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::data {
namespace {

constexpr size_t kStep = size_t{1} << 20;

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& found) {
  throw FormatError("{}: found {}, expected a whole compressed file; it may be cut off",
                    path.string(), found);
}

std::string inflate_gzip(const MappedFile& file) {
  z_stream stream = {};
  constexpr int kGzipHeader = 16 + MAX_WBITS;
  if (inflateInit2(&stream, kGzipHeader) != Z_OK) throw OutOfMemoryError("zlib: found no memory");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> closer(&stream, inflateEnd);
  const auto bytes = file.data();
  std::string text;
  size_t at = 0;
  bool is_open = true;
  while (at < bytes.size() || stream.avail_in > 0) {
    if (stream.avail_in == 0) {
      const size_t take = std::min<size_t>(bytes.size() - at, UINT32_MAX);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data() + at));
      stream.avail_in = static_cast<uInt>(take);
      at += take;
    }
    if (!is_open) {
      inflateReset(&stream);
      is_open = true;
    }
    const size_t size = text.size();
    text.resize(size + kStep);
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + size);
    stream.avail_out = kStep;
    const int code = inflate(&stream, Z_NO_FLUSH);
    text.resize(size + kStep - stream.avail_out);
    if (code == Z_STREAM_END) {
      is_open = false;
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      refuse(file.path(), stream.msg ? stream.msg : "broken data");
    }
  }
  // Output that did not fit into the last step.
  while (is_open) {
    const size_t size = text.size();
    text.resize(size + kStep);
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + size);
    stream.avail_out = kStep;
    const int code = inflate(&stream, Z_NO_FLUSH);
    text.resize(size + kStep - stream.avail_out);
    if (code == Z_STREAM_END) break;
    if (code != Z_OK || stream.avail_out == kStep) refuse(file.path(), "the end of the file");
  }
  return text;
}

std::string inflate_zstd(const MappedFile& file) {
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                        ZSTD_freeDStream);
  ZSTD_inBuffer in{file.data().data(), file.data().size(), 0};
  std::string text;
  size_t code = 1;
  while (true) {
    const size_t size = text.size();
    text.resize(size + kStep);
    ZSTD_outBuffer out{text.data() + size, kStep, 0};
    code = ZSTD_decompressStream(stream.get(), &out, &in);
    text.resize(size + out.pos);
    if (ZSTD_isError(code)) refuse(file.path(), ZSTD_getErrorName(code));
    if (in.pos == in.size && out.pos < out.size) break;
  }
  if (code != 0) refuse(file.path(), "the end of the file");
  return text;
}

}  // namespace

std::string decompress_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  if (file.data().empty()) refuse(path, "nothing");
  return path.extension() == ".gz" ? inflate_gzip(file) : inflate_zstd(file);
}

}  // namespace strata::data
