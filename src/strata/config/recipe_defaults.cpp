#include "strata/config/recipe_defaults.h"

#include <string>
#include <utility>

#include "strata/config/glue_tasks.h"

namespace strata::config {
namespace {

constexpr std::string_view kGlueName = "nyu-mll/glue";

// Defaults that a recipe brings: they count where nobody gave another value.
class RecipeDefaults {
 public:
  RecipeDefaults(Merge& merge, const Given& recipe)
      : merge_(merge), recipe_(recipe), brings_lora_(!is_given("use_peft_lora")) {}

  // The constants of peft_lora_seq2seq_accelerate_fsdp.py.
  void imply_peft_script() {
    if (!is_given("config_name")) imply("model_name_or_path", "t5-base");
    if (!is_given("dataset_name") && !is_given("train_file")) {
      const std::string folder = "temp/data/FinancialPhraseBank-v1.0/financial_phrase_bank_";
      imply("train_file", folder + "train.jsonl");
      imply("validation_file", folder + "val.jsonl");
    }
    if (!is_given("source_lang")) {
      imply("text_column", "sentence");
      imply("summary_column", "label");
    }
    for (const auto& [name, text] : {std::pair{"max_source_length", "64"},
                                     {"max_target_length", "2"},
                                     {"learning_rate", "1e-3"},
                                     {"weight_decay", "0.01"},
                                     {"max_grad_norm", "0"},
                                     {"num_train_epochs", "1"},
                                     {"eval_strategy", "epoch"},
                                     {"save_strategy", "no"},
                                     {"predict_with_generate", "true"}}) {
      imply(name, text);
    }
    if (brings_lora_) {
      imply("use_peft", "true");
      imply_lora("32", "0.1");
    }
    std::string model = merge_.text("model_name_or_path", "model");
    while (model.ends_with('/')) model.pop_back();
    imply("output_dir", model.substr(model.rfind('/') + 1) + "_LORA_SEQ_2_SEQ_LM");
  }

  // The defaults of DPOConfig, ORPOConfig and CPOConfig.
  void imply_pairs() { imply("learning_rate", "1e-6"); }

  // KTOConfig's.
  void imply_kto() {
    imply("learning_rate", "1e-6");
    imply("train_sampling_strategy", "sequential");
  }

  // RewardConfig's; its max_length leaves longer pairs out.
  void imply_reward() {
    imply("learning_rate", "1e-4");
    imply("long_rows", "drop");
  }

  // run_classification.py's, and what run_glue.py makes of a task; the rest is Trainer's.
  void imply_classify() {
    imply("max_length", "128");
    if (const Given* task = merge_.find("task_name")) imply_task(*task);
    imply_trainer();
  }

  // The defaults of Seq2SeqTrainingArguments and LoraConfig.
  void imply_trainer() {
    if (brings_lora_ && merge_.text("use_peft") == "true") imply_lora("8", "0");
    for (const auto& [name, text] : {std::pair{"learning_rate", "5e-5"},
                                     {"bf16", "false"},
                                     {"gradient_checkpointing", "false"},
                                     {"splits", "train,validation,test"}}) {
      imply(name, text);
    }
  }

 private:
  bool is_given(const char* name) const { return merge_.find(name) != nullptr; }
  void imply(const std::string& name, const std::string& text) {
    if (merge_.find(name) == nullptr) merge_.add(make_given(name, text, implied_by(recipe_)));
  }
  void imply_task(Given given) {
    const GlueTask* task = find_glue_task(canonical_text(given));
    if (task == nullptr) return;
    const auto bring = [&](const char* name, std::string_view text) {
      if (is_given(name) || text.empty()) return;
      merge_.add(make_given(name, std::string(text), implied_by(given)));
    };
    if (!is_given("dataset_name") && !is_given("train_file")) bring("dataset_name", kGlueName);
    if (merge_.text("dataset_name") == kGlueName) bring("dataset_config", task->name);
    // Columns of other names are those of one text where nobody names a second.
    if (!is_given("text_column_names")) {
      bring("text_pair_column_names", task->second);
      bring("text_column_names", task->first);
    }
    bring("do_regression", task->tells_number ? "true" : "false");
    bring("splits", task->splits);
  }
  void imply_lora(const std::string& alpha, const std::string& dropout) {
    imply("lora_r", "8");
    imply("lora_alpha", alpha);
    imply("lora_dropout", dropout);
  }

  Merge& merge_;
  const Given recipe_;
  const bool brings_lora_;
};

}  // namespace

void imply_recipe_defaults(Merge& merge) {
  const Given* recipe = merge.find("recipe");
  const std::string name = merge.text("recipe", "sft");
  if (name == "sft") return;
  RecipeDefaults defaults(merge, *recipe);
  if (name == "dpo" || name == "orpo" || name == "cpo") return defaults.imply_pairs();
  if (name == "kto") return defaults.imply_kto();
  if (name == "reward") return defaults.imply_reward();
  if (name == "classify") return defaults.imply_classify();
  if (name == "peft_lora_seq2seq") defaults.imply_peft_script();
  defaults.imply_trainer();
}

}  // namespace strata::config
