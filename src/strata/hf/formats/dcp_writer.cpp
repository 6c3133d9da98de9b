// DcpWriter: archives one after the other, then `.metadata`.
#include "strata/base/error.h"
#include "strata/hf/formats/dcp.h"
#include "strata/hf/formats/torch_types.h"

namespace strata::hf {
namespace {

constexpr const char* kDataFile = "__0_0.distcp";
constexpr const char* kMetadata = "torch.distributed.checkpoint.metadata";

std::string name_of_path(const std::vector<std::string>& path) {
  return fmt::format("{}", fmt::join(path, "."));
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

void put_size(PickleWriter& out, const std::vector<int64_t>& sizes) {
  out.global("torch", "Size").mark().mark();
  for (int64_t size : sizes) out.integer(size);
  out.tuple().tuple().reduce();
}

PickleWriter& begin_object(PickleWriter& out, const char* module, const char* name) {
  return out.global(module, name).empty_tuple().new_object();
}

void put_tensor_record(PickleWriter& out, const DcpTensorSpec& spec) {
  begin_object(out, kMetadata, "TensorStorageMetadata").empty_dict().mark();
  out.text("properties");
  begin_object(out, kMetadata, "TensorProperties").mark();
  out.global("torch", torch_dtype_of(spec.dtype));
  out.global("torch.serialization", "_get_layout").mark().text("torch.strided").tuple().reduce();
  out.boolean(false);
  out.global(kMetadata, "_MEM_FORMAT_ENCODING").mark().integer(0).tuple().reduce();
  out.boolean(false).tuple().build();
  out.text("size");
  put_size(out, spec.shape);
  out.text("chunks").empty_list().mark();
  begin_object(out, kMetadata, "ChunkStorageMetadata").empty_dict().mark();
  out.text("offsets");
  put_size(out, std::vector<int64_t>(spec.shape.size(), 0));
  out.text("sizes");
  put_size(out, spec.shape);
  out.set_items().build().append_all().set_items().build();
}

}  // namespace

DcpWriter::DcpWriter(std::filesystem::path folder, FileSystem& files)
    : folder_(std::move(folder)), files_(files) {
  if (const int error = files_.make_folder(folder_)) {
    throw IoError("{}: found {} when creating it, expected a writable folder; choose another",
                  folder_.string(), errno_text(error));
  }
  const int descriptor = files_.create(folder_ / kDataFile);
  if (descriptor < 0) {
    throw IoError("{}: found {} when creating it, expected a writable folder; choose another",
                  (folder_ / kDataFile).string(), errno_text(-descriptor));
  }
  file_ = Descriptor(descriptor);
}

void DcpWriter::add_value(const std::vector<std::string>& path, const PyValue& value) {
  TorchFileWriter archive(file_.get(), at_, (folder_ / kDataFile).string(), value, {}, files_);
  const uint64_t end = archive.finish();
  entries_.push_back({path, std::nullopt, at_, end - at_});
  at_ = end;
}

void DcpWriter::add_tensor(const DcpTensorSpec& spec, std::span<const std::byte> data) {
  TorchFileWriter archive(file_.get(), at_, (folder_ / kDataFile).string(), PyValue{PyTensor{0}},
                          {{spec.dtype, spec.shape}}, files_);
  archive.write(data);
  const uint64_t end = archive.finish();
  entries_.push_back({spec.path, spec, at_, end - at_});
  at_ = end;
}

std::string DcpWriter::metadata() const {
  PickleWriter out;
  begin_object(out, kMetadata, "Metadata").empty_dict().mark();
  out.text("state_dict_metadata").empty_dict().mark();
  for (const Entry& entry : entries_) {
    out.text(name_of_path(entry.path));
    if (entry.tensor) {
      put_tensor_record(out, *entry.tensor);
    } else {
      begin_object(out, kMetadata, "BytesStorageMetadata");
    }
  }
  out.set_items().text("planner_data").empty_dict().mark();
  for (const Entry& entry : entries_) {
    out.text(name_of_path(entry.path)).mark();
    for (size_t i = 0; i < entry.path.size(); ++i) {
      // Places in lists are numbers; the first part never is one.
      is_number(entry.path[i]) ? out.integer(std::stoll(entry.path[i])) : out.text(entry.path[i]);
    }
    out.tuple();
  }
  out.set_items().text("storage_data").empty_dict().mark();
  for (const Entry& entry : entries_) {
    begin_object(out, kMetadata, "MetadataIndex").empty_dict().mark();
    out.text("fqn").text(name_of_path(entry.path)).text("offset");
    if (entry.tensor) {
      put_size(out, std::vector<int64_t>(entry.tensor->shape.size(), 0));
      out.text("index").integer(0);
    } else {
      out.none().text("index").none();
    }
    out.set_items().build();
    begin_object(out, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
    out.empty_dict().mark().text("relative_path").text(kDataFile);
    out.text("offset").integer(static_cast<int64_t>(entry.offset));
    out.text("length").integer(static_cast<int64_t>(entry.length)).set_items().build();
  }
  out.set_items().text("storage_meta").none().text("version").text("1.0.0");
  out.set_items().build();
  return out.finish();
}

void DcpWriter::finish() {
  if (const int error = files_.sync(file_.get())) {
    throw IoError("{}: found {} when syncing, expected it on the disk; check the disk",
                  (folder_ / kDataFile).string(), errno_text(error));
  }
  file_.close();
  write_file_atomically(folder_ / ".metadata", metadata(), files_);
}

}  // namespace strata::hf
