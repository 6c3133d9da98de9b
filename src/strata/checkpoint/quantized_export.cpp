#include "strata/checkpoint/quantized_export.h"

#include <array>
#include <map>
#include <unordered_map>

#include <ATen/ops/from_blob.h>

#include "strata/base/abandoned.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/page_advice.h"
#include "strata/checkpoint/base_mark.h"
#include "strata/checkpoint/convert/convert.h"
#include "strata/checkpoint/convert/decoded_state.h"
#include "strata/checkpoint/convert/saved_values.h"
#include "strata/checkpoint/element_type.h"
#include "strata/checkpoint/export.h"
#include "strata/checkpoint/export_files.h"
#include "strata/hf/bitsandbytes.h"
#include "strata/hf/formats/torch_types.h"
#include "strata/hf/weight_names.h"
#include "strata/models/registry.h"
#include "strata/nn/linear.h"
#include "strata/ops/quant/codebook.h"
#include "strata/ops/quant/range_quantizer.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;
using ops::quant::Format;
using ops::quant::Kind;
using ops::quant::RangeQuantizer;

// The longest text of a double: what stands for nested_offset until it is known.
constexpr double kLongestNumber = -2.2250738585072014e-308;

// Memory for the codes of one range after the other.
class CodeBuffer {
 public:
  std::span<uint8_t> take(size_t bytes) {
    if (codes_.size() < bytes) codes_.resize(bytes);
    return std::span(codes_).first(bytes);
  }

 private:
  std::vector<uint8_t> codes_;
};

// The tensors of one quantised weight.
class Parts {
 public:
  // `storage`: of codes of 4 bits. `dtype`: of the weight before.
  Parts(std::string name, const Format& format, hf::DType storage, std::vector<int64_t> shape,
        hf::DType dtype)
      : name_(std::move(name)), format_(format) {
    const auto layout = ops::quant::layout_of(format, shape[0], shape[1]);
    state_.kind = std::string(ops::quant::name_of(format.kind));
    state_.shape = shape;
    state_.blocksize = format.block;
    state_.dtype = std::string(hf::torch_dtype_of(dtype));
    if (format.kind == Kind::kInt8) {
      const std::string module = name_.substr(0, name_.rfind('.'));
      specs_ = {{name_, hf::DType::kI8, shape},
                {module + ".SCB", hf::DType::kF32, {layout.num_scales}},
                {module + ".weight_format", hf::DType::kU8, {}}};
      return;
    }
    const auto element = static_cast<int64_t>(hf::size_of(storage));
    if (layout.num_codes % element != 0) {
      throw ConfigError(
          "{}: found {} bytes of codes, expected whole elements of {} (bnb_4bit_quant_storage); "
          "choose uint8, or leave the layer as it is (llm_int8_skip_modules)",
          name_, layout.num_codes, hf::torch_dtype_of(storage));
    }
    specs_ = {
        {name_, storage, {layout.num_codes / element, 1}},
        {name_ + ".absmax", format.nested ? hf::DType::kU8 : hf::DType::kF32, {layout.num_scales}},
        {name_ + ".quant_map", hf::DType::kF32, {16}}};
    if (format.nested) {
      specs_.push_back({name_ + ".nested_absmax", hf::DType::kF32, {layout.num_nested}});
      specs_.push_back({name_ + ".nested_quant_map", hf::DType::kF32, {256}});
    }
    specs_.push_back({state_name(), hf::DType::kU8, {state_size()}});
  }

  const std::vector<hf::TensorSpec>& specs() const { return specs_; }

  // `values`: the weight; it is rounded to `type` before, where there is one. Range by range, so
  // that codes are written from memory that is near the processor.
  void write(const at::Tensor& values, std::optional<at::ScalarType> type, CodeBuffer& buffer,
             ExportFiles& files) const {
    RangeQuantizer quantizer(format_, state_.shape[0], state_.shape[1]);
    const at::Tensor flat = values.view({-1});
    files.append(name_, {});  // there may be no range
    for (int64_t begin = 0; begin < flat.numel(); begin += quantizer.at_once()) {
      at::Tensor range = flat.narrow(0, begin, std::min(quantizer.at_once(), flat.numel() - begin));
      map_pages({static_cast<const std::byte*>(range.const_data_ptr()), range.nbytes()});
      // As transformers does: first the type asked for, then codes.
      if (type) range = range.to(*type);
      const std::span<uint8_t> codes = buffer.take(num_codes(range.numel()));
      quantizer.quantize(range, begin, codes.data());
      files.append(name_, std::as_bytes(codes));
    }
    quantizer.finish();
    write_rest(quantizer, files);
  }

 private:
  size_t num_codes(int64_t elements) const {
    const auto count = static_cast<size_t>(elements);
    return format_.kind == Kind::kInt8 ? count : (count + 1) / 2;
  }

  // What belongs to all codes.
  void write_rest(const RangeQuantizer& quantizer, ExportFiles& files) const {
    const auto put = [&](const std::string& name, const at::Tensor& part) {
      files.write(name, {static_cast<const std::byte*>(part.const_data_ptr()), part.nbytes()});
    };
    if (format_.kind == Kind::kInt8) {
      const std::byte row_major{0};
      put(specs_[1].name, quantizer.scales());
      files.write(specs_[2].name, {&row_major, 1});
      return;
    }
    put(name_ + ".absmax", quantizer.scales());
    files.write(name_ + ".quant_map", std::as_bytes(std::span(ops::quant::codes_of(format_.kind))));
    if (format_.nested) {
      put(name_ + ".nested_absmax", quantizer.nested());
      files.write(name_ + ".nested_quant_map",
                  std::as_bytes(std::span(ops::quant::dynamic_map(/*is_signed=*/true))));
    }
    const std::string text =
        state_text(format_.nested ? quantizer.mean().const_data_ptr<float>()[0] : 0);
    files.write(state_name(), std::as_bytes(std::span(text)));
  }

  std::string state_name() const { return name_ + ".quant_state.bitsandbytes__" + state_.kind; }
  std::string text_with(double offset) const {
    hf::QuantizedWeight state = state_;
    static const hf::TensorInfo kPresent{};
    if (format_.nested) state.nested = &kPresent;
    state.nested_offset = offset;
    return hf::quant_state_json(state);
  }
  int64_t state_size() const { return static_cast<int64_t>(text_with(kLongestNumber).size()); }
  // The header is written before the offset is known: spaces fill the text up, which JSON allows.
  std::string state_text(double offset) const {
    std::string text = text_with(offset);
    text.resize(static_cast<size_t>(state_size()), ' ');
    return text;
  }

  std::string name_;
  Format format_;
  hf::QuantizedWeight state_;
  std::vector<hf::TensorSpec> specs_;
};

// With an output layer of its own where the state holds one, whatever config.json says.
std::unique_ptr<models::Model> model_of(const SavedState& state, const fs::path& base) {
  const Json config = read_json_file(base / "config.json");
  if (!state.facts().base_fingerprint.empty()) {  // a folder of the weights, maybe under two names
    auto model = models::create_model(config, {});
    model->follow_tie(hf::ModelFolder(state.path()));
    return model;
  }
  const bool has_head = std::ranges::any_of(state.tensors(), [](const SavedTensor& tensor) {
    return tensor.is_parameter() && tensor.weight == "lm_head.weight";
  });
  return models::create_model(config, {.is_untied = has_head});
}

// The names of the weights that are quantised, by the rules for a base that is frozen.
std::map<std::string, std::vector<int64_t>> chosen_weights(
    const SavedState& state, const fs::path& base, const models::QuantizationOptions& options) {
  const auto model = model_of(state, base);
  for (nn::Parameter* parameter : model->parameters()) parameter->set_requires_grad(false);
  models::require_skip_modules(*model, options.skip_modules);
  models::QuantizationOptions of_layers = options;
  of_layers.takes_experts = false;
  models::quantize_base(*model, of_layers);
  std::map<std::string, std::vector<int64_t>> chosen;
  for (const nn::Parameter* parameter : model->parameters()) {
    if (parameter->quantization()) chosen[parameter->name()] = parameter->shape();
  }
  return chosen;
}

std::string_view compute_name(const nn::Quantization& quantization) {
  if (quantization.compute == at::kHalf) return "float16";
  return quantization.compute == at::kBFloat16 ? "bfloat16" : "float32";
}

Json quantization_config(const models::QuantizationOptions& options, hf::DType storage) {
  const nn::Quantization& quantization = options.quantization;
  const bool in_8bit = quantization.format.kind == Kind::kInt8;
  Json json = {
      {"_load_in_4bit", !in_8bit},
      {"_load_in_8bit", in_8bit},
      {"bnb_4bit_compute_dtype", compute_name(quantization)},
      {"bnb_4bit_quant_storage", hf::torch_dtype_of(storage)},
      {"bnb_4bit_quant_type", in_8bit ? "fp4" : ops::quant::name_of(quantization.format.kind)},
      {"bnb_4bit_use_double_quant", quantization.format.nested},
      {"llm_int8_enable_fp32_cpu_offload", false},
      {"llm_int8_has_fp16_weight", false},
      {"llm_int8_skip_modules", options.skip_modules ? Json(*options.skip_modules) : Json(nullptr)},
      {"llm_int8_threshold", quantization.threshold},
      {"load_in_4bit", !in_8bit},
      {"load_in_8bit", in_8bit},
      {"quant_method", "bitsandbytes"}};
  if (!in_8bit && quantization.format.block != 64) {
    json["bnb_4bit_blocksize"] = quantization.format.block;
  }
  return json;
}

// Where the state maps it, unless other tensors before it have put it between two addresses of its
// type: a copy would take as long as quantising. Never to be written to.
at::Tensor view_tensor(SavedState& state, size_t index) {
  const SavedTensor& tensor = state.tensors()[index];
  const std::span<const std::byte> mapped = state.view(index);
  const auto address = reinterpret_cast<uintptr_t>(mapped.data());
  if (!mapped.empty() && address % hf::size_of(tensor.dtype) == 0) {
    return at::from_blob(const_cast<std::byte*>(mapped.data()), tensor.shape,
                         at::TensorOptions().dtype(memory_type_of(tensor.dtype)));
  }
  return read_tensor(state, index);
}

void require_model(const SavedState& state, const fs::path& base) {
  if (state.is_adapter()) {
    throw ConfigError("{}: found an adapter, expected a whole model; merge it first",
                      state.path().string());
  }
  if (base.empty()) {
    throw ConfigError(
        "{}: found no config.json, expected the folder of a model; put the base's next to the "
        "weights",
        state.path().string());
  }
  if (is_quantized_folder(base)) {
    throw ConfigError(
        "{}: found a quantised model, expected plain weights; name the model it was "
        "made from",
        base.string());
  }
}

class QuantizedExport {
 public:
  QuantizedExport(SavedState& state, const fs::path& base, const QuantizedExportOptions& options)
      : state_(state),
        options_(options),
        config_(read_json_file(base / "config.json")),
        chosen_(chosen_weights(state, base, options.quantization)) {
    for (size_t i = 0; i < state.tensors().size(); ++i) {
      const SavedTensor& tensor = state.tensors()[i];
      if (tensor.is_parameter()) add(tensor);
    }
    for (const auto& [name, shape] : chosen_) {
      if (parts_.contains(name)) continue;
      throw FormatError(
          "{}: found no tensor \"{}\", expected every weight that config.json implies",
          state.path().string(), name);
    }
  }

  void write(const fs::path& folder) {
    const hf::ShardPlan plan = hf::plan_shards(sizes_, options_.max_shard_size);
    ExportFiles files(folder, Trained::kUnknown, *options_.files);
    files.add(plan, specs_, adapter_metadata(mark()));
    if (plan.is_indexed()) files.add_text(hf::kModelIndexFile, plan.index_json(num_parameters_));
    CodeBuffer buffer;
    std::optional<at::ScalarType> type;
    if (options_.weight_type) type = memory_type_of(*options_.weight_type);
    for (size_t i = 0; i < state_.tensors().size(); ++i) {
      const SavedTensor& tensor = state_.tensors()[i];
      if (!tensor.is_parameter()) continue;
      at::Tensor value = view_tensor(state_, i);
      if (const auto parts = parts_.find(tensor.weight); parts != parts_.end()) {
        parts->second.write(value, type, buffer, files);
        state_.forget(i);
        continue;
      }
      const std::string name = hf::name_in_folder(config_, tensor.weight);
      value = value.to(memory_type_of(specs_.at(name).dtype));
      files.write(name, {static_cast<const std::byte*>(value.const_data_ptr()), value.nbytes()});
      state_.forget(i);
    }
    files.publish();
  }

 private:
  // Of the weights that become codes; empty where they are no model folder.
  std::string mark() const {
    if (state_.facts().base_fingerprint.empty()) return "";
    const hf::DType type = options_.weight_type.value_or(hf::DType::kF32);
    return base_mark(hf::ModelFolder(state_.path()),
                     {{.quantization = options_.quantization, .type = memory_type_of(type)}});
  }

  void add(const SavedTensor& tensor) {
    if (!hf::is_buffer(tensor.weight))
      num_parameters_ += tensor.size_bytes() / hf::size_of(tensor.dtype);
    const auto chosen = chosen_.find(tensor.weight);
    if (chosen == chosen_.end()) {
      const bool is_rounded =
          !hf::keeps_float32(tensor.weight) && at::isFloatingType(memory_type_of(tensor.dtype));
      add_spec({hf::name_in_folder(config_, tensor.weight),
                is_rounded ? options_.weight_type.value_or(tensor.dtype) : tensor.dtype,
                tensor.shape});
      return;
    }
    if (tensor.shape != chosen->second) {
      throw FormatError("{}: tensor \"{}\" has shape [{}], config.json implies [{}]",
                        state_.path().string(), tensor.weight, fmt::join(tensor.shape, ", "),
                        fmt::join(chosen->second, ", "));
    }
    const Parts parts(tensor.weight, options_.quantization.quantization.format,
                      options_.quant_storage, tensor.shape,
                      options_.weight_type.value_or(tensor.dtype));
    for (const hf::TensorSpec& spec : parts.specs()) add_spec(spec);
    parts_.emplace(tensor.weight, parts);
  }

  void add_spec(const hf::TensorSpec& spec) {
    uint64_t bytes = hf::size_of(spec.dtype);
    for (const int64_t size : spec.shape) bytes *= static_cast<uint64_t>(size);
    specs_[spec.name] = spec;
    sizes_.push_back({spec.name, bytes});
  }

  SavedState& state_;
  QuantizedExportOptions options_;
  Json config_;
  std::map<std::string, std::vector<int64_t>> chosen_;
  std::map<std::string, Parts> parts_;
  std::unordered_map<std::string, hf::TensorSpec> specs_;
  std::vector<hf::TensorBytes> sizes_;
  uint64_t num_parameters_ = 0;
};

}  // namespace

std::vector<std::string> convert_quantized(SavedState& state, const fs::path& out,
                                           const QuantizedExportOptions& options) {
  require_new_folder(out);
  const fs::path base = base_model_of(state);
  require_model(state, base);
  QuantizedExport exported(state, base, options);
  std::vector<std::string> notes = remove_abandoned(out, std::array{state.path(), base});
  AtomicFolder folder(out, *options.files);
  const WriteClaim claim(folder.path());
  exported.write(folder.path());
  copy_companions(
      base, folder.path(),
      {.type = options.weight_type, .num_labels = labels_of_head(state), .files = options.files});
  Json config = read_json_file(folder.path() / "config.json");
  config["quantization_config"] = quantization_config(options.quantization, options.quant_storage);
  write_file_atomically(folder.path() / "config.json", dump_python(config) + "\n", *options.files);
  require_new_folder(out);  // what came there meanwhile stays
  folder.commit();
  if (state.has_optimizer()) {
    notes.emplace_back("the optimizer's state is left out: this format has no place for it");
  }
  return notes;
}

}  // namespace strata::checkpoint
