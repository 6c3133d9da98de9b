#include "strata/generate/loaded_model.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/adapters/adapter_options.h"
#include "strata/adapters/lora_init.h"
#include "strata/base/error.h"
#include "strata/checkpoint/import.h"
#include "strata/comm/single_group.h"
#include "strata/generate/same_tokenizer.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/export_index.h"
#include "strata/hf/folder_contents.h"
#include "strata/hf/hub/model.h"
#include "strata/libtorch/cpu_arithmetic.h"
#include "strata/libtorch/host_copies.h"
#include "strata/models/quantization.h"
#include "strata/models/registry.h"
#include "strata/models/reward_head.h"
#include "strata/shard/quantized_loading.h"
#include "strata/shard/rounded_source.h"
#include "strata/shard/storage_type.h"
#include "strata/text/vocabulary_files.h"

namespace strata::generate {
namespace {

namespace fs = std::filesystem;

void require_folder(const char* setting, const fs::path& folder) {
  if (fs::is_directory(folder)) {
    // Answers need whole files, as FULL_STATE_DICT checkpoints have them beside the manifest.
    const bool has_weights = fs::exists(folder / hf::kAdapterWeightsFile) ||
                             fs::exists(folder / hf::kModelWeightsFile) ||
                             fs::exists(folder / hf::kModelIndexFile);
    if (has_weights || !fs::exists(folder / "manifest.json")) return;
    throw ConfigError(
        "{}: found a sharded checkpoint in {}, expected a model or an adapter in whole files; run "
        "strata convert {} OUT --to safetensors and name OUT",
        setting, folder.string(), folder.string());
  }
  throw IoError("{}: found {} at {}, expected a folder with a checkpoint; check the path", setting,
                fs::exists(folder) ? "a file" : "nothing", folder.string());
}

fs::path base_of(const LoadOptions& options, const fs::path& adapter) {
  const hf::AdapterConfig config = hf::read_adapter_config(adapter);
  const std::string& name = config.base_model_name_or_path;
  const std::string subject = (adapter / hf::kAdapterConfigFile).string();
  if (name.empty()) {
    throw ConfigError(
        "{}: found no base_model_name_or_path, expected the folder of the base model; pass it with "
        "--model_name_or_path and this folder with --adapter_name_or_path",
        subject);
  }
  hf::HubPlace place{.cache = options.cache};
  if (!config.revision.empty()) place.revision = config.revision;
  if (fs::is_directory(adapter / name) && !fs::exists(name)) return adapter / name;
  try {
    const fs::path folder = hf::locate_model(name, place, options.download_progress);
    if (fs::is_directory(folder)) return folder;
  } catch (const IoError& error) {
    throw IoError(
        "{}; or pass the folder of the base with --model_name_or_path and {} with "
        "--adapter_name_or_path",
        error.what(), adapter.string());
  }
  throw ConfigError(
      "{}: found base_model_name_or_path \"{}\", which is no folder here, expected the base "
      "model's; pass it with --model_name_or_path and this folder with --adapter_name_or_path",
      subject, name);
}

// The base of adapters to choose from, where nothing else names a model.
fs::path base_of_first_adapter(const LoadOptions& options) {
  if (options.adapters.empty()) {
    throw ConfigError(
        "model_name_or_path: found nothing, expected a folder with a checkpoint or an adapter; "
        "pass --model_name_or_path");
  }
  require_folder("adapter", options.adapters[0].folder);
  return base_of(options, options.adapters[0].folder);
}

void require_adapter(const fs::path& folder) {
  require_folder("adapter_name_or_path", folder);
  if (fs::exists(folder / hf::kAdapterConfigFile) || !fs::exists(folder / "config.json")) return;
  throw ConfigError(
      "adapter_name_or_path: found a model in {}, expected an adapter with its {}; name the model "
      "in model_name_or_path",
      folder.string(), hf::kAdapterConfigFile);
}

// Errors for what cannot go on with a text, or is no model.
void require_model_that_answers(const hf::ModelFolder& folder, const fs::path& adapter) {
  if (folder.is_adapter()) {
    throw ConfigError(
        "{}: found an adapter, expected the base model of {}; adapters of adapters "
        "are not supported",
        folder.path().string(), adapter.string());
  }
  if (models::has_encoder(folder.config())) {
    throw ConfigError(
        "{}: found an encoder-decoder model, expected a causal language model; evaluate it with "
        "strata seq2seq --predict_with_generate",
        folder.path().string());
  }
  if (models::is_encoder(folder.config())) {
    throw ConfigError(
        "{}: found an encoder, which predicts no tokens, expected a causal language model; use it "
        "with transformers' AutoModelForSequenceClassification",
        folder.path().string());
  }
  if (const std::string name = models::token_classifier(folder.config()); !name.empty()) {
    throw ConfigError(
        "{}: found {}, whose head labels tokens, expected a model that predicts them; use it with "
        "transformers' AutoModelForTokenClassification",
        folder.path().string(), name);
  }
  if (const int64_t labels = models::num_labels(folder.config()); labels > 0) {
    throw ConfigError(
        "{}: found a model that gives texts a {}, expected one that predicts tokens; read its "
        "numbers with transformers' AutoModelForSequenceClassification",
        folder.path().string(), labels == 1 ? "reward" : "label");
  }
}

// The adapter given by the paths is called after its folder.
std::vector<NamedAdapter> all_adapters(const ModelPaths& paths, const LoadOptions& options) {
  std::vector<NamedAdapter> adapters;
  if (!paths.adapter.empty()) {
    adapters.push_back(
        {fs::absolute(paths.adapter / "").parent_path().filename().string(), paths.adapter});
  }
  adapters.insert(adapters.end(), options.adapters.begin(), options.adapters.end());
  return adapters;
}

// One text, or what follows `start` tokens of it.
nn::Batch batch_of(std::span<const int32_t> ids, int64_t start, at::Device device) {
  const auto count = static_cast<int64_t>(ids.size());
  nn::Batch batch;
  batch.ids = at::empty({count}, at::kLong);
  std::ranges::copy(ids, batch.ids.data_ptr<int64_t>());
  batch.ids = to_device(batch.ids, device);
  batch.positions = at::arange(start, start + count, batch.ids.options());
  batch.targets = at::full({count}, -100, at::kLong);
  batch.token_keys = batch.positions;
  batch.offsets = {0, count};
  return batch;
}

// Layers in fp8 or whole numbers do not stay so where bitsandbytes' codes are made of them, nor
// where an adapter's first values change the base.
DecodedForms decoded_forms(const DecodedForms& asked, bool quantizes,
                           const std::vector<NamedAdapter>& adapters) {
  const bool change_base = std::ranges::any_of(adapters, [](const NamedAdapter& adapter) {
    return fs::exists(adapter.folder / hf::kAdapterConfigFile) &&
           adapters::changes_base(
               adapters::lora_options_of(hf::read_adapter_config(adapter.folder)));
  });
  DecodedForms decoded = asked;
  decoded.fp8 |= quantizes || change_base;
  decoded.ints |= quantizes || change_base;
  return decoded;
}

comm::Mesh single_mesh() {
  return {comm::make_single_group(), comm::make_single_group(), comm::make_single_group()};
}

}  // namespace

ModelPaths find_model(const LoadOptions& options) {
  const fs::path model =
      hf::locate_model(options.model.string(), {.cache = options.cache}, options.download_progress);
  if (model.empty() && options.adapter.empty()) return {base_of_first_adapter(options), {}};
  if (!options.adapter.empty()) require_adapter(options.adapter);
  if (model.empty()) return {base_of(options, options.adapter), options.adapter};
  require_folder("model_name_or_path", model);
  if (!hf::is_adapter_folder(model)) return {model, options.adapter};
  if (!options.adapter.empty()) {
    throw ConfigError(
        "model_name_or_path: found an adapter in {}, expected a base model with "
        "--adapter_name_or_path; name one adapter only",
        model.string());
  }
  return {base_of(options, model), model};
}

LoadedModel::LoadedModel(const LoadOptions& options)
    : paths_(find_model(options)), device_(options.device), mesh_(single_mesh()) {
  const hf::ModelFolder folder(paths_.base);
  require_model_that_answers(folder, paths_.adapter);
  storage_type_ =
      shard::storage_type_of(options.dtype, folder.config(), shard::type_in_files(folder));
  const bool multiplies_bf16 = device_.is_cuda() || cpu_has_bf16_arithmetic();
  if (storage_type_ == at::kBFloat16 && multiplies_bf16) compute_type_ = at::kBFloat16;
  if (storage_type_ == at::kHalf && device_.is_cuda()) compute_type_ = at::kHalf;
  quantization_ = models::stored_quantization(folder.config());
  const bool holds_codes = quantization_.has_value();
  if (!holds_codes) quantization_ = options.quantization;
  const std::vector<NamedAdapter> adapters = all_adapters(paths_, options);
  load_base(folder, decoded_forms(options.decoded, quantization_.has_value(), adapters));
  if (quantization_ && !holds_codes) {
    models::require_skip_modules(*model_, quantization_->skip_modules);
  }
  choose_tokenizer(adapters);
  load_adapters(folder, adapters);
}

// A conversation goes on when the adapter changes, so all of them must read it alike.
void LoadedModel::choose_tokenizer(const std::vector<NamedAdapter>& adapters) {
  const auto folder_for = [&](const fs::path& adapter) {
    return text::vocabularies_in(adapter).empty() ? paths_.base : adapter;
  };
  tokenizer_folder_ = adapters.empty() ? paths_.base : folder_for(adapters[0].folder);
  for (const NamedAdapter& adapter : adapters) {
    const fs::path folder = folder_for(adapter.folder);
    if (folder == tokenizer_folder_) continue;
    if (!reads_alike(folder, tokenizer_folder_)) {
      throw ConfigError(
          "adapter: found another tokenizer in {} than in {}, expected adapters of one; load them "
          "in conversations of their own",
          folder.string(), tokenizer_folder_.string());
    }
    note_template(adapter.name, folder);
  }
}

void LoadedModel::note_template(const std::string& name, const fs::path& folder) {
  const bool is_used = has_chat_template(tokenizer_folder_), is_there = has_chat_template(folder);
  if (is_used == is_there) return;
  const std::string first = tokenizer_folder_.string();
  notes_.push_back(
      is_used ? fmt::format("{} uses the chat template of {}: {} has none", name, first,
                            folder.string())
              : fmt::format("the chat template of {} is not used: the first adapter's tokenizer, "
                            "that of {}, has none; name --adapter {} first",
                            folder.string(), first, name));
}

void LoadedModel::load_base(const hf::ModelFolder& folder, const DecodedForms& decoded) {
  // Weights stay gathered, so they are stored in the compute type: home and slot are then the same.
  model_ = models::create_model(folder.config(), {.storage = compute_type_});
  model_->follow_tie(folder);
  for (nn::Parameter* parameter : model_->parameters()) parameter->set_requires_grad(false);
  if (quantization_) models::quantize_base(*model_, *quantization_);
  keep_codes_of_files(*model_, folder, decoded, storage_type_);
  kept_codes_ = kept_codes(*model_);
  const models::WeightSources sources = model_->check_weights(folder);
  for (nn::Parameter* parameter : model_->parameters()) {
    if (!parameter->quantization()) parameter->set_storage_type(compute_type_);
  }
  store_ = std::make_unique<shard::UnitStore>(
      *model_, mesh_, shard::StoreOptions{.compute_type = compute_type_, .device = device_});
  shard::fill_homes(*store_,
                    shard::rounded_source(storage_type_, checkpoint::base_source(folder, sources)));
  shard::fill_quantized_homes(*store_, folder, sources, storage_type_);
  for (int u = 0; u < store_->num_units(); ++u) {
    store_->gather(u);
    store_->wait_gather(u);
  }
  for (const nn::Parameter* parameter : model_->parameters()) {
    base_tensors_[sources.at(parameter->name())] =
        parameter->quantization() ? parameter->quantized_bytes() : parameter->value();
  }
}

void LoadedModel::load_adapters(const hf::ModelFolder& folder,
                                const std::vector<NamedAdapter>& adapters) {
  for (const NamedAdapter& adapter : adapters) {
    const bool is_known = std::ranges::any_of(
        adapters_, [&](const Loaded& loaded) { return loaded.name == adapter.name; });
    if (is_known || adapter.name.empty() || adapter.name == "off") {
      throw ConfigError(
          "adapter: found {} as the name of {}, expected a name of its own for each; pass "
          "--adapter NAME=FOLDER",
          is_known ? "\"" + adapter.name + "\" twice" : "\"" + adapter.name + "\"",
          adapter.folder.string());
    }
    require_folder("adapter", adapter.folder);
    adapters_.push_back(
        {adapter.name, std::make_unique<AdaptedModel>(AdaptableBase{.folder = folder,
                                                                    .tensors = base_tensors_,
                                                                    .storage_type = storage_type_,
                                                                    .compute_type = compute_type_,
                                                                    .quantization = quantization_,
                                                                    .kept_codes = kept_codes_},
                                                      adapter.folder)});
    for (const std::string& note : adapters_.back().model->notes()) notes_.push_back(note);
  }
  if (!adapters_.empty()) active_ = adapters_[0].name;
}

std::vector<std::string> LoadedModel::adapter_names() const {
  std::vector<std::string> names;
  for (const Loaded& loaded : adapters_) names.push_back(loaded.name);
  return names;
}

void LoadedModel::use_adapter(const std::string& name) {
  const std::vector<std::string> names = adapter_names();
  if (!name.empty() && std::ranges::find(names, name) == names.end()) {
    throw ConfigError(
        "adapter: found no \"{}\" loaded, expected one of {}, or off; name one of them", name,
        names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
  }
  active_ = name;
  ++revision_;
}

AdaptedModel* LoadedModel::active_adapted() const {
  for (const Loaded& loaded : adapters_) {
    if (loaded.name == active_) return loaded.model.get();
  }
  return nullptr;
}

models::Model& LoadedModel::active_model() const {
  AdaptedModel* adapted = active_adapted();
  return adapted != nullptr ? adapted->model() : *model_;
}

void LoadedModel::merge_adapter() {
  AdaptedModel* adapted = active_adapted();
  if (adapted == nullptr) {
    throw ConfigError("merge: found no adapter in use, expected one; choose one first");
  }
  adapted->merge();
  ++revision_;
}

void LoadedModel::unmerge_adapter() {
  AdaptedModel* adapted = active_adapted();
  if (adapted == nullptr || !adapted->is_merged()) {
    throw ConfigError("unmerge: found no merged adapter in use, expected one; merge it first");
  }
  adapted->unmerge();
  ++revision_;
}

bool LoadedModel::is_merged(const std::string& name) const {
  return std::ranges::any_of(adapters_, [&](const Loaded& loaded) {
    return loaded.name == name && loaded.model->is_merged();
  });
}

int64_t LoadedModel::num_virtual_tokens() const {
  const nn::VirtualTokens* tokens = active_model().virtual_tokens();
  return tokens == nullptr ? 0 : tokens->count();
}

std::string LoadedModel::text_limit_note() const {
  const int64_t in_front = num_virtual_tokens();
  if (in_front == 0) return "(max_position_embeddings)";
  return fmt::format("in addition to {} virtual token{} (max_position_embeddings is {})", in_front,
                     in_front == 1 ? "" : "s", model_->max_position_embeddings());
}

int64_t LoadedModel::num_layers() const {
  int64_t count = 0;
  for (models::Block* block : model_->blocks()) count += block->kind() == models::BlockKind::kLayer;
  return count;
}

at::Tensor LoadedModel::next_logits(std::span<const int32_t> ids, nn::KvCache* cache) {
  const at::NoGradGuard no_grad;
  models::Model& model = active_model();
  const bool is_first = cache == nullptr || cache->length == 0;
  nn::Batch batch = batch_of(ids, is_first ? 0 : cache->length, device_);
  if (const nn::VirtualTokens* tokens = model.virtual_tokens(); tokens != nullptr && is_first) {
    batch = nn::with_virtual_tokens(batch, *tokens);
    // A prefix is no token of the batch, but it is one of the cache.
    const bool is_prefix = tokens->kind == nn::VirtualTokens::Kind::kPrefix;
    if (cache != nullptr && is_prefix) cache->length = tokens->count();
  }
  nn::ForwardContext context;
  context.batch = &batch;
  context.generation.cache = cache;
  nn::Shelf shelf(static_cast<size_t>(model.num_shelved()));
  context.pass.shelf = &shelf;
  at::Tensor x = at::empty({0});
  for (models::Block* block : model.blocks()) {
    if (block->kind() != models::BlockKind::kHead) x = block->forward(x, context);
  }
  if (cache != nullptr) cache->length += batch.num_tokens();
  return model.logits(x.narrow(0, batch.num_tokens() - 1, 1)).select(0, 0).cpu();
}

}  // namespace strata::generate
