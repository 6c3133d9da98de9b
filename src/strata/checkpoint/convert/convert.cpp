#include "strata/checkpoint/convert/convert.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <map>

#include "strata/base/abandoned.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/convert/param_groups.h"
#include "strata/checkpoint/convert/peft_names.h"
#include "strata/checkpoint/convert/strata_export.h"
#include "strata/checkpoint/convert/torch_export.h"
#include "strata/checkpoint/convert/weight_reader.h"
#include "strata/checkpoint/export.h"
#include "strata/checkpoint/export_files.h"
#include "strata/checkpoint/folders.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/base_fingerprint.h"
#include "strata/hf/formats/dcp.h"
#include "strata/hf/weight_names.h"
#include "strata/models/reward_head.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

// The network that makes a prefix is part of a run, not of the adapter.
bool is_inner(const SavedTensor& tensor) {
  return tensor.is_parameter() &&
         tensor.weight.starts_with(std::string(hf::kAdapterKeyPrefix) + hf::kPromptEncoder);
}

// Places in the state's list, by kind: what a file of weights holds, or the optimizer's state.
std::vector<size_t> places(const SavedState& state, bool parameters) {
  std::vector<size_t> found;
  for (size_t i = 0; i < state.tensors().size(); ++i) {
    const SavedTensor& tensor = state.tensors()[i];
    if (tensor.is_parameter() == parameters && !is_inner(tensor)) found.push_back(i);
  }
  return found;
}

std::vector<NamedPlace> named_weights(const SavedState& state) {
  std::vector<NamedPlace> named;
  const Json& second_names = state.facts().second_names;
  for (const size_t place : places(state, true)) {
    const SavedTensor& tensor = state.tensors()[place];
    named.push_back({place, name_in_file(state, tensor)});
    for (const auto& [name, weight] : second_names.items()) {
      if (weight.get<std::string>() == tensor.weight) named.push_back({place, name});
    }
  }
  return named;
}

// config.json of a whole model; empty where there is none.
Json model_config(const SavedState& state) {
  const fs::path config = base_model_of(state) / "config.json";
  const bool is_model = !state.is_adapter() && fs::is_regular_file(config);
  return is_model ? read_json_file(config) : Json::object();
}

// Names weights as from_pretrained() expects them next to the config.json.
void name_as_in_folder(const SavedState& state, std::vector<NamedPlace>& weights) {
  const Json config = model_config(state);
  for (NamedPlace& weight : weights) weight.name = hf::name_in_folder(config, weight.name);
}

bool holds_values_of(hf::DType written, hf::DType stored) {
  return written == stored || written == hf::DType::kF64 ||
         (written == hf::DType::kF32 && stored != hf::DType::kF64);
}

// What the writer of codes left of the weights that they were made from; nothing where those beside
// the codes are rounded on the way, as they are no longer what was written down.
std::string mark_of_codes(const SavedState& state, const WeightReader& reader) {
  const hf::BaseMark mark = hf::parse_base_mark(state.facts().base_fingerprint);
  if (mark.codes.empty() || !mark.is_of_known_weights()) return "";
  const bool keeps_values = std::ranges::all_of(state.tensors(), [&](const SavedTensor& tensor) {
    return holds_values_of(reader.type_of(tensor), tensor.dtype);
  });
  return keeps_values ? mark.text() : "";
}

void write_safetensors(SavedState& state, const fs::path& out, const ConvertOptions& options,
                       WeightReader& reader) {
  std::vector<hf::TensorBytes> sizes;
  std::unordered_map<std::string, hf::TensorSpec> specs;
  uint64_t num_parameters = 0;
  std::vector<NamedPlace> weights = named_weights(state);
  name_as_in_folder(state, weights);
  for (const auto& [place, name] : weights) {
    const SavedTensor& tensor = state.tensors()[place];
    const hf::DType type = reader.type_of(tensor);
    const uint64_t numel = tensor.size_bytes() / hf::size_of(tensor.dtype);
    specs[name] = {name, type, tensor.shape};
    sizes.push_back({name, numel * hf::size_of(type)});
    if (!hf::is_buffer(tensor.weight)) num_parameters += numel;
  }
  const hf::ShardPlan plan =
      hf::plan_shards(sizes, state.is_adapter() ? UINT64_MAX : options.max_shard_size);
  ExportFiles files(out, Trained::kUnknown, *options.files);
  if (state.is_adapter()) {
    std::vector<hf::TensorSpec> of_adapter;
    for (const std::string& name : plan.shards[0].tensors) of_adapter.push_back(specs.at(name));
    const bool is_marked = options.keeps_base_mark;
    files.add(hf::kAdapterWeightsFile, std::move(of_adapter),
              adapter_metadata(is_marked ? state.facts().base_fingerprint : ""));
  } else {
    files.add(plan, specs,
              adapter_metadata(options.keeps_base_mark ? mark_of_codes(state, reader) : ""));
  }
  if (plan.is_indexed()) files.add_text(hf::kModelIndexFile, plan.index_json(num_parameters));
  for (const auto& [place, name] : weights) files.write(name, reader.read(place));
  files.publish();
}

void write_torch(SavedState& state, const fs::path& out, const ConvertOptions& options,
                 WeightReader& reader) {
  const bool with_optimizer = options.with_optimizer && state.has_optimizer();
  const char* weights = state.is_adapter() ? "adapter_model.bin"
                        : with_optimizer   ? "pytorch_model_fsdp.bin"
                                           : "pytorch_model.bin";
  std::vector<NamedPlace> named = named_weights(state);
  if (!with_optimizer) name_as_in_folder(state, named);
  write_torch_weights(state, named, out / weights, reader, *options.files);
  if (with_optimizer)
    write_torch_optimizer(state, places(state, false), out / "optimizer.bin", reader,
                          *options.files);
}

void write_dcp_optimizer(SavedState& state, const fs::path& out, WeightReader& reader,
                         FileSystem& files) {
  hf::DcpWriter writer(out, files);
  const hf::PyValue groups = param_groups(state);
  const auto& list = std::get<hf::PyList>(groups.value);
  for (size_t g = 0; g < list.items.size(); ++g) {
    for (const auto& [key, value] : std::get<hf::PyItems>(list.items[g].value)) {
      writer.add_value({"optimizer", "param_groups", std::to_string(g), key}, value);
    }
  }
  const auto updates = static_cast<float>(state.facts().num_updates.value_or(0));
  std::string last;
  for (size_t i : places_by_weight(state)) {
    const SavedTensor& tensor = state.tensors()[i];
    const std::string name = name_in_optimizer(state, tensor.weight);
    if (tensor.weight != last) {
      writer.add_tensor({{"optimizer", "state", name, "step"}, hf::DType::kF32, {}},
                        std::as_bytes(std::span(&updates, 1)));
    }
    last = tensor.weight;
    writer.add_tensor({{"optimizer", "state", name, tensor.kind}, tensor.dtype, tensor.shape},
                      reader.read(i));
  }
  writer.finish();
}

void write_dcp(SavedState& state, const fs::path& out, const ConvertOptions& options,
               WeightReader& reader) {
  hf::DcpWriter writer(out / "pytorch_model_fsdp_0", *options.files);
  for (size_t i : places(state, true)) {
    const SavedTensor& tensor = state.tensors()[i];
    writer.add_tensor(
        {{"model", name_in_file(state, tensor)}, reader.type_of(tensor), tensor.shape},
        reader.read(i));
  }
  writer.finish();
  if (options.with_optimizer && state.has_optimizer()) {
    write_dcp_optimizer(state, out / "optimizer_0", reader, *options.files);
  }
}

void write_target(SavedState& state, const fs::path& out, const ConvertOptions& options,
                  WeightReader& reader) {
  switch (options.target) {
    case ConvertTarget::kSafetensors:
      return write_safetensors(state, out, options, reader);
    case ConvertTarget::kTorch:
      return write_torch(state, out, options, reader);
    case ConvertTarget::kDcp:
      return write_dcp(state, out, options, reader);
    case ConvertTarget::kStrata:
      return write_strata_checkpoint(state, out, options, reader);
  }
}

// Opens what was written as anybody would and compares every tensor with what was handed to the
// writer. Memory: the largest tensor.
void compare(SavedState& state, const WeightReader& reader, const fs::path& written,
             bool is_strata) {
  const std::unique_ptr<SavedState> saved = open_saved_state(written);
  // Of some formats the names in a file are read, of others those in the model.
  const Json config = model_config(state);
  std::map<std::pair<std::string, std::string>, size_t> places;
  for (size_t i = 0; i < saved->tensors().size(); ++i) {
    const SavedTensor& tensor = saved->tensors()[i];
    places[{tensor.kind, hf::name_in_model(config, tensor.weight)}] = i;
  }
  std::vector<std::byte> bytes;
  for (const auto& [index, expected] : reader.checksums()) {
    const SavedTensor& tensor = state.tensors()[index];
    const bool has_prefix = tensor.is_parameter() && !is_strata;
    std::string name = has_prefix ? name_in_file(state, tensor) : tensor.weight;
    if (!is_strata && state.is_adapter()) name = name_in_run(name);
    const auto place = places.find({tensor.kind, hf::name_in_model(config, name)});
    if (place != places.end()) {
      const SavedTensor& found = saved->tensors()[place->second];
      bytes.resize(found.size_bytes());
      saved->read(place->second, bytes);
      if (found.shape == tensor.shape && found.dtype == reader.type_of(tensor) &&
          checksum(bytes.data(), bytes.size()) == expected) {
        continue;
      }
    }
    throw IoError(
        "{}: found {} for \"{}\" ({}) after writing, expected what {} holds; check the disk and "
        "convert again",
        written.string(), place == places.end() ? "nothing" : "other values", tensor.weight,
        tensor.kind, state.path().string());
  }
}

void read_back(SavedState& state, const WeightReader& reader, const fs::path& folder,
               ConvertTarget target) {
  switch (target) {
    case ConvertTarget::kSafetensors:
      return;  // was read back before its files got their names
    case ConvertTarget::kStrata:
      return compare(state, reader, folder_of(folder, state.facts().step.value_or(0)),
                     /*is_strata=*/true);
    case ConvertTarget::kTorch:
    case ConvertTarget::kDcp:
      return compare(state, reader, folder, /*is_strata=*/false);
  }
}

std::vector<std::string> notes_on_what_is_left_out(const SavedState& state,
                                                   const ConvertOptions& options) {
  std::vector<std::string> notes;
  const bool holds_weights_only = options.target == ConvertTarget::kSafetensors;
  if (state.has_optimizer() && holds_weights_only && options.with_optimizer) {
    notes.emplace_back("the optimizer's state is left out: this format has no place for it");
  }
  if (options.target == ConvertTarget::kStrata && !state.has_optimizer()) {
    notes.emplace_back("weights only: the checkpoint cannot be resumed");
  }
  if (state.is_adapter() && options.keeps_base_mark && !state.facts().base_fingerprint.empty() &&
      options.target == ConvertTarget::kTorch) {
    notes.emplace_back(
        "the mark of the adapter's base is left out: this format has no place for it");
  }
  return notes;
}

// What makes weights loadable, of formats that are loaded as a folder. False: it is not known here.
bool write_companions(const SavedState& state, const fs::path& folder,
                      const ConvertOptions& options) {
  if (options.target != ConvertTarget::kSafetensors && options.target != ConvertTarget::kTorch) {
    return true;
  }
  if (state.is_adapter()) {
    write_file_atomically(folder / hf::kAdapterConfigFile, adapter_config_text(state),
                          *options.files);
    copy_tokenizer(state.path(), folder, *options.files);
    if (const fs::path labels = state.path() / models::kLabelsFile; fs::is_regular_file(labels)) {
      write_file_atomically(folder / models::kLabelsFile, read_file(labels), *options.files);
    }
    return true;
  }
  const fs::path base = base_model_of(state);
  return !base.empty() && copy_companions(base, folder,
                                          {.type = options.weight_type.value_or(plain_type(state)),
                                           .is_packed = holds_packed(state),
                                           .num_labels = labels_of_head(state),
                                           .config = options.config,
                                           .files = options.files});
}

// DeepSpeed leaves weights without their values where each rank has a part of them (ZeRO-3).
void require_values(const SavedState& state) {
  for (const SavedTensor& tensor : state.tensors()) {
    if (!tensor.is_parameter() || tensor.size_bytes() > 0) continue;
    throw FormatError(
        "{}: found no value in the weight \"{}\" (shape [{}]), expected all of it: DeepSpeed's "
        "ZeRO-3 saves so without stage3_gather_16bit_weights_on_model_save; run the checkpoint's "
        "zero_to_fp32.py and convert what it makes",
        state.path().string(), tensor.weight, fmt::join(tensor.shape, ", "));
  }
}

}  // namespace

void require_new_folder(const fs::path& out) {
  if (!fs::exists(out) || (fs::is_directory(out) && fs::is_empty(out))) return;
  throw ConfigError("{}: found files there already, expected a new or empty folder; choose another",
                    out.string());
}

std::vector<std::string> convert(SavedState& state, const fs::path& out,
                                 const ConvertOptions& options) {
  require_new_folder(out);
  if (places(state, true).empty()) {
    throw ConfigError(
        "{}: found no weights, expected some to convert; name the folder that holds "
        "them",
        state.path().string());
  }
  require_values(state);
  if (options.target == ConvertTarget::kStrata) require_own_experts(state);
  std::vector<std::string> notes = remove_abandoned(out, std::array{state.path()});
  for (std::string& note : notes_on_what_is_left_out(state, options)) {
    notes.push_back(std::move(note));
  }
  AtomicFolder folder(out, *options.files);
  const WriteClaim claim(folder.path());
  WeightReader reader(state, options.weight_type);
  write_target(state, folder.path(), options, reader);
  if (!write_companions(state, folder.path(), options)) {
    notes.emplace_back(
        "config.json and the tokenizer are not known here: copy them from the base "
        "model, so that the folder can be loaded");
  }
  read_back(state, reader, folder.path(), options.target);
  require_new_folder(out);  // what came there meanwhile stays
  folder.commit();
  return notes;
}

}  // namespace strata::checkpoint
