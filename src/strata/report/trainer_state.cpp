#include "strata/report/trainer_state.h"

#include <string_view>

#include "strata/base/error.h"

namespace strata::report {
namespace {

template <typename T>
Json nullable(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json control_of(const TrainerState& state) {
  return {{"args",
           {{"should_epoch_stop", false},
            {"should_evaluate", state.should_evaluate},
            {"should_log", state.should_log},
            {"should_save", state.should_save},
            {"should_training_stop", state.should_training_stop}}},
          {"attributes", Json::object()}};
}

constexpr const char* kEarlyStopping = "EarlyStoppingCallback";

Json callbacks_of(const TrainerState& state) {
  Json callbacks = {{"TrainerControl", control_of(state)}};
  if (const auto& stopping = state.early_stopping) {
    callbacks[kEarlyStopping] = {
        {"args",
         {{"early_stopping_patience", stopping->patience},
          {"early_stopping_threshold", stopping->threshold}}},
        {"attributes", {{"early_stopping_patience_counter", stopping->counter}}}};
  }
  return callbacks;
}

// Reads keys of one object and names the key in the error of a wrong type.
class Reader {
 public:
  Reader(const Json& object, const std::string& subject) : object_(object), subject_(subject) {}

  template <typename T>
  void read(const char* key, T& target) const {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) {
      return;
    }
    try {
      target = found->template get<T>();
    } catch (const Json::exception&) {
      throw FormatError(
          "{}: found \"{}\": {}, expected another type; restore the file or resume from "
          "an older checkpoint",
          subject_, key, dump_python(*found, -1));
    }
  }

  template <typename T>
  void read(const char* key, std::optional<T>& target) const {
    T value{};
    if (object_.contains(key) && !object_.at(key).is_null()) {
      read(key, value);
      target = value;
    }
  }

 private:
  const Json& object_;
  const std::string& subject_;
};

// Trainer writes a list where a callback was added twice: the first is meant.
std::optional<EarlyStoppingState> early_stopping_of(const Json& json, const std::string& subject) {
  const auto all = json.find("stateful_callbacks");
  if (all == json.end() || !all->is_object() || !all->contains(kEarlyStopping)) return {};
  Json callback = all->at(kEarlyStopping);
  if (callback.is_array() && !callback.empty()) callback = Json(callback.front());
  EarlyStoppingState state;
  const auto part = [&](const char* name) {
    const auto found = callback.is_object() ? callback.find(name) : callback.end();
    return found != callback.end() && found->is_object() ? *found : Json::object();
  };
  const Json args = part("args"), attributes = part("attributes");
  Reader(args, subject).read("early_stopping_patience", state.patience);
  Reader(args, subject).read("early_stopping_threshold", state.threshold);
  Reader(attributes, subject).read("early_stopping_patience_counter", state.counter);
  return state;
}

// What stands between the brackets of log_history. Row by row: a run of many steps has tens of
// thousands, which as one document took several times their memory at every save.
std::string rows_text(const std::vector<Json>& rows) {
  std::string text;
  for (const Json& row : rows) {
    text += text.empty() ? "\n    " : ",\n    ";
    for (const char c : dump_python(row, /*indent=*/2, /*sort_keys=*/true)) {
      text += c;
      if (c == '\n') text += "    ";
    }
  }
  return text.empty() ? text : text + "\n  ";
}

}  // namespace

std::string trainer_state_text(const TrainerState& state) {
  Json json = {
      {"best_global_step", nullable(state.best_global_step)},
      {"best_metric", nullable(state.best_metric)},
      {"best_model_checkpoint", nullable(state.best_model_checkpoint)},
      {"epoch", state.epoch},
      {"eval_steps", state.eval_steps},
      {"global_step", state.global_step},
      {"is_hyper_param_search", false},
      {"is_local_process_zero", true},
      {"is_world_process_zero", true},
      {"log_history", Json::array()},
      {"logging_steps", state.logging_steps},
      {"max_steps", state.max_steps},
      {"num_input_tokens_seen", state.num_input_tokens_seen},
      {"num_train_epochs", state.num_train_epochs},
      {"save_steps", state.save_steps},
      {"stateful_callbacks", callbacks_of(state)},
      {"total_flos", state.total_flos},
      {"train_batch_size", state.train_batch_size},
      {"trial_name", nullptr},
      {"trial_params", nullptr},
  };
  std::string text = dump_python(json, /*indent=*/2, /*sort_keys=*/true) + "\n";
  const std::string rows = rows_text(state.log_history);
  constexpr std::string_view kKey = "\n  \"log_history\": []";
  if (!rows.empty()) text.insert(text.find(kKey) + kKey.size() - 1, rows);
  return text;
}

TrainerState parse_trainer_state(std::string_view text, const std::string& subject) {
  const Json json = parse_json(text, subject);
  if (!json.is_object()) {
    throw FormatError("{}: found no JSON object, expected a trainer state; restore the file",
                      subject);
  }
  TrainerState state;
  const Reader reader(json, subject);
  reader.read("epoch", state.epoch);
  reader.read("global_step", state.global_step);
  reader.read("max_steps", state.max_steps);
  reader.read("logging_steps", state.logging_steps);
  reader.read("eval_steps", state.eval_steps);
  reader.read("save_steps", state.save_steps);
  reader.read("train_batch_size", state.train_batch_size);
  reader.read("num_train_epochs", state.num_train_epochs);
  reader.read("num_input_tokens_seen", state.num_input_tokens_seen);
  reader.read("total_flos", state.total_flos);
  reader.read("log_history", state.log_history);
  reader.read("best_metric", state.best_metric);
  reader.read("best_global_step", state.best_global_step);
  reader.read("best_model_checkpoint", state.best_model_checkpoint);
  state.early_stopping = early_stopping_of(json, subject);
  return state;
}

}  // namespace strata::report
