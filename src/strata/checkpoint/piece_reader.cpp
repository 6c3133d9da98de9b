#include "strata/checkpoint/piece_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/block_sums.h"

namespace strata::checkpoint {
namespace {

// Small enough to be in the processor's cache when it is summed up.
constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

}  // namespace

// A range that is read ahead, by offsets that grow.
class PieceReader::Cursor {
 public:
  Cursor(ReadAhead& blocks, uint64_t begin) : blocks_(blocks), at_(begin) {}

  void skip_to(uint64_t offset) {
    while (at_ < offset) take(offset - at_);
  }
  // At least one byte and at most `most`. Requires: the range goes on.
  std::span<const std::byte> take(uint64_t most) {
    if (rest_.empty()) rest_ = blocks_.next();
    if (rest_.empty()) throw InternalError("piece reader: found the end of a range, expected more");
    const auto some = rest_.first(std::min<uint64_t>(most, rest_.size()));
    rest_ = rest_.subspan(some.size());
    at_ += some.size();
    return some;
  }

 private:
  ReadAhead& blocks_;
  uint64_t at_;
  std::span<const std::byte> rest_;
};

// The bytes of one piece as they come by: summed up, and judged at the end.
class PieceReader::Proof {
 public:
  explicit Proof(const Job& job)
      : job_(job), sums_(job.first_block ? job.piece->block_bytes : job.range.size) {}

  void see(std::span<const std::byte> bytes) {
    if (!job_.is_proved) sums_.update(bytes);
    if (job_.is_zero == nullptr || !*job_.is_zero) return;
    *job_.is_zero = std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
  }

  void finish(PieceReader& reader) {
    const PieceRecord& piece = *job_.piece;
    if (job_.is_proved) return;
    const std::string found = sums_.take();
    const std::string_view expected =
        job_.first_block ? std::string_view(piece.block_checksums)
                               .substr(*job_.first_block * kSumDigits, found.size())
                         : std::string_view(piece.checksum);
    if (found != expected) throw_damaged(reader.folder_ / piece.file, found, expected);
    if (!job_.first_block) reader.proved_.insert({piece.file, piece.key, piece.offset});
  }

 private:
  // Names the first block that is another one.
  [[noreturn]] void throw_damaged(const std::filesystem::path& file, std::string_view found,
                                  std::string_view expected) const {
    std::string where;
    if (job_.first_block) {
      size_t at = 0;
      while (found.substr(at, kSumDigits) == expected.substr(at, kSumDigits)) at += kSumDigits;
      found = found.substr(at, kSumDigits);
      expected = expected.substr(at, kSumDigits);
      where = fmt::format("block {} of ", *job_.first_block + at / kSumDigits);
    }
    throw FormatError(
        "{}: found checksum {} for {}\"{}\", expected {}; the file is damaged, use another "
        "checkpoint",
        file.string(), found, where, job_.piece->key, expected);
  }

  const Job& job_;
  BlockSums sums_;
};

PieceReader::PieceReader(std::filesystem::path folder, const PieceReaderOptions& options)
    : folder_(std::move(folder)), manifest_(read_manifest(folder_)), options_(options) {}

const TensorRecord& PieceReader::record(const std::string& tensor) const {
  const auto found = manifest_.tensors.find(tensor);
  if (found != manifest_.tensors.end()) return found->second;
  const std::string kind = tensor.substr(0, tensor.find('/') + 1);
  const bool has_kind = std::ranges::any_of(
      manifest_.tensors, [&](const auto& each) { return each.first.starts_with(kind); });
  if (!has_kind && kind != "parameter/") {
    throw FormatError(
        "{}: found no {} of any weight, expected the optimizer's state to resume from (it was "
        "saved with save_only_model, or by another optimizer); resume from another checkpoint, or "
        "start from its weights: strata convert --to safetensors",
        folder_.string(), kind.substr(0, kind.size() - 1));
  }
  throw FormatError(
      "{}: found no tensor \"{}\", expected one for every trained weight; resume with the settings "
      "of the run that wrote it",
      folder_.string(), tensor);
}

void PieceReader::collect(const WantedRange& range, std::vector<Job>& jobs) {
  const TensorRecord& wanted = record(range.tensor);
  const auto dtype = hf::find_dtype(wanted.dtype);
  if (!dtype) {
    throw FormatError("{}: found \"{}\" of type {}, expected a known one; use another checkpoint",
                      folder_.string(), range.tensor, wanted.dtype);
  }
  const auto element = static_cast<int64_t>(hf::size_of(*dtype));
  const int64_t begin = range.begin;
  const int64_t end = begin + static_cast<int64_t>(range.out.size()) / element;
  for (const PieceRecord& piece : wanted.pieces) {
    const int64_t first = std::max(piece.begin, begin);
    const int64_t last = std::min(piece.end, end);
    if (first >= last) continue;
    jobs.push_back(job_of(piece, wanted, static_cast<uint64_t>((first - piece.begin) * element),
                          range.out.subspan(static_cast<size_t>((first - begin) * element),
                                            static_cast<size_t>((last - first) * element))));
  }
}

PieceReader::Job PieceReader::job_of(const PieceRecord& piece, const TensorRecord& record,
                                     uint64_t skip, std::span<std::byte> out) {
  Job job{.piece = &piece, .record = &record, .range = range_of(piece, record)};
  job.skip = skip;
  job.out = out;
  if (!proved_.contains({piece.file, piece.key, piece.offset})) {
    narrow_to_blocks(job);
    return job;
  }
  job.is_proved = true;
  job.range.begin += skip;
  job.range.size = out.size();
  job.skip = 0;
  return job;
}

void PieceReader::narrow_to_blocks(Job& job) const {
  const PieceRecord& piece = *job.piece;
  if (piece.block_bytes == 0) return;
  const uint64_t expected = num_blocks(job.range.size, piece.block_bytes);
  if (piece.block_checksums.size() / kSumDigits != expected) {
    throw FormatError(
        "{}: found checksums of {} blocks for \"{}\" in manifest.json, expected {}; use another "
        "checkpoint",
        (folder_ / piece.file).string(), piece.block_checksums.size() / kSumDigits, piece.key,
        expected);
  }
  if (job.out.empty()) return;  // all of it is to be proved
  const uint64_t first = job.skip / piece.block_bytes;
  const uint64_t end = num_blocks(job.skip + job.out.size(), piece.block_bytes);
  if (end - first == expected) return;
  const uint64_t skipped = first * piece.block_bytes;
  // The product that it spares may be beyond the type.
  const uint64_t size = end == expected ? job.range.size : end * piece.block_bytes;
  job.first_block = first;
  job.range.begin += skipped;
  job.range.size = size - skipped;
  job.skip -= skipped;
}

void PieceReader::read(const std::string& tensor, int64_t begin, std::span<std::byte> out) {
  const WantedRange wanted{tensor, begin, out};
  read(std::span(&wanted, 1));
}

void PieceReader::read(std::span<const WantedRange> wanted) {
  std::vector<Job> jobs;
  for (const WantedRange& range : wanted) collect(range, jobs);
  run(jobs);
}

void PieceReader::run(std::vector<Job>& jobs) {
  uint64_t bytes = 0;
  for (const Job& job : jobs) bytes += job.range.size;
  if (bytes >= options_.streamed_bytes) return stream(jobs);
  for (const Job& job : jobs) read_plainly(job);
}

PieceReader::Range PieceReader::range_of(const PieceRecord& piece, const TensorRecord& record) {
  OpenFile& file = open(piece.file);
  const hf::TensorInfo* info = file.layout.find(piece.key);
  const int64_t count = piece.end - piece.begin;
  if (info == nullptr || piece.offset < 0 || piece.offset > info->numel() ||
      count > info->numel() - piece.offset || hf::name_of(info->dtype) != record.dtype) {
    throw FormatError(
        "{}: found no tensor \"{}\" of {} elements of {}, expected what manifest.json lists; use "
        "another checkpoint",
        (folder_ / piece.file).string(), piece.key, count, record.dtype);
  }
  const uint64_t element = hf::size_of(info->dtype);
  return {&file, file.layout.file_offset(*info) + static_cast<uint64_t>(piece.offset) * element,
          static_cast<uint64_t>(count) * element};
}

// Read with calls, not through a map: the kernel reads ahead, no page is faulted in one by one, and
// a file that somebody cuts short meanwhile is an error and no signal.
void PieceReader::fetch(const Range& range, uint64_t begin, std::span<std::byte> out) {
  bytes_read_ += out.size();
  size_t filled = 0;
  while (filled < out.size()) {
    const ssize_t count =
        ::pread(descriptor_of(*range.file), out.data() + filled, out.size() - filled,
                static_cast<off_t>(range.begin + begin + filled));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw IoError(
          "{}: found {} at byte {}, expected {} more; the disk or the file is damaged, use another "
          "checkpoint",
          range.file->layout.path().string(), count == 0 ? "its end" : errno_text(errno),
          range.begin + begin + filled, out.size() - filled);
    }
    filled += static_cast<size_t>(count);
  }
}

void PieceReader::read_plainly(const Job& job) {
  Proof proof(job);
  const uint64_t wanted_end = job.skip + job.out.size();
  for (uint64_t at = 0; at < job.range.size;) {
    const bool is_wanted = at >= job.skip && at < wanted_end;
    const uint64_t stop = at < job.skip ? job.skip : is_wanted ? wanted_end : job.range.size;
    const uint64_t size = std::min(kBlockBytes, stop - at);
    if (!is_wanted && block_.empty()) block_.resize(kBlockBytes);
    const auto to =
        is_wanted ? job.out.subspan(at - job.skip, size) : std::span(block_).first(size);
    fetch(job.range, at, to);
    proof.see(to);
    at += size;
  }
  proof.finish(*this);
}

void PieceReader::stream(std::vector<Job>& jobs) {
  std::ranges::stable_sort(jobs, {}, [](const Job& job) {
    return std::pair(std::string_view(job.piece->file), job.range.begin);
  });
  uint64_t wanted = 0, read = 0;
  for (const Job& job : jobs) {
    wanted += job.out.size();
    read += job.range.size;
  }
  // What is read only to be proved, another rank wants.
  ReadAhead& ahead = read_ahead(/*past_cache=*/wanted == 0 || 2 * wanted >= read);
  for (std::span<const Job> rest = jobs; !rest.empty();) {
    const std::span<const Job> near = rest.first(count_neighbours(rest));
    rest = rest.subspan(near.size());
    const uint64_t begin = near.front().range.begin;
    const uint64_t end = near.back().range.begin + near.back().range.size;
    ahead.start(folder_ / near.front().piece->file, begin, end);
    bytes_read_ += end - begin;
    Cursor cursor(ahead, begin);
    for (const Job& job : near) read_streamed(job, cursor);
  }
}

size_t PieceReader::count_neighbours(std::span<const Job> jobs) const {
  size_t count = 1;
  for (; count < jobs.size(); ++count) {
    const Range& before = jobs[count - 1].range;
    const Range& next = jobs[count].range;
    const uint64_t end = before.begin + before.size;
    if (next.file != before.file || next.begin < end || next.begin - end > options_.largest_gap) {
      break;
    }
  }
  return count;
}

void PieceReader::read_streamed(const Job& job, Cursor& cursor) {
  Proof proof(job);
  cursor.skip_to(job.range.begin);
  for (uint64_t at = 0; at < job.range.size;) {
    // In parts that the processor's cache holds from the sum to the copy.
    const auto bytes = cursor.take(std::min(kBlockBytes / 4, job.range.size - at));
    proof.see(bytes);
    const uint64_t first = std::max(at, job.skip);
    const uint64_t stop = std::min(at + bytes.size(), job.skip + job.out.size());
    if (first < stop) {
      std::memcpy(job.out.data() + (first - job.skip), bytes.data() + (first - at), stop - first);
    }
    at += bytes.size();
  }
  proof.finish(*this);
}

ReadAhead& PieceReader::read_ahead(bool past_cache) {
  if (!read_ahead_ || options_.read_ahead.past_cache != past_cache) {
    read_ahead_.reset();
    options_.read_ahead.past_cache = past_cache;
    read_ahead_ = std::make_unique<ReadAhead>(options_.read_ahead);
  }
  return *read_ahead_;
}

PieceReader::OpenFile& PieceReader::open(const std::string& name) {
  const auto found = files_.find(name);
  if (found != files_.end()) return found->second;
  OpenFile file{hf::SafetensorsFile(folder_ / name), Descriptor()};
  return files_.emplace(name, std::move(file)).first->second;
}

int PieceReader::descriptor_of(OpenFile& file) {
  if (file.descriptor.get() >= 0) return file.descriptor.get();
  if (num_open_ >= options_.most_open) {
    for (auto& [name, each] : files_) each.descriptor.close();
    num_open_ = 0;
  }
  const std::filesystem::path& path = file.layout.path();
  file.descriptor = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.descriptor.get() < 0) {
    throw IoError("{}: found {}, expected a readable file; check its permissions", path.string(),
                  errno_text(errno));
  }
  ++num_open_;
  ::posix_fadvise(file.descriptor.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  return file.descriptor.get();
}

std::string PieceReader::small_file(const std::string& name) const {
  const std::filesystem::path path = folder_ / name;
  const auto listed = manifest_.files.find(name);
  if (listed == manifest_.files.end()) {
    throw FormatError(
        "{}: found no such file in manifest.json, expected it; use another checkpoint",
        path.string());
  }
  std::string content = read_file(path);
  if (content.size() != listed->second.size_bytes ||
      checksum(content.data(), content.size()) != listed->second.checksum) {
    throw FormatError(
        "{}: found {} bytes with another checksum than manifest.json lists, expected {} bytes; the "
        "file is damaged, use another checkpoint",
        path.string(), content.size(), listed->second.size_bytes);
  }
  return content;
}

bool PieceReader::is_zero(const std::string& tensor) {
  const TensorRecord& found = record(tensor);
  bool is_zero = true;
  std::vector<Job> jobs;
  for (const PieceRecord& piece : found.pieces) {
    Job job{.piece = &piece, .record = &found, .range = range_of(piece, found)};
    job.is_zero = &is_zero;
    jobs.push_back(job);
  }
  run(jobs);
  return is_zero;
}

void PieceReader::verify_all() {
  std::vector<Job> jobs;
  for (const auto& [name, record] : manifest_.tensors) {
    for (const PieceRecord& piece : record.pieces) jobs.push_back(job_of(piece, record, 0, {}));
  }
  run(jobs);
  for (const auto& [name, file] : manifest_.files) small_file(name);
}

}  // namespace strata::checkpoint
