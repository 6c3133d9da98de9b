#include "strata/shard/loading.h"

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_weight.h"
#include "strata/hf/mxfp4.h"
#include "strata/libtorch/side_stream.h"
#include "strata/shard/fp8_loading.h"
#include "strata/shard/int_loading.h"
#include "strata/shard/mxfp4_loading.h"
#include "strata/shard/segments.h"

namespace strata::shard {

at::ScalarType scalar_type_of(hf::DType dtype, const std::string& tensor_name) {
  switch (dtype) {
    case hf::DType::kF64:
      return at::kDouble;
    case hf::DType::kF32:
      return at::kFloat;
    case hf::DType::kF16:
      return at::kHalf;
    case hf::DType::kBF16:
      return at::kBFloat16;
    default:
      throw FormatError(
          "tensor \"{}\": found element type {}, expected F64, F32, F16 or BF16; load the model "
          "with transformers and save it in bfloat16",
          tensor_name, hf::name_of(dtype));
  }
}

hf::DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return hf::DType::kF64;
    case at::kFloat:
      return hf::DType::kF32;
    case at::kHalf:
      return hf::DType::kF16;
    case at::kBFloat16:
      return hf::DType::kBF16;
    default:
      throw InternalError(
          "element type {}: found a weight of this type, expected a floating type; "
          "report this as a bug",
          c10::toString(type));
  }
}

at::ScalarType type_of_values(const hf::ModelFolder& folder, const std::string& name) {
  if (hf::find_fp8_weight(folder, name)) return at::kFloat;
  if (const auto ints = hf::find_int_weight(folder, name))
    return scalar_type_of(ints->dtype(), name);
  const hf::TensorInfo* info = folder.find(name);
  return info == nullptr ? at::kBFloat16 : scalar_type_of(info->dtype, name);
}

void fill_homes(UnitStore& store, const Source& source) {
  for (const OwnPiece& own : own_pieces(store)) {
    if (own.piece.parameter->quantization()) continue;
    source(*own.piece.parameter, own.piece.tensor_begin, value_of(store, own));
  }
}

namespace {

// Rank 0's word before each segment: whether all is well, and which tensors its source knows.
class Announcement {
 public:
  explicit Announcement(size_t num_tensors)
      : words_(at::zeros({static_cast<int64_t>(num_tensors) + 1}, at::kInt)) {}
  int& is_good() { return words_.data_ptr<int>()[0]; }
  int& knows(size_t tensor) { return words_.data_ptr<int>()[tensor + 1]; }
  int64_t num_known() const { return words_.sum().item<int64_t>() - 1; }
  at::Tensor& words() { return words_; }

 private:
  at::Tensor words_;
};

// Runs `work` on rank 0 and ends on all ranks alike when it fails there.
void announce(comm::Group& world, Announcement& announcement, const std::function<void()>& work) {
  std::exception_ptr failure;
  if (world.rank() == 0) {
    try {
      work();
      announcement.is_good() = 1;
    } catch (...) {
      failure = std::current_exception();
    }
  }
  try {
    world.broadcast(announcement.words(), /*root=*/0)->wait();
  } catch (const std::exception&) {
    if (!failure) throw;
  }
  if (failure) std::rethrow_exception(failure);
  if (announcement.is_good() == 1) return;
  throw CommError(
      "loading: found rank 0 failed to read, expected it to send the weights; see its "
      "message");
}

// A part of `whole`, which is rank 0's, to each rank of its shard group.
void scatter_to_home(comm::Group& shard, const Segment& segment, Announcement& announcement,
                     const at::Tensor& whole, const at::Tensor& home) {
  const auto num_extents = static_cast<int64_t>(segment.extents.size());
  const bool knows_all = announcement.num_known() == num_extents;
  const at::Tensor part = knows_all ? home : at::empty_like(home);
  const at::Tensor bytes = whole.defined() ? whole.view(at::kByte) : at::Tensor();
  shard.scatter(part.view(at::kByte), bytes, /*root=*/0)->wait();
  if (knows_all) return;
  for (const Piece& piece : pieces_of(segment, shard.rank())) {
    const auto extent =
        std::find_if(segment.extents.begin(), segment.extents.end(),
                     [&](const Extent& e) { return e.parameter == piece.parameter; });
    if (announcement.knows(static_cast<size_t>(extent - segment.extents.begin())) == 0) continue;
    home.narrow(0, piece.shard_begin, piece.length)
        .copy_(part.narrow(0, piece.shard_begin, piece.length));
  }
}

void send_segment(UnitStore& store, int u, int s, const Source& source) {
  comm::Mesh& mesh = store.mesh();
  const Segment& segment = store.unit(u).segments[static_cast<size_t>(s)];
  const at::Tensor& home = store.home(u, s).value;
  const bool is_sharded = mesh.shard->size() > 1;
  at::Tensor whole;
  Announcement announcement(segment.extents.size());
  announce(*mesh.world, announcement, [&] {
    // Of zeros: what lies between tensors gets into homes too.
    whole = is_sharded ? at::zeros({segment.numel}, home.options()) : home;
    for (size_t e = 0; e < segment.extents.size(); ++e) {
      const Extent& extent = segment.extents[e];
      const at::Tensor out = whole.narrow(0, extent.begin, extent.parameter->stored_numel());
      announcement.knows(e) = source(*extent.parameter, 0, out) ? 1 : 0;
    }
  });
  if (announcement.num_known() == 0) return;
  if (is_sharded && mesh.replicate->rank() == 0) {
    scatter_to_home(*mesh.shard, segment, announcement, whole, home);
  }
  // Copies hold the same, what the source does not know included.
  if (mesh.replicate->size() > 1) {
    mesh.replicate->broadcast(home.view(at::kByte), /*root=*/0)->wait();
  }
}

}  // namespace

void send_homes(UnitStore& store, HomeKind kind, const std::function<Source()>& open) {
  Source source;
  Announcement opened(0);
  announce(*store.mesh().world, opened, [&] { source = open(); });
  for (const auto& [unit, segment, layout] : segments_of(store)) {
    const bool holds_codes = layout->storage == at::kByte;
    if (holds_codes == (kind == HomeKind::kCodes)) send_segment(store, unit, segment, source);
  }
}

namespace {

// Memory for pieces of a file on their way. With a GPU there are two: while one travels the other
// is filled.
class Pieces {
 public:
  Pieces(at::ScalarType type, int64_t numel, at::Device device)
      : device_(device), pieces_(device.is_cuda() ? 2 : 1) {
    const auto options = at::TensorOptions().dtype(type).pinned_memory(device.is_cuda());
    for (Piece& piece : pieces_) piece.memory = at::empty({numel}, options);
  }

  at::Tensor next(int64_t numel) {
    current_ = (current_ + 1) % pieces_.size();
    pieces_[current_].left.wait_on_host();
    return pieces_[current_].memory.narrow(0, 0, numel);
  }
  void mark_sent() { pieces_[current_].left = StreamMark::now(device_); }

 private:
  struct Piece {
    at::Tensor memory;
    StreamMark left;
  };
  at::Device device_;
  std::vector<Piece> pieces_;
  size_t current_ = 0;
};

// Values of `type` of a mapped file. Piece by piece: no more of its pages, and of what is
// converted, are there at a time.
void copy_values(std::span<const std::byte> bytes, at::ScalarType type, const at::Tensor& values) {
  // The map may place a tensor at any byte; conversion kernels want natural alignment. For another
  // device the bytes travel as they are in the file, and are converted there.
  std::optional<Pieces> aligned;
  if (type != values.scalar_type() || !values.is_cpu()) {
    aligned.emplace(type, std::min(values.numel(), kReadAtOnce), values.device());
  }
  const size_t element = at::elementSize(type);
  for (int64_t done = 0; done < values.numel(); done += kReadAtOnce) {
    const int64_t count = std::min(kReadAtOnce, values.numel() - done);
    const auto piece =
        bytes.subspan(static_cast<size_t>(done) * element, static_cast<size_t>(count) * element);
    const at::Tensor out = values.narrow(0, done, count);
    const at::Tensor whole = aligned ? aligned->next(count) : out;
    std::memcpy(whole.data_ptr(), piece.data(), piece.size());
    forget_pages(piece);
    if (!aligned) continue;
    const bool converts = type != values.scalar_type();
    out.copy_(converts ? whole.to(values.device(), /*non_blocking=*/true) : whole,
              /*non_blocking=*/true);
    aligned->mark_sent();
  }
}

// What comes after the end of the file's tensor is zero: rows of new tokens, which get their values
// later. Returns what comes before it.
at::Tensor part_in_file(int64_t in_file, int64_t begin, const at::Tensor& out) {
  const int64_t count = std::clamp<int64_t>(in_file - begin, 0, out.numel());
  if (count < out.numel()) out.narrow(0, count, out.numel() - count).zero_();
  return out.narrow(0, 0, count);
}

// What lies under other names than the weight's.
bool read_packed(const hf::ModelFolder& folder, const std::string& name, int64_t begin,
                 const at::Tensor& out) {
  if (const auto ints = hf::find_int_weight(folder, name)) {
    const at::Tensor values = part_in_file(ints->rows * ints->columns, begin, out);
    if (values.numel() > 0) read_ints(folder, *ints, begin, values);
    forget_ints(folder, *ints);
    return true;
  }
  const auto packed = hf::find_mxfp4_weight(folder, name);
  if (!packed) return false;
  read_mxfp4(folder, *packed, begin, out);
  return true;
}

}  // namespace

Source folder_source(const hf::ModelFolder& folder,
                     std::function<std::string(const nn::Parameter&)> name_of) {
  return [&folder, name_of = std::move(name_of)](const nn::Parameter& parameter, int64_t begin,
                                                 const at::Tensor& out) {
    const std::string name = name_of(parameter);
    const hf::TensorInfo* info = name.empty() ? nullptr : folder.find(name);
    if (info == nullptr) return !name.empty() && read_packed(folder, name, begin, out);
    const at::Tensor values = part_in_file(info->numel(), begin, out);
    if (values.numel() == 0) return true;
    if (const auto fp8 = hf::find_fp8_weight(folder, name)) {
      read_fp8(folder, *fp8, begin, values);
      return true;
    }
    const at::ScalarType type = scalar_type_of(info->dtype, name);
    const size_t element = hf::size_of(info->dtype);
    copy_values(folder.bytes(*info).subspan(static_cast<size_t>(begin) * element,
                                            static_cast<size_t>(values.numel()) * element),
                type, values);
    return true;
  };
}

void place_elements(UnitStore& store, const nn::Parameter& parameter, int64_t begin,
                    const at::Tensor& values) {
  for (const OwnPiece& own : own_pieces(store)) {
    const Piece& piece = own.piece;
    if (piece.parameter != &parameter) continue;
    const int64_t first = std::max(piece.tensor_begin, begin);
    const int64_t last = std::min(piece.tensor_begin + piece.length, begin + values.numel());
    if (first >= last) continue;
    value_of(store, own)
        .narrow(0, first - piece.tensor_begin, last - first)
        .copy_(values.narrow(0, first - begin, last - first));
  }
}

void place_tensor(UnitStore& store, const nn::Parameter& parameter, const at::Tensor& values) {
  const at::Tensor whole = parameter.quantization() ? parameter.encoded(values) : values;
  place_elements(store, parameter, /*begin=*/0, whole.reshape({-1}));
}

at::Tensor read_rows(UnitStore& store, const nn::Parameter& parameter,
                     const std::vector<int64_t>& rows) {
  const int64_t columns = parameter.shape()[1];
  at::Tensor result = at::zeros({static_cast<int64_t>(rows.size()), columns});
  comm::Group& group = *store.mesh().shard;
  for (const OwnPiece& own : own_pieces(store)) {
    const Piece& piece = own.piece;
    if (piece.parameter != &parameter) continue;
    const at::Tensor values = value_of(store, own);
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t begin = rows[i] * columns;
      const int64_t first = std::max(piece.tensor_begin, begin);
      const int64_t last = std::min(piece.tensor_begin + piece.length, begin + columns);
      if (first >= last) continue;
      result.select(0, static_cast<int64_t>(i))
          .narrow(0, first - begin, last - first)
          .copy_(values.narrow(0, first - piece.tensor_begin, last - first));
    }
  }
  // Every element is stored on one rank; the others add zero.
  if (group.size() > 1) group.all_reduce(result, comm::Reduction::kSum)->wait();
  return result;
}

at::Tensor read_tensor(UnitStore& store, const nn::Parameter& parameter) {
  for (const auto& [unit, segment, layout] : segments_of(store)) {
    for (const Extent& extent : layout->extents) {
      if (extent.parameter != &parameter) continue;
      at::Tensor flat;
      store.with_stored(unit, segment, [&, &extent = extent](const at::Tensor& whole) {
        flat = whole.narrow(0, extent.begin, parameter.stored_numel()).clone();
      });
      if (parameter.quantization()) return parameter.decoded(flat, at::kFloat);
      return flat.view(parameter.shape()).to(at::kFloat);
    }
  }
  throw InternalError(
      "parameter \"{}\": found no unit that holds it, expected one; report this as a "
      "bug",
      parameter.name());
}

}  // namespace strata::shard
