#include "strata/checkpoint/merge.h"

#include <algorithm>
#include <map>
#include <span>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>

#include "strata/adapters/adapter_options.h"
#include "strata/adapters/lora_init.h"
#include "strata/adapters/merged_weight.h"
#include "strata/adapters/target_layers.h"
#include "strata/adapters/vera.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/base_mark.h"
#include "strata/checkpoint/convert.h"
#include "strata/checkpoint/element_type.h"
#include "strata/checkpoint/export_files.h"
#include "strata/checkpoint/import.h"
#include "strata/checkpoint/param_groups.h"
#include "strata/checkpoint/saved_values.h"
#include "strata/hf/adapter_files.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

// Elements that are tested at once.
constexpr int64_t kElementsAtOnce = int64_t{1} << 20;

// In parts: the test of a whole tensor takes more memory than the tensor.
bool is_finite(const at::Tensor& value) {
  if (!at::isFloatingType(value.scalar_type())) return true;
  const at::Tensor flat = value.reshape({-1});
  for (int64_t begin = 0; begin < flat.numel(); begin += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, flat.numel() - begin);
    if (!at::isfinite(flat.narrow(0, begin, count)).all().item<bool>()) return false;
  }
  return true;
}

// Where an adapter's parts for one weight of the base stand in its list.
struct Parts {
  std::optional<size_t> a, b, magnitude, whole;
  std::optional<size_t> bias_of_b;  // lora_bias: goes into the layer's bias
  std::optional<size_t> factors;    // (IA)^3, of the weight's rows [out, 1] or columns [1, in]
  std::optional<size_t> columns;    // LoRA of an embedding: A [r, rows], with B in `b`
  std::optional<size_t> rows;       // of single tokens, in place of the base's
  std::optional<size_t> base;       // the base's own weight, saved because its vocabulary grew
  std::optional<size_t> lambda_b, lambda_d;  // VeRA

  bool is_empty() const {
    return !a && !b && !magnitude && !whole && !bias_of_b && !factors && !columns && !rows &&
           !base && !lambda_b && !lambda_d;
  }
};

// adapter_config.json of what is merged. ConfigError for methods that no weight can hold.
adapters::LoraOptions settings_of(const SavedState& adapter) {
  const std::string subject = adapter.path().string();
  if (!adapter.is_adapter() && adapter.facts().adapter_config.is_null()) {
    throw ConfigError(
        "{}: found no weights of an adapter, expected a PEFT folder or a checkpoint of a run with "
        "an adapter; name the adapter here and its base with --base_model",
        subject);
  }
  const hf::AdapterConfig config =
      hf::parse_adapter_config(parse_json(adapter_config_text(adapter), subject), subject);
  adapters::LoraOptions options = adapters::lora_options_of(config);
  if (options.has_virtual_tokens()) {
    throw ConfigError(
        "{}: found an adapter of type {}, which is no part of any weight, expected LORA (with DoRA "
        "or without), IA3 or VERA; use it beside its base",
        subject, config.peft_type);
  }
  if (options.init.starts_with("pissa_niter_")) {
    throw ConfigError(
        "{}: found init_lora_weights {}, which takes random directions off the base, expected "
        "pissa or another; merge it with the model it was trained in",
        subject, options.init);
  }
  return options;
}

class Merger {
 public:
  Merger(SavedState& base, SavedState& adapter, const MergeOptions& options)
      : base_(base), adapter_(adapter), options_(options), settings_(settings_of(adapter)) {
    if (options.decoded && adapters::changes_base(settings_) && settings_.init != "olora") {
      throw ConfigError(
          "{}: found init_lora_weights {} over codes, expected an adapter of plain weights to be "
          "merged into those; name the model that was quantised with --base_model",
          adapter.path().string(), settings_.init);
    }
    for (size_t i = 0; i < base.tensors().size(); ++i) in_base_[base.tensors()[i].weight] = i;
    if (in_base_.contains(kShared)) embedding_ = kShared;
    for (size_t i = 0; i < adapter.tensors().size(); ++i) {
      if (adapter.tensors()[i].is_parameter()) add_part(i);
    }
    check_fit();
    base_note_ = require_base(adapter.path().string(), adapter.facts().base_fingerprint,
                              base.path().string(), base.facts().base_fingerprint,
                              adapters::changes_base(settings_));
  }

  std::vector<std::string> write(const fs::path& out) {
    require_new_folder(out);
    std::vector<hf::TensorBytes> sizes;
    std::unordered_map<std::string, hf::TensorSpec> specs;
    uint64_t num_parameters = 0;
    const auto add = [&](const std::string& name, const SavedTensor& tensor) {
      const bool is_floating = at::isFloatingType(memory_type_of(tensor.dtype));
      const hf::DType type =
          is_floating ? options_.weight_type.value_or(tensor.dtype) : tensor.dtype;
      const uint64_t numel = tensor.size_bytes() / hf::size_of(tensor.dtype);
      specs[name] = {name, type, tensor.shape};
      sizes.push_back({name, numel * hf::size_of(type)});
      num_parameters += numel;
    };
    for (const SavedTensor& tensor : base_.tensors()) add(tensor.weight, resized(tensor));
    if (untied_from_) {
      SavedTensor head = base_.tensors()[*untied_from_];
      head.weight = kHead;
      add(kHead, resized(head));
    }
    const hf::ShardPlan plan = hf::plan_shards(sizes, options_.max_shard_size);
    AtomicFolder folder(out, *options_.files);
    ExportFiles files(folder.path(), Trained::kUnknown, *options_.files);
    files.add(plan, specs);
    if (plan.is_indexed()) files.add_text(hf::kModelIndexFile, plan.index_json(num_parameters));
    for (const hf::TensorBytes& tensor : sizes) {
      const at::Tensor value = merged(tensor.name).to(memory_type_of(specs.at(tensor.name).dtype));
      files.write(tensor.name, {static_cast<const std::byte*>(value.data_ptr()), value.nbytes()});
    }
    files.publish();
    std::vector<std::string> notes;
    if (!base_note_.empty()) notes.push_back(base_note_);
    const std::unique_ptr<text::Tokenizer> tokenizer = tokenizer_of_adapter(notes);
    // A tokenizer beside the adapter is the one it was trained with.
    const ConfigChange change{.type = specs.at(sizes[0].name).dtype,
                              // T5 has no such setting: its config.json says by that name how
                              // the decoder's output is scaled, and two tensors are two weights.
                              .unties_head = untied_from_.has_value() && embedding_ != kShared,
                              .is_decoded = true,
                              .vocab_size = num_rows_,
                              .tokenizer = adapter_.path(),
                              .special_tokens = tokenizer.get(),
                              .files = options_.files};
    const fs::path companions = base_model_of(base_);
    if (companions.empty() || !copy_companions(companions, folder.path(), change)) {
      notes.push_back("the base has no config.json: copy it and the tokenizer beside the weights");
    }
    require_new_folder(out);  // what came there meanwhile stays
    folder.commit();
    return notes;
  }

 private:
  // The one that it was trained with; null: none lies there. One that cannot be read is copied all
  // the same.
  std::unique_ptr<text::Tokenizer> tokenizer_of_adapter(std::vector<std::string>& notes) const {
    if (!fs::is_regular_file(adapter_.path() / "tokenizer.json")) return nullptr;
    try {
      return text::Tokenizer::load(adapter_.path());
    } catch (const Error& error) {
      notes.push_back(
          fmt::format("config.json and generation_config.json keep the base's end of an answer: {}",
                      error.what()));
      return nullptr;
    }
  }

  static constexpr const char* kHead = "lm_head.weight";
  // T5's, which encoder and decoder share, and that of the decoder-only families.
  static constexpr const char* kShared = "shared.weight";
  static constexpr const char* kEmbedding = "model.embed_tokens.weight";

  void add_part(size_t index) {
    std::string name = adapter_.tensors()[index].weight;
    if (name.starts_with(hf::kAdapterKeyPrefix)) {
      name = name.substr(std::string_view(hf::kAdapterKeyPrefix).size());
    }
    const std::pair<std::string_view, std::optional<size_t> Parts::*> kEndings[] = {
        {".lora_A.weight", &Parts::a},
        {".lora_B.weight", &Parts::b},
        {".lora_magnitude_vector", &Parts::magnitude},
        {".lora_magnitude_vector.weight", &Parts::magnitude},
        {".lora_B.bias", &Parts::bias_of_b},
        {".ia3_l", &Parts::factors},
        {".lora_embedding_A", &Parts::columns},
        {".lora_embedding_B", &Parts::b},
        {".token_adapter.trainable_tokens_delta", &Parts::rows},
        {".vera_lambda_b", &Parts::lambda_b},
        {".vera_lambda_d", &Parts::lambda_d}};
    for (const auto& [key, place] : {std::pair{"base_model.vera_A", &projection_a_},
                                     std::pair{"base_model.vera_B", &projection_b_}}) {
      if (name != key) continue;
      *place = index;
      return;
    }
    for (const auto& [ending, part] : kEndings) {
      if (!name.ends_with(ending)) continue;
      parts_[name.substr(0, name.size() - ending.size()) + ".weight"].*part = index;
      return;
    }
    if (name.find(".lora_") != std::string::npos) {
      throw ConfigError("{}: found \"{}\", expected branches of linear layers; merge it with PEFT",
                        adapter_.path().string(), name);
    }
    // PEFT saves the base's own weight of a targeted output layer, and biases that trained.
    for (const std::string_view of_base : {".token_adapter.base_layer.", ".base_layer."}) {
      const size_t at = name.find(of_base);
      if (at == std::string::npos) continue;
      name.replace(at, of_base.size(), ".");
      if (name.ends_with(".bias")) break;
      if (name == embedding_ || name == kHead) parts_[name].base = index;
      return;
    }
    // Copies that PEFT adds of a module that is saved whole.
    const bool is_copy = name.find(".original_module.") != std::string::npos ||
                         name.find(".modules_to_save.") != std::string::npos;
    if (!is_copy) parts_[name].whole = index;
  }

  // What of an adapter does not fit the base.
  struct Misfit {
    std::string text;
  };
  [[noreturn]] static void fail(const std::string& weight, const std::string& found) {
    throw Misfit{fmt::format("{} for \"{}\"", found, weight)};
  }

  [[noreturn]] void refuse(const std::vector<std::string>& misfits) const {
    constexpr size_t kMostShown = 5;
    const size_t shown = std::min(misfits.size(), kMostShown);
    const std::span<const std::string> first(misfits.data(), shown);
    const std::string rest =
        shown < misfits.size() ? fmt::format(", and {} more", misfits.size() - shown) : "";
    throw ConfigError(
        "{}: found {}{}, expected an adapter of {}; name the base that it was trained on",
        adapter_.path().string(), fmt::join(first, ", "), rest, base_.path().string());
  }

  // A base tensor as the result has it: with the adapter's rows where the vocabulary grew.
  SavedTensor resized(SavedTensor tensor) const {
    const auto parts = parts_.find(tensor.weight);
    if (!num_rows_ || parts == parts_.end()) return tensor;
    if (parts->second.whole) tensor.shape = shape_of(*parts->second.whole);
    if (parts->second.base) tensor.shape = shape_of(*parts->second.base);
    return tensor;
  }

  // Whether the adapter holds the embedding or output layer with another number of rows.
  bool is_resized(const std::string& weight, const std::vector<int64_t>& found,
                  const std::vector<int64_t>& base) {
    if (weight != kHead && weight != embedding_) return false;
    if (found.size() != 2 || base.size() != 2 || found[1] != base[1]) return false;
    if (num_rows_ && *num_rows_ != found[0]) return false;
    num_rows_ = found[0];
    return true;
  }

  // Keeps the base's weights that the adapter holds only where they have more rows.
  void take_grown_rows() {
    for (const std::string& weight : {embedding_, std::string(kHead)}) {
      const auto parts = parts_.find(weight);
      if (parts == parts_.end()) continue;
      const auto found = in_base_.find(weight);
      std::optional<size_t>& base = parts->second.base;
      if (found != in_base_.end() && base) {
        const std::vector<int64_t>& shape = base_.tensors()[found->second].shape;
        if (shape_of(*base) == shape || !is_resized(weight, shape_of(*base), shape)) base.reset();
      }
      // A branch on a tied output layer unties it; the copy of its weight is the embedding's.
      const bool has_own = parts->second.a || parts->second.factors || parts->second.lambda_b;
      if (found == in_base_.end() && has_own) base.reset();
      // A tied output layer goes with the embedding, rows of single tokens too.
      const bool is_second =
          found == in_base_.end() && weight == kHead && (base || parts->second.rows);
      if (is_second || parts->second.is_empty()) parts_.erase(parts);
    }
  }

  // PEFT saves a tied weight that trained as one under both its names, a checkpoint of a run under
  // the first. Whether this was one.
  bool drop_second_name() {
    const auto head = parts_.find(kHead), embedding = parts_.find(embedding_);
    if (in_base_.contains(kHead) || embedding == parts_.end()) return false;
    if (head == parts_.end()) return settings_.ensure_weight_tying && embedding->second.whole;
    if (!head->second.whole || !embedding->second.whole) return false;
    const at::Tensor one = read_tensor(adapter_, *head->second.whole);
    const at::Tensor other = read_tensor(adapter_, *embedding->second.whole);
    if (one.sizes() != other.sizes() || !one.equal(other)) return false;
    parts_.erase(head);
    return true;
  }

  const std::vector<int64_t>& shape_of(size_t index) const {
    return adapter_.tensors()[index].shape;
  }

  void check_fit() {
    bool has_branch = false;
    take_grown_rows();
    const bool stays_tied = drop_second_name();
    const bool unties = !stays_tied && !in_base_.contains(kHead) && !parts_.contains(kHead);
    std::vector<std::string> misfits;
    for (const auto& [weight, parts] : parts_) {
      try {
        has_branch |= check_weight(weight, parts, unties);
      } catch (const Misfit& misfit) {
        misfits.push_back(misfit.text);
      }
    }
    if (!misfits.empty()) refuse(misfits);
    if (!has_branch) {
      throw ConfigError("{}: found no LoRA weights, expected an adapter", adapter_.path().string());
    }
    load_projection();
  }

  // Whether the adapter has a branch for the weight.
  bool check_weight(const std::string& weight, const Parts& parts, bool unties) {
    auto found = in_base_.find(weight);
    if (found == in_base_.end() && weight == kHead && in_base_.contains(embedding_)) {
      // The head changes, the embedding that it was a name of does not.
      found = in_base_.find(embedding_);
      untied_from_ = found->second;
      if (parts.whole) return false;
    }
    if (found == in_base_.end()) fail(weight, "values");
    const std::vector<int64_t>& shape =
        parts.base ? shape_of(*parts.base) : base_.tensors()[found->second].shape;
    if (parts.whole) {
      const std::vector<int64_t>& whole = shape_of(*parts.whole);
      const bool has_rows = whole != shape && is_resized(weight, whole, shape);
      if (whole != shape && !has_rows) fail(weight, "another shape");
      // The base's head was the embedding that is replaced here; the head keeps its values.
      if (weight == embedding_ && unties && !has_rows) untied_from_ = found->second;
      return false;
    }
    if (parts.base && !parts.a && !parts.rows && !parts.columns) return false;
    check_bias(weight, parts);
    if (parts.rows) {
      check_rows(weight, shape_of(*parts.rows), shape);
    } else if (parts.columns) {
      if (!parts.b) fail(weight, "half a branch");
      check_branch(weight, shape_of(*parts.b), shape_of(*parts.columns), {shape[1], shape[0]});
      if (parts.magnitude.has_value() != settings_.use_dora) fail(weight, "half a DoRA branch");
      // The head was a name of the embedding, to which the branch does not belong.
      if (weight == embedding_ && unties) untied_from_ = found->second;
    } else if (parts.factors) {
      check_factors(weight, shape_of(*parts.factors), shape);
    } else if (parts.lambda_b || parts.lambda_d) {
      check_vectors(weight, parts, shape);
    } else {
      if (!parts.a || !parts.b) fail(weight, "half a branch");
      check_branch(weight, shape_of(*parts.b), shape_of(*parts.a), shape);
      if (parts.magnitude.has_value() != settings_.use_dora) fail(weight, "half a DoRA branch");
    }
    return true;
  }

  void check_vectors(const std::string& weight, const Parts& parts,
                     const std::vector<int64_t>& shape) {
    if (!parts.lambda_b || !parts.lambda_d || shape.size() != 2 ||
        shape_of(*parts.lambda_b) != std::vector<int64_t>{shape[0]} ||
        shape_of(*parts.lambda_d).size() != 1) {
      fail(weight, "half a VeRA branch, or vectors of another size,");
    }
    rank_ = shape_of(*parts.lambda_d)[0];
    most_in_ = std::max(most_in_, shape[1]);
    most_out_ = std::max(most_out_, shape[0]);
  }

  // VeRA's matrices: those of the file, else drawn again.
  void load_projection() {
    if (rank_ == 0) return;
    if (!projection_a_ || !projection_b_) {
      draw_projection();
      return;
    }
    projection_.a = read_tensor(adapter_, *projection_a_).to(at::kFloat);
    projection_.b = read_tensor(adapter_, *projection_b_).to(at::kFloat);
    if (projection_.a.dim() != 2 || projection_.b.dim() != 2 || projection_.a.size(0) != rank_ ||
        projection_.b.size(1) != rank_ || projection_.a.size(1) < most_in_ ||
        projection_.b.size(0) < most_out_) {
      refuse({"matrices of another size for \"base_model.vera_A\""});
    }
  }

  void draw_projection() {
    projection_ =
        adapters::draw_projection(settings_.projection_prng_key, rank_, most_in_, most_out_);
    for (const auto& [weight, parts] : parts_) {
      if (!parts.lambda_b) continue;
      const auto found = in_base_.find(weight);
      const SavedTensor& tensor =
          base_.tensors()[found == in_base_.end() ? untied_from_.value() : found->second];
      if (tensor.is_decoded) continue;
      adapters::round_projection(projection_, memory_type_of(tensor.dtype));
    }
  }

  // b [rows, r], a [r, columns] of a matrix.
  void check_branch(const std::string& weight, const std::vector<int64_t>& b,
                    const std::vector<int64_t>& a, const std::vector<int64_t>& shape) const {
    if (a.size() == 2 && b.size() == 2 && shape.size() == 2 && a[0] == b[1] && a[1] == shape[1] &&
        b[0] == shape[0]) {
      return;
    }
    fail(weight, fmt::format("a branch of [{}] and [{}]", fmt::join(a, ", "), fmt::join(b, ", ")));
  }

  void check_rows(const std::string& weight, const std::vector<int64_t>& rows,
                  const std::vector<int64_t>& shape) const {
    const std::vector<int64_t> ids = settings_.trainable_tokens;
    bool fits = rows.size() == 2 && shape.size() == 2 && rows[1] == shape[1] &&
                rows[0] == static_cast<int64_t>(ids.size());
    const int64_t num_rows = num_rows_.value_or(shape.empty() ? 0 : shape[0]);
    for (const int64_t id : ids) fits = fits && id >= 0 && id < num_rows;
    if (!fits) fail(weight, fmt::format("rows [{}]", fmt::join(rows, ", ")));
  }

  void check_bias(const std::string& weight, const Parts& parts) const {
    if (!parts.bias_of_b) return;
    const std::string bias = weight.substr(0, weight.rfind('.')) + ".bias";
    const auto found = in_base_.find(bias);
    if (found == in_base_.end()) fail(bias, "a trained bias");
    if (shape_of(*parts.bias_of_b) != base_.tensors()[found->second].shape) {
      fail(bias, "another shape");
    }
  }

  void check_factors(const std::string& weight, const std::vector<int64_t>& factors,
                     const std::vector<int64_t>& shape) const {
    const bool fits = shape.size() == 2 && (factors == std::vector<int64_t>{shape[0], 1} ||
                                            factors == std::vector<int64_t>{1, shape[1]});
    if (!fits) fail(weight, fmt::format("factors of [{}]", fmt::join(factors, ", ")));
  }

  at::Tensor merged(const std::string& name) {
    at::Tensor value = merged_unchecked(name);
    if (is_finite(value)) return value;
    throw FormatError(
        "{}: found NaN or infinity in \"{}\" after merging, expected finite numbers; the adapter "
        "or the base is broken",
        adapter_.path().string(), name);
  }

  // A bias takes what belongs to its layer: B's bias, the factors of (IA)^3.
  void add_to_bias(const std::string& name, at::Tensor& value) {
    if (!name.ends_with(".bias")) return;
    const std::string module = name.substr(0, name.rfind('.'));
    const auto layer = parts_.find(module + ".weight");
    if (layer == parts_.end()) return;
    const Parts& parts = layer->second;
    if (parts.bias_of_b) {
      const at::Tensor bias = read_tensor(adapter_, *parts.bias_of_b).to(at::kFloat);
      const double scale = scale_of(module, shape_of(*parts.a)[0]);
      value = value.to(at::kFloat).add(bias, scale).to(value.scalar_type());
    }
    if (parts.factors && shape_of(*parts.factors)[1] == 1) {
      const at::Tensor factors = read_tensor(adapter_, *parts.factors).to(at::kFloat);
      value = (value * factors.view({-1})).to(value.scalar_type());
    }
  }

  // For a result in fp32 values of codes are not rounded to the type that the weights had before.
  at::Tensor base_weight(size_t index) const {
    const SavedTensor& tensor = base_.tensors()[index];
    const bool is_exact = tensor.is_decoded && options_.weight_type == hf::DType::kF32;
    return is_exact ? options_.decoded->decode(tensor.weight, at::kFloat)
                    : read_tensor(base_, index);
  }

  at::Tensor merged_unchecked(const std::string& name) {
    const auto parts = parts_.find(name);
    if (parts != parts_.end() && parts->second.whole) {
      at::Tensor value = read_tensor(adapter_, *parts->second.whole);
      add_to_bias(name, value);
      return value;
    }
    const auto place = in_base_.find(name);
    at::Tensor weight = parts != parts_.end() && parts->second.base
                            ? read_tensor(adapter_, *parts->second.base)
                            : base_weight(place == in_base_.end() ? *untied_from_ : place->second);
    add_to_bias(name, weight);
    if (parts == parts_.end()) return weight;
    if (parts->second.factors) {
      const at::Tensor factors = read_tensor(adapter_, *parts->second.factors).to(at::kFloat);
      return (weight * factors).to(weight.scalar_type());
    }
    if (parts->second.rows) {
      const at::Tensor rows = read_tensor(adapter_, *parts->second.rows);
      return weight.index_copy(0, at::tensor(settings_.trainable_tokens, at::kLong),
                               rows.to(weight.scalar_type()));
    }
    if (parts->second.columns) return with_columns(name, weight, parts->second);
    if (parts->second.lambda_b) return with_vectors(weight, parts->second);
    if (!parts->second.a) return weight;
    adapters::Branch branch;
    branch.a = read_tensor(adapter_, *parts->second.a).to(at::kFloat);
    branch.b = read_tensor(adapter_, *parts->second.b).to(at::kFloat);
    if (parts->second.magnitude) {
      branch.magnitude =
          read_tensor(adapter_, *parts->second.magnitude).to(at::kFloat).reshape({-1});
    }
    branch.scale = scale_of(name.substr(0, name.rfind('.')), branch.a.size(0));
    if (adapters::changes_base(settings_)) {
      weight = base_of_training(weight, name, branch).to(weight.scalar_type());
    }
    return with_branch(weight, branch);
  }

  // What training left of a weight when it took the first directions off.
  at::Tensor base_of_training(const at::Tensor& weight, const std::string& name,
                              const adapters::Branch& branch) const {
    const auto place = in_base_.find(name);
    const bool is_decoded = options_.decoded != nullptr && place != in_base_.end() &&
                            base_.tensors()[place->second].is_decoded;
    // Codes were not rounded to the type of other weights there.
    const at::Tensor values =
        is_decoded ? options_.decoded->decode(name, at::kFloat) : weight.to(at::kFloat);
    const adapters::BaseDirections taken =
        adapters::base_directions(values, branch.a.size(0), branch.scale, settings_);
    return is_decoded ? options_.decoded->quantize_again(name, taken.base) : taken.base;
  }

  // A VeRA branch is a LoRA branch whose matrices are scaled.
  at::Tensor with_vectors(const at::Tensor& weight, const Parts& parts) {
    const adapters::Branch branch =
        adapters::vera_branch(projection_, read_tensor(adapter_, *parts.lambda_b),
                              read_tensor(adapter_, *parts.lambda_d), weight.sizes());
    return with_branch(weight, branch);
  }

  at::Tensor with_branch(const at::Tensor& weight, const adapters::Branch& branch) const {
    const at::ScalarType type =
        options_.weight_type ? memory_type_of(*options_.weight_type) : weight.scalar_type();
    at::Tensor result = type == weight.scalar_type() ? weight : at::empty_like(weight, type);
    adapters::add_branch(weight, branch, result);
    return result;
  }

  // LoRA of an embedding: W + scale * (B A)^T.
  at::Tensor with_columns(const std::string& name, const at::Tensor& weight, const Parts& parts) {
    const at::Tensor a = read_tensor(adapter_, *parts.columns).to(at::kFloat);
    const at::Tensor b = read_tensor(adapter_, *parts.b).to(at::kFloat);
    const double scale = scale_of(name.substr(0, name.rfind('.')), a.size(0));
    // DoRA's lengths are those of columns: the rows of the transposed sum.
    if (parts.magnitude) {
      adapters::Branch columns{.a = a, .b = b, .magnitude = {}, .scale = scale};
      columns.magnitude = read_tensor(adapter_, *parts.magnitude).to(at::kFloat).reshape({-1});
      return with_branch(weight.t().contiguous(), columns).t().contiguous();
    }
    return with_branch(weight, {.a = b.t(), .b = a.t(), .magnitude = {}, .scale = scale});
  }

  double scale_of(const std::string& module, int64_t rank) const {
    return adapters::scaling_of(settings_, module, rank);
  }

  SavedState& base_;
  SavedState& adapter_;
  MergeOptions options_;
  adapters::LoraOptions settings_;
  std::string base_note_;  // what is not known of the adapter's base
  std::map<std::string, size_t> in_base_;
  std::string embedding_ = kEmbedding;  // the base's name of it
  std::map<std::string, Parts> parts_;
  std::optional<size_t> projection_a_, projection_b_;  // VeRA's matrices in the adapter's file
  nn::VeraProjection projection_;
  int64_t rank_ = 0, most_in_ = 0, most_out_ = 0;  // of VeRA's layers
  std::optional<size_t> untied_from_;  // the base's embedding, of which the head was a name
  std::optional<int64_t> num_rows_;    // of embedding and output layer, where the vocabulary grew
};

}  // namespace

std::vector<std::string> merge_adapter(SavedState& base, SavedState& adapter, const fs::path& out,
                                       const MergeOptions& options) {
  return Merger(base, adapter, options).write(out);
}

}  // namespace strata::checkpoint
