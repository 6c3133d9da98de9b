// Reading and writing bitsandbytes' quant_state. Never: arithmetic on codes.
#include "strata/hf/bitsandbytes.h"

#include <array>

#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_form.h"
#include "strata/hf/mxfp4.h"

namespace strata::hf {
namespace {

constexpr std::array<const char*, 2> kKinds = {"nf4", "fp4"};

std::string state_name(const std::string& name, const std::string& kind) {
  return name + ".quant_state.bitsandbytes__" + kind;
}

// "model.layers.0.q_proj" of "model.layers.0.q_proj.weight": 8-bit state lies beside the weight.
std::string module_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

[[noreturn]] void fail(const ModelFolder& folder, const std::string& name, const std::string& found,
                       const std::string& expected) {
  throw FormatError("{}: quantised tensor \"{}\": found {}, expected {}; save the model again",
                    folder.path().string(), name, found, expected);
}

const TensorInfo& require(const ModelFolder& folder, const std::string& name, DType dtype,
                          int64_t numel) {
  const TensorInfo* info = folder.find(name);
  if (info == nullptr) fail(folder, name, "no such tensor", "the whole state of bitsandbytes");
  if (info->dtype != dtype || info->numel() != numel) {
    fail(folder, name, fmt::format("{} elements of {}", info->numel(), name_of(info->dtype)),
         fmt::format("{} of {}", numel, name_of(dtype)));
  }
  return *info;
}

Json parse_state(const ModelFolder& folder, const TensorInfo& info) {
  const auto bytes = folder.bytes(info);
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                    folder.path().string() + ": " + info.name);
}

template <typename T>
T field(const ModelFolder& folder, const TensorInfo& state, const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) fail(folder, state.name, fmt::format("no {}", key), "it");
  try {
    return found->get<T>();
  } catch (const Json::exception&) {
    fail(folder, state.name, fmt::format("{} {}", key, dump_python(*found, -1)), "another type");
  }
}

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

QuantizedWeight read_4bit(const ModelFolder& folder, const std::string& name,
                          const std::string& kind, const TensorInfo& state) {
  const Json json = parse_state(folder, state);
  if (!json.is_object()) fail(folder, state.name, "no object", "a JSON object");
  QuantizedWeight weight;
  weight.kind = kind;
  weight.shape = field<std::vector<int64_t>>(folder, state, json, "shape");
  weight.blocksize = field<int64_t>(folder, state, json, "blocksize");
  weight.dtype = field<std::string>(folder, state, json, "dtype");
  if (weight.blocksize < 32 || weight.blocksize > 4096 ||
      (weight.blocksize & (weight.blocksize - 1)) != 0) {
    fail(folder, state.name, fmt::format("blocksize {}", weight.blocksize),
         "a power of two from 32 to 4096");
  }
  int64_t numel = 1;
  for (const int64_t size : weight.shape) {
    if (size < 0 || (size > 0 && numel > (int64_t{1} << 48) / size)) {
      fail(folder, state.name, fmt::format("shape [{}]", fmt::join(weight.shape, ", ")), "sizes");
    }
    numel *= size;
  }
  weight.codes = folder.find(name);
  // Any quant_storage: the same bytes under another element type, filled up to whole elements.
  const auto bytes = static_cast<int64_t>(weight.codes->size_bytes());
  if (bytes != divide_up(numel, 2)) {
    fail(folder, name, fmt::format("{} bytes", bytes),
         fmt::format("{} for [{}]", divide_up(numel, 2), fmt::join(weight.shape, ", ")));
  }
  weight.map = &require(folder, name + ".quant_map", DType::kF32, 16);
  const int64_t blocks = divide_up(numel, weight.blocksize);
  if (folder.find(name + ".nested_absmax") == nullptr) {
    weight.scales = &require(folder, name + ".absmax", DType::kF32, blocks);
    return weight;
  }
  weight.nested_blocksize = field<int64_t>(folder, state, json, "nested_blocksize");
  weight.nested_offset = field<double>(folder, state, json, "nested_offset");
  if (weight.nested_blocksize != 256) {
    fail(folder, state.name, fmt::format("nested_blocksize {}", weight.nested_blocksize), "256");
  }
  weight.scales = &require(folder, name + ".absmax", DType::kU8, blocks);
  weight.nested = &require(folder, name + ".nested_absmax", DType::kF32, divide_up(blocks, 256));
  weight.nested_map = &require(folder, name + ".nested_quant_map", DType::kF32, 256);
  return weight;
}

// Older versions stored 8-bit codes in the order that a GPU multiplies: 1 col32, 2 col_turing, 3
// col_ampere.
void require_rows(const ModelFolder& folder, const std::string& name) {
  const TensorInfo* info = folder.find(name);
  if (info == nullptr) return;
  const auto bytes = folder.bytes(*info);
  for (const std::byte byte : bytes) {
    if (byte == std::byte{0}) continue;
    fail(folder, name, fmt::format("the order {} of codes", static_cast<int>(byte)),
         "0 (rows), in which bitsandbytes has stored them since 0.43");
  }
}

}  // namespace

bool announces_codes(const Json& model_config) {
  const auto entry = model_config.find("quantization_config");
  if (entry == model_config.end() || entry->is_null()) return false;
  if (entry->is_object()) {
    return !announces_mxfp4(model_config) && !announces_fp8(model_config) &&
           !announces_ints(model_config);
  }
  throw ConfigError(
      "config.json: quantization_config: found {}, expected an object, or null for plain weights; "
      "correct it",
      dump_python(*entry, -1));
}

std::optional<QuantizedWeight> find_quantized_weight(const ModelFolder& folder,
                                                     const std::string& name) {
  const TensorInfo* codes = folder.find(name);
  if (codes == nullptr) return {};
  for (const char* kind : kKinds) {
    if (const TensorInfo* state = folder.find(state_name(name, kind))) {
      return read_4bit(folder, name, kind, *state);
    }
  }
  if (codes->dtype != DType::kI8 || codes->shape.size() != 2) return {};
  QuantizedWeight weight;
  weight.kind = "int8";
  weight.shape = codes->shape;
  weight.codes = codes;
  weight.scales = &require(folder, module_of(name) + ".SCB", DType::kF32, codes->shape[0]);
  require_rows(folder, module_of(name) + ".weight_format");
  return weight;
}

std::vector<std::string> quantized_companions(const ModelFolder& folder, const std::string& name) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& companion) {
    if (folder.find(companion) != nullptr) found.push_back(companion);
  };
  for (const char* part : {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"}) {
    add(name + part);
  }
  for (const char* kind : kKinds) add(state_name(name, kind));
  add(module_of(name) + ".SCB");
  add(module_of(name) + ".weight_format");
  return found;
}

std::string quant_state_json(const QuantizedWeight& weight) {
  Json json;
  json["quant_type"] = weight.kind;
  json["blocksize"] = weight.blocksize;
  json["dtype"] = weight.dtype;
  json["shape"] = weight.shape;
  if (weight.nested != nullptr) {
    json["nested_blocksize"] = weight.nested_blocksize;
    json["nested_dtype"] = "float32";
    json["nested_offset"] = weight.nested_offset;
  }
  return dump_python(json, /*indent=*/-1, /*sort_keys=*/false);
}

}  // namespace strata::hf
