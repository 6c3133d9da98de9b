#include "strata/checkpoint/gguf/export.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "strata/base/abandoned.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/xxh3.h"
#include "strata/checkpoint/convert/convert.h"
#include "strata/checkpoint/convert/decoded_state.h"
#include "strata/checkpoint/gguf/family.h"
#include "strata/checkpoint/gguf/tensor_plan.h"
#include "strata/checkpoint/gguf/tensor_rows.h"
#include "strata/checkpoint/gguf/tokenizer.h"
#include "strata/hf/formats/gguf.h"
#include "strata/text/vocabulary_files.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;
using hf::GgufType;

// The number by which llama.cpp calls the mixture of types of a file.
uint32_t file_type(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return 0;
    case GgufType::kF16:
      return 1;
    case GgufType::kQ8_0:
      return 7;
    case GgufType::kBF16:
      return 32;
  }
  throw InternalError("GGUF: found a file of {}, expected F32, F16, Q8_0 or BF16",
                      hf::gguf_type_name(type));
}

GgufType type_of(const SavedState& state) {
  switch (result_type_of(state).value_or(plain_type(state))) {
    case hf::DType::kF16:
      return GgufType::kF16;
    case hf::DType::kBF16:
      return GgufType::kBF16;
    default:
      return GgufType::kF32;
  }
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

// The folder of the model that the state is of.
fs::path require_model(const SavedState& state) {
  const std::string path = state.path().string();
  if (state.is_adapter()) {
    throw ConfigError(
        "{}: found an adapter, expected a whole model; "
        "merge it first, with strata merge-adapter",
        path);
  }
  const fs::path base = base_model_of(state);
  if (base.empty()) {
    throw ConfigError(
        "{}: found no config.json, expected the folder of a model; "
        "put the base's beside the weights",
        path);
  }
  if (std::ranges::none_of(state.tensors(), &SavedTensor::is_parameter)) {
    throw ConfigError(
        "{}: found no weights, expected some to convert; name the folder that holds them", path);
  }
  const bool has_codes = std::ranges::any_of(
      state.tensors(), [](const SavedTensor& tensor) { return tensor.is_of_codes; });
  if (has_codes || is_quantized_folder(base)) {
    throw ConfigError(
        "{}: found a quantised model, expected plain weights; "
        "convert the model that it was made from",
        path);
  }
  return base;
}

fs::path tokenizer_folder(const SavedState& state, const fs::path& base) {
  for (const fs::path& folder : {state.path(), base}) {
    if (fs::is_directory(folder) && !text::vocabularies_in(folder).empty()) return folder;
  }
  throw ConfigError(
      "{}: found no tokenizer, expected one beside config.json, as a GGUF file holds it, "
      "too; copy tokenizer.json and tokenizer_config.json of the base model there",
      base.string());
}

// All ids that end an answer.
std::vector<int64_t> ends_of(const fs::path& base, const Json& config) {
  std::vector<int64_t> ends;
  const auto add = [&](const Json& from) {
    const Json ids = from.is_object() ? from.value("eos_token_id", Json()) : Json();
    for (const Json& id : ids.is_array() ? ids : Json::array({ids})) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0) continue;
      if (std::ranges::find(ends, id.get<int64_t>()) == ends.end())
        ends.push_back(id.get<int64_t>());
    }
  };
  const fs::path generation = base / "generation_config.json";
  if (fs::is_regular_file(generation)) add(read_json_file(generation));
  add(config);
  return ends;
}

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

class GgufExport {
 public:
  GgufExport(SavedState& state, const fs::path& base, const GgufOptions& options)
      : state_(state), type_(options.type.value_or(type_of(state))) {
    const Json config = read_json_file(base / "config.json");
    const GgufFamily family = describe_family(config);
    plan_ = plan_tensors(state, config, family, type_);
    const GgufTokenizer tokenizer = describe_tokenizer(tokenizer_folder(state, base), config,
                                                       ends_of(base, config), plan_.num_rows);
    metadata_ = {{"general.architecture", family.architecture},
                 {"general.type", std::string("model")},
                 {"general.name", name_of(base)},
                 {"general.file_type", file_type(type_)},
                 {"general.quantization_version", uint32_t{2}}};
    append(family.keys, metadata_);
    append(tokenizer.keys, metadata_);
    append(family.notes, notes_);
    append(plan_.notes, notes_);
    append(tokenizer.notes, notes_);
    for (const PlannedTensor& planned : plan_.tensors) tensors_.push_back(planned.tensor);
  }

  void write(const fs::path& path, FileSystem& files) {
    hf::GgufWriter writer(path, metadata_, tensors_, files);
    claim_.emplace(path);
    for (const PlannedTensor& planned : plan_.tensors) {
      Xxh3 sum;
      write_rows(state_, planned, [&](std::span<const std::byte> bytes) {
        sum.update(bytes);
        writer.append(planned.tensor.name, bytes);
      });
      sums_.push_back(sum.digest_64());
    }
    writer.finish();
  }

  // As any reader would see it.
  void read_back(const fs::path& path) const {
    const hf::GgufFile file(path);
    bool is_same = file.metadata() == metadata_ && file.tensors().size() == tensors_.size();
    for (size_t i = 0; is_same && i < tensors_.size(); ++i) {
      const hf::GgufTensorInfo& info = file.tensors()[i];
      Xxh3 sum;
      sum.update(file.bytes(info));
      forget_pages(file.bytes(info));
      is_same = info.tensor == tensors_[i] && sum.digest_64() == sums_[i];
    }
    if (is_same) return;
    throw IoError(
        "{}: found other content after writing, expected what {} holds; "
        "check the disk and convert again",
        path.string(), state_.path().string());
  }

  const std::vector<std::string>& notes() const { return notes_; }

 private:
  template <typename List>
  static void append(const List& more, List& list) {
    list.insert(list.end(), more.begin(), more.end());
  }

  // That of the folder, of a checkpoint the run's.
  static std::string name_of(const fs::path& base) {
    const fs::path path = fs::canonical(base);
    const bool is_checkpoint = path.filename().string().starts_with("checkpoint-");
    return (is_checkpoint ? path.parent_path() : path).filename().string();
  }

  SavedState& state_;
  GgufType type_;
  TensorPlan plan_;
  hf::GgufMetadata metadata_;
  std::vector<hf::GgufTensor> tensors_;
  std::vector<uint64_t> sums_;
  std::vector<std::string> notes_;
  std::optional<WriteClaim> claim_;
};

}  // namespace

std::vector<std::string> convert_to_gguf(SavedState& state, const fs::path& out,
                                         const GgufOptions& options) {
  require_new_file(out);
  const fs::path base = require_model(state);
  GgufExport exported(state, base, options);
  std::vector<std::string> notes = remove_abandoned(out);
  FileAside file(out, *options.files);
  exported.write(file.path(), *options.files);
  exported.read_back(file.path());
  file.commit();
  notes.insert(notes.end(), exported.notes().begin(), exported.notes().end());
  if (state.has_optimizer()) {
    notes.emplace_back("the optimizer's state is left out: this format has no place for it");
  }
  return notes;
}

}  // namespace strata::checkpoint
