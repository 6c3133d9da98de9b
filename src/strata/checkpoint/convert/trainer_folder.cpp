// A checkpoint-N folder of transformers' Trainer (one rank or DDP): a model or adapter folder
// beside optimizer.pt, whose states have numbers for names. Owns: which number is which weight.
#include <algorithm>
#include <map>

#include "strata/adapters/adapter_options.h"
#include "strata/adapters/lora.h"
#include "strata/base/error.h"
#include "strata/checkpoint/convert/convert.h"
#include "strata/checkpoint/convert/peft_names.h"
#include "strata/checkpoint/convert/saved_formats.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/export_index.h"
#include "strata/hf/model_folder.h"
#include "strata/models/registry.h"
#include "strata/models/reward_head.h"
#include "strata/optim/adamw.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

// A weight that trained: its name in the model and in the folder's file.
struct TrainedWeight {
  std::string name;
  std::string in_file;
};

// A model with the output layer that its files hold, where they are there.
std::unique_ptr<models::Model> model_in(const fs::path& folder, const Json& config) {
  auto model = models::create_model(config, {});
  if (fs::exists(folder / hf::kModelWeightsFile) || fs::exists(folder / hf::kModelIndexFile)) {
    model->follow_tie(hf::ModelFolder(folder));
  }
  return model;
}

// The labels of the head for whole texts that the adapter brings; 0: it has none.
int64_t labels_of_adapter(const SavedState& adapter) {
  const auto head = std::ranges::find_if(adapter.tensors(), [](const SavedTensor& tensor) {
    return models::is_label_weight(name_in_run(tensor.weight)) && tensor.shape.size() == 2;
  });
  return head == adapter.tensors().end() ? 0 : head->shape[0];
}

class TrainerFolderState final : public SavedState {
 public:
  explicit TrainerFolderState(const fs::path& folder)
      : SavedState(folder),
        weights_(open_model_folder(folder)),
        optimizer_(open_torch_files(folder, {folder / "optimizer.pt"})) {
    facts_ = weights_->facts();
    facts_.format = weights_->is_adapter() ? "checkpoint of transformers' Trainer, a PEFT adapter"
                                           : "checkpoint of transformers' Trainer";
    facts_.num_updates = optimizer_->facts().num_updates;
    facts_.step = trainer_step(folder).value_or(facts_.num_updates.value_or(0));
    const std::vector<TrainedWeight> trained = trained_weights();
    add_weights(trained);
    add_optimizer(trained);
  }

  void read(size_t index, std::span<std::byte> out) override {
    const auto& [state, place] = sources_[index];
    state->read(place, out);
  }
  std::string verify() override { return optimizer_->verify() + " of optimizer.pt"; }

 private:
  // In the order of the model's named_parameters(), which decides the numbers.
  std::vector<TrainedWeight> trained_weights() const {
    if (!weights_->is_adapter()) {
      const auto model = model_in(path_, read_json_file(path_ / "config.json"));
      std::vector<TrainedWeight> trained;
      for (const nn::Parameter* parameter : model->parameters()) {
        if (!parameter->is_buffer()) trained.push_back({parameter->name(), parameter->name()});
      }
      return trained;
    }
    const hf::AdapterConfig config = hf::read_adapter_config(path_);
    const fs::path base = base_model_of(*weights_);
    if (base.empty()) {
      throw FormatError(
          "{}: found no config.json of the base model that it names (\"{}\"), expected it to name "
          "the states of optimizer.pt; put the right folder into base_model_name_or_path",
          (path_ / hf::kAdapterConfigFile).string(), config.base_model_name_or_path);
    }
    Json base_config = read_json_file(base / "config.json");
    if (const int64_t labels = labels_of_adapter(*weights_); labels > 0) {
      models::give_labels_of(path_, labels, base_config);
    }
    const auto model = model_in(base, base_config);
    const auto adapter = adapters::attach_lora(*model, adapters::lora_options_of(config));
    std::map<const nn::Parameter*, std::string> in_file;
    for (const adapters::AdapterTensor& tensor : adapter->tensors()) {
      in_file.emplace(tensor.parameter, tensor.name);
    }
    std::vector<TrainedWeight> trained;
    for (const nn::Parameter* parameter : model->parameters()) {
      const auto found = in_file.find(parameter);
      if (found != in_file.end()) trained.push_back({parameter->name(), found->second});
    }
    return trained;
  }

  void add_weights(const std::vector<TrainedWeight>& trained) {
    std::map<std::string, std::string> names;
    for (const TrainedWeight& weight : trained) names[weight.in_file] = weight.name;
    for (size_t i = 0; i < weights_->tensors().size(); ++i) {
      SavedTensor tensor = weights_->tensors()[i];
      if (const auto found = names.find(tensor.weight); found != names.end()) {
        tensor.weight = found->second;
      }
      tensors_.push_back(std::move(tensor));
      sources_.emplace_back(weights_.get(), i);
    }
  }

  // Trainer makes two groups, weights that decay and the rest; torch counts through both.
  void add_optimizer(const std::vector<TrainedWeight>& trained) {
    std::vector<std::string> by_number;
    for (const bool decays : {true, false}) {
      for (const TrainedWeight& weight : trained) {
        if (optim::is_decayed(weight.name) == decays) by_number.push_back(weight.name);
      }
    }
    std::map<std::string, const SavedTensor*> weights;
    for (const SavedTensor& tensor : tensors_) weights[tensor.weight] = &tensor;
    std::vector<SavedTensor> states;
    for (size_t i = 0; i < optimizer_->tensors().size(); ++i) {
      SavedTensor state = optimizer_->tensors()[i];
      const size_t number = number_of(state.weight, by_number.size());
      state.weight = by_number[number];
      check(state, weights);
      states.push_back(std::move(state));
      sources_.emplace_back(optimizer_.get(), i);
    }
    if (states.size() != 2 * by_number.size()) {
      throw FormatError(
          "{}: found {} states of an optimizer, expected the two of AdamW for each of the {} "
          "weights that trained; convert with --weights_only after moving optimizer.pt away",
          (path_ / "optimizer.pt").string(), states.size(), by_number.size());
    }
    tensors_.insert(tensors_.end(), states.begin(), states.end());
  }

  size_t number_of(const std::string& text, size_t count) const {
    const bool is_number = !text.empty() && text.size() < 9 &&
                           std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
    const size_t number = is_number ? std::stoul(text) : count;
    if (number < count) return number;
    throw FormatError("{}: found a state of the weight \"{}\", expected numbers below {}",
                      (path_ / "optimizer.pt").string(), text, count);
  }

  void check(const SavedTensor& state,
             const std::map<std::string, const SavedTensor*>& weights) const {
    const auto weight = weights.find(state.weight);
    const bool is_adamw = state.kind == "exp_avg" || state.kind == "exp_avg_sq";
    if (is_adamw && weight != weights.end() && weight->second->shape == state.shape) return;
    throw FormatError(
        "{}: found \"{}\" of shape [{}] for \"{}\", expected exp_avg and exp_avg_sq of the "
        "weight's "
        "shape; of other optimizers and orders of weights only the weights can be taken: move "
        "optimizer.pt away",
        (path_ / "optimizer.pt").string(), state.kind, fmt::join(state.shape, ", "), state.weight);
  }

  std::unique_ptr<SavedState> weights_;
  std::unique_ptr<SavedState> optimizer_;
  std::vector<std::pair<SavedState*, size_t>> sources_;
};

}  // namespace

std::optional<int64_t> trainer_step(const fs::path& folder) {
  const fs::path file = folder / "trainer_state.json";
  if (!fs::is_regular_file(file)) return std::nullopt;
  const Json state = read_json_file(file);
  if (!state.is_object() || !state.contains("global_step")) return std::nullopt;
  const Json& step = state["global_step"];
  if (!step.is_number_unsigned()) {
    throw FormatError("{}: found a global_step that is no count, expected one", file.string());
  }
  return step.get<int64_t>();
}

std::optional<int64_t> readable_step(const fs::path& folder) {
  try {
    return trainer_step(folder);
  } catch (const FormatError&) {
    return std::nullopt;
  }
}

std::unique_ptr<SavedState> open_trainer_folder(const fs::path& folder) {
  return std::make_unique<TrainerFolderState>(folder);
}

}  // namespace strata::checkpoint
