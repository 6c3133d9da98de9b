#include "strata/checkpoint/gguf/tensor_plan.h"

#include <charconv>
#include <map>
#include <set>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/checkpoint/convert/convert.h"
#include "strata/checkpoint/manifest.h"
#include "strata/hf/weight_names.h"
#include "strata/models/gpt2/config.h"
#include "strata/models/registry.h"

namespace strata::checkpoint {
namespace {

constexpr const char* kHead = "lm_head.weight";

// "self_attn.q_proj" and "weight" of "self_attn.q_proj.weight".
std::pair<std::string, std::string> split_last(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return {name, ""};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

// The number at the beginning of `text`, which loses it and the dot after it.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto length = static_cast<size_t>(end - text.data());
  if (error != std::errc() || length == text.size() || text[length] != '.') return std::nullopt;
  text.remove_prefix(length + 1);
  return number;
}

// What GGUF calls a weight; `expert`: which of all in the tensor, none: it is the tensor's only
// one.
struct GgufName {
  std::string name;
  std::optional<int64_t> expert;
};

std::optional<GgufName> name_of(const GgufFamily& family, const std::string& weight) {
  const auto [module, part] = split_last(weight);
  if (const auto other = family.other_names.find(module); other != family.other_names.end()) {
    return GgufName{other->second + "." + part, {}};
  }
  std::string_view rest = module;
  if (!rest.starts_with(family.layers)) return std::nullopt;
  rest.remove_prefix(family.layers.size());
  const auto layer = take_number(rest);
  if (!layer) return std::nullopt;
  const std::string block = fmt::format("blk.{}.", *layer);
  if (const auto known = family.layer_names.find(std::string(rest));
      known != family.layer_names.end()) {
    return GgufName{block + known->second + "." + part, {}};
  }
  if (family.experts.empty() || !rest.starts_with(family.experts)) return std::nullopt;
  rest.remove_prefix(family.experts.size());
  const auto expert = take_number(rest);
  const auto known = family.expert_names.find(std::string(rest));
  if (!expert || known == family.expert_names.end()) return std::nullopt;
  return GgufName{block + known->second + "." + part, expert};
}

class Planner {
 public:
  Planner(SavedState& state, const Json& config, const GgufFamily& family, hf::GgufType type)
      : state_(state), config_(config), family_(family), type_(type) {
    for (size_t i = 0; i < state.tensors().size(); ++i) {
      const SavedTensor& tensor = state.tensors()[i];
      if (!tensor.is_parameter()) continue;
      const std::string name = hf::name_in_model(config, whole_name(tensor.weight));
      if (places_.emplace(name, i).second) continue;
      throw FormatError("{}: found two weights for \"{}\", expected one; use a folder with one",
                        state.path().string(), name);
    }
  }

  TensorPlan plan() {
    const bool has_head = has_own_head();
    const auto model = models::create_model(config_, {.is_untied = has_head});
    for (const nn::Parameter* parameter : model->parameters()) add(*parameter);
    for (const auto& [name, values] : family_.extra_tensors) add_values(name, values);
    places_.erase(kHead);  // a second name of the embedding
    for (const auto& [name, place] : places_) {
      if (taken_.contains(place) || model->ignores(name)) continue;
      throw FormatError(
          "{}: found \"{}\", which config.json does not imply, expected only the model's weights; "
          "use the config.json that belongs to them",
          state_.path().string(), state_.tensors()[place].weight);
    }
    if (num_kept_ > 0) {
      plan_.notes.push_back(fmt::format("{} in F16: rows are no multiple of {} for {}",
                                        counted(num_kept_, "tensor"), hf::kQ8Elements,
                                        hf::gguf_type_name(type_)));
    }
    return std::move(plan_);
  }

 private:
  // The first files of GPT-2 hold the names of its body alone.
  std::string whole_name(const std::string& name) const {
    constexpr std::string_view kBody = "transformer.";
    const bool is_bare =
        family_.architecture == "gpt2" && name != kHead && !name.starts_with(kBody);
    return is_bare ? std::string(kBody) + name : name;
  }

  std::string checksum_of(size_t place) {
    std::vector<std::byte> bytes(state_.tensors()[place].size_bytes());
    state_.read(place, bytes);
    return checksum(bytes.data(), bytes.size());
  }

  // A file may hold the embedding under both its names.
  bool has_own_head() {
    const auto head = places_.find(kHead);
    if (head == places_.end()) return false;
    std::string embedding;
    for (const auto& [module, name] : family_.other_names) {
      if (name == "token_embd") embedding = module + ".weight";
    }
    const auto tied = places_.find(embedding);
    const SavedTensor& tensor = state_.tensors()[head->second];
    const bool is_same = tied != places_.end() &&
                         state_.tensors()[tied->second].shape == tensor.shape &&
                         state_.tensors()[tied->second].dtype == tensor.dtype &&
                         checksum_of(tied->second) == checksum_of(head->second);
    const Json is_tied = config_.value("tie_word_embeddings", Json());
    if (is_same && is_tied != false) return false;
    if (family_.can_untie) return true;
    if (is_same) return false;
    throw ConfigError(
        "{}: found an output layer with other values than the embedding, expected one that is tied "
        "to it, as llama.cpp has no other in {}; train with tie_word_embeddings",
        state_.path().string(), family_.architecture);
  }

  size_t find(const std::string& weight, const std::vector<int64_t>& shape) {
    const auto found = places_.find(weight);
    if (found == places_.end()) {
      throw FormatError(
          "{}: found no tensor \"{}\", expected every weight that config.json implies; "
          "use a complete checkpoint",
          state_.path().string(), weight);
    }
    const SavedTensor& tensor = state_.tensors()[found->second];
    if (tensor.shape != shape) {
      throw FormatError(
          "{}: tensor \"{}\" has shape [{}], config.json implies [{}]; "
          "use the config.json that belongs to these weights",
          state_.path().string(), weight, fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
    }
    const hf::DType type = tensor.dtype;
    if (type != hf::DType::kF32 && type != hf::DType::kBF16 && type != hf::DType::kF16) {
      throw ConfigError(
          "{}: tensor \"{}\" is of type {}, expected F32, BF16 or F16; "
          "use a model with plain weights",
          state_.path().string(), weight, hf::name_of(type));
    }
    taken_.insert(found->second);
    return found->second;
  }

  void add(const nn::Parameter& parameter) {
    const auto name = name_of(family_, parameter.name());
    if (!name) {
      throw ConfigError(
          "{}: found the weight \"{}\", expected those of {} in llama.cpp, "
          "which has no such weight; use another model",
          state_.path().string(), parameter.name(), family_.architecture);
    }
    const size_t place = find(parameter.name(), parameter.shape());
    if (name->expert) return add_expert(*name, place);
    const std::vector<int64_t>& shape = state_.tensors()[place].shape;
    PlannedTensor planned{.tensor = {name->name, {}, shape}, .sources = {place}};
    if (models::is_conv1d_weight(config_, parameter.name())) {
      planned.is_transposed = true;
      std::swap(planned.tensor.shape[0], planned.tensor.shape[1]);
    }
    const auto [module, part] = split_last(name->name);
    if (family_.turns_pairs && module.ends_with(".attn_q"))
      planned.heads_in_pairs = family_.query_heads;
    if (family_.turns_pairs && module.ends_with(".attn_k"))
      planned.heads_in_pairs = family_.key_heads;
    const bool is_norm = module.ends_with("_norm");
    if (is_norm && family_.norms_start_at_one) planned.added = 1;
    if (module == "token_embd") plan_.num_rows = shape[0];
    push(std::move(planned));
  }

  // Experts come one after the other, all of a layer's.
  void add_expert(const GgufName& name, size_t place) {
    const auto [found, is_first] = experts_.emplace(name.name, plan_.tensors.size());
    if (is_first) {
      std::vector<int64_t> shape = state_.tensors()[place].shape;
      shape.insert(shape.begin(), family_.num_experts);
      PlannedTensor planned{.tensor = {name.name, {}, std::move(shape)}};
      planned.sources.resize(static_cast<size_t>(family_.num_experts));
      push(std::move(planned));
    }
    plan_.tensors[found->second].sources.at(static_cast<size_t>(*name.expert)) = place;
  }

  void add_values(const std::string& name, const std::vector<float>& values) {
    PlannedTensor planned{.tensor = {name, {}, {static_cast<int64_t>(values.size())}}};
    planned.values = values;
    push(std::move(planned));
  }

  hf::GgufType type_of(const hf::GgufTensor& tensor) {
    const bool stays = tensor.shape.size() < 2 || tensor.name == "position_embd.weight" ||
                       tensor.name.ends_with(".ffn_gate_inp.weight");
    if (stays) return hf::GgufType::kF32;
    const auto block = hf::gguf_block(type_);
    if (static_cast<uint64_t>(tensor.shape.back()) % block->elements == 0) return type_;
    ++num_kept_;
    return hf::GgufType::kF16;
  }

  void push(PlannedTensor planned) {
    planned.tensor.type = type_of(planned.tensor);
    plan_.tensors.push_back(std::move(planned));
  }

  SavedState& state_;
  const Json& config_;
  const GgufFamily& family_;
  hf::GgufType type_;
  std::map<std::string, size_t> places_;
  std::set<size_t> taken_;
  std::map<std::string, size_t> experts_;
  int64_t num_kept_ = 0;
  TensorPlan plan_;
};

}  // namespace

hf::GgufType gguf_type_of(const SavedState& state) {
  switch (result_type_of(state).value_or(plain_type(state))) {
    case hf::DType::kF16:
      return hf::GgufType::kF16;
    case hf::DType::kBF16:
      return hf::GgufType::kBF16;
    default:
      return hf::GgufType::kF32;
  }
}

TensorPlan plan_tensors(SavedState& state, const Json& config, const GgufFamily& family,
                        hf::GgufType type) {
  return Planner(state, config, family, type).plan();
}

}  // namespace strata::checkpoint
