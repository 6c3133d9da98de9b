#include "strata/config/recipes.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "strata/base/error.h"

namespace strata::config {
namespace {

RecipeRow sft() {
  return {.name = "sft",
          .command = "sft",
          .summary = "fine-tune a causal language model on conversations or text",
          .description = "Fine-tunes a causal language model. Flags take hyphens or underscores.\n",
          .settings = {"dataset_text_field", "max_length", "packing", "packing_strategy",
                       "eval_packing", "completion_only_loss", "assistant_only_loss",
                       "chat_template_path", "chat_template_format", "add_special_tokens",
                       "append_concat_token", "long_rows", "neftune_noise_alpha",
                       "label_smoothing_factor", "block_size"},
          .figures = {"mean_token_accuracy", "entropy", "aux_loss"}};
}

RecipeRow seq2seq() {
  return {.name = "seq2seq",
          .command = "seq2seq",
          .summary = "fine-tune an encoder-decoder model (T5, BART) on pairs of texts",
          .description =
              "Fine-tunes an encoder-decoder model (T5, BART) on pairs of texts. Flags take "
              "hyphens or\n"
              "underscores; those with \"seq2seq:\" below are this recipe's own.\n",
          .has_encoder = true,
          .task_type = "SEQ_2_SEQ_LM",
          .script_parts = {"seq2seq", "run_translation", "run_summarization"},
          .settings = {"text_column", "summary_column", "source_lang", "target_lang", "lang",
                       "forced_bos_token", "source_prefix", "max_source_length",
                       "max_target_length", "label_smoothing_factor", "predict_with_generate",
                       "generation_max_length", "generation_num_beams"},
          .figures = {"mean_token_accuracy", "entropy", "aux_loss"}};
}

// The constants of a public script.
RecipeRow peft_lora_seq2seq() {
  RecipeRow row = seq2seq();
  row.name = "peft_lora_seq2seq";
  row.script_parts = {"peft_lora_seq2seq"};
  return row;
}

RecipeRow dpo() {
  return {.name = "dpo",
          .command = "dpo",
          .summary = "fine-tune on pairs of answers, one preferred to the other",
          .description =
              "Fine-tunes a causal language model on pairs of answers, one preferred to the other "
              "(direct\npreference optimisation). The reference is the model that training starts "
              "from. Flags take\nhyphens or underscores; those with \"dpo:\" below are this "
              "recipe's own.\n",
          .reads_pairs = true,
          .label = "DPO",
          .script_words = {"dpo"},
          .settings = {"max_length", "long_rows", "chat_template_path", "chat_template_format",
                       "beta", "loss_type", "loss_weights", "label_smoothing", "f_divergence_type",
                       "f_alpha_divergence_coef", "discopop_tau", "ld_alpha", "use_weighting",
                       "sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps",
                       "disable_dropout", "truncation_mode", "precompute_ref_batch_size"},
          .figures = {"mean_token_accuracy", "entropy", "aux_loss", "rewards/chosen",
                      "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen",
                      "logps/rejected"}};
}

// Figures of losses of pairs without a reference.
std::vector<std::string_view> reference_free_figures() {
  return {"mean_token_accuracy",
          "entropy",
          "aux_loss",
          "rewards/chosen",
          "rewards/rejected",
          "rewards/accuracies",
          "rewards/margins",
          "logps/chosen",
          "logps/rejected",
          "nll_loss"};
}

RecipeRow orpo() {
  RecipeRow row{
      .name = "orpo",
      .command = "orpo",
      .summary = "fine-tune on pairs of answers by their odds, without a reference",
      .description =
          "Fine-tunes a causal language model on pairs of answers, one preferred to the other: the "
          "preferred\none is learnt as in supervised fine-tuning, with its prompt, while its odds "
          "are raised above the\nother's (odds ratio preference optimisation). Flags take hyphens "
          "or underscores; those with\n\"orpo:\" below are this recipe's own.\n",
      .reads_pairs = true,
      .learns_prompts = true,
      .label = "ORPO",
      .script_words = {"orpo"},
      .settings = {"max_length", "long_rows", "chat_template_path", "chat_template_format", "beta",
                   "disable_dropout"},
      .figures = reference_free_figures()};
  row.figures.insert(row.figures.end(), {"log_odds_ratio", "log_odds_chosen"});
  return row;
}

RecipeRow cpo() {
  return {.name = "cpo",
          .command = "cpo",
          .summary = "fine-tune on pairs of answers without a reference (CPO, SimPO)",
          .description =
              "Fine-tunes a causal language model on pairs of answers, one preferred to the other, "
              "without a\nreference (contrastive preference optimisation, also with the losses of "
              "SimPO, AlphaPO, IPO or\nthe hinge). Flags take hyphens or underscores; those with "
              "\"cpo:\" below are this recipe's own.\n",
          .reads_pairs = true,
          .label = "CPO",
          .script_words = {"cpo"},
          .settings = {"max_length", "long_rows", "chat_template_path", "chat_template_format",
                       "beta", "loss_type", "label_smoothing", "cpo_alpha", "simpo_gamma", "alpha",
                       "disable_dropout"},
          .figures = reference_free_figures()};
}

RecipeRow kto() {
  return {.name = "kto",
          .command = "kto",
          .summary = "fine-tune on answers rated as desirable or not",
          .description =
              "Fine-tunes a causal language model on answers that are each rated as desirable or "
              "not\n"
              "(Kahneman-Tversky optimisation). The reference is the model that training starts "
              "from. Flags take\n"
              "hyphens or underscores; those with \"kto:\" below are this recipe's own.\n",
          .reads_ratings = true,
          .label = "KTO",
          .script_words = {"kto"},
          .settings = {"max_length", "long_rows", "chat_template_path", "chat_template_format",
                       "beta", "loss_type", "desirable_weight", "undesirable_weight",
                       "sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps",
                       "disable_dropout", "precompute_ref_batch_size"},
          .figures = {"entropy", "aux_loss", "kl", "rewards/chosen", "rewards/rejected",
                      "rewards/margins", "logps/chosen", "logps/rejected", "logits/chosen",
                      "logits/rejected"}};
}

RecipeRow reward() {
  return {.name = "reward",
          .command = "reward",
          .summary = "train a reward model on pairs of answers",
          .description =
              "Trains a reward model on pairs of answers, one preferred to the other: a causal "
              "language model\n"
              "with a head of one number instead of its output layer. Flags take hyphens or "
              "underscores;\n"
              "those with \"reward:\" below are this recipe's own.\n",
          .reads_pairs = true,
          .gives_rewards = true,
          .task_type = "SEQ_CLS",
          .label = "reward model",
          .script_words = {"reward"},
          .settings = {"max_length", "long_rows", "chat_template_path", "chat_template_format",
                       "disable_dropout", "center_rewards_coefficient"},
          .figures = {"min_reward", "mean_reward", "max_reward", "accuracy", "margin"}};
}

RecipeRow classify() {
  return {
      .name = "classify",
      .command = "classify",
      .summary = "train a model that classifies texts or pairs of texts",
      .description =
          "Trains a model that classifies texts, or pairs of texts: an encoder (BERT, RoBERTa, "
          "XLM-RoBERTa,\n"
          "DistilBERT) or a causal language model, with a head that has a row for each label "
          "instead of an\n"
          "output layer. Flags take hyphens or underscores; those with \"classify:\" below are "
          "this\n"
          "recipe's own.\n",
      .reads_labels = true,
      .task_type = "SEQ_CLS",
      .label = "text classification",
      .script_words = {"classify", "classifier"},
      .script_parts = {"classification", "run_glue", "nlp_example"},
      .settings = {"max_length", "long_rows", "label_smoothing_factor", "task_name",
                   "text_column_names", "text_pair_column_names", "text_column_delimiter",
                   "label_column_name", "do_regression", "num_labels", "ignore_mismatched_sizes"},
      .figures = {"accuracy", "f1", "mse", "matthews_correlation", "pearson", "spearmanr",
                  "combined_score"}};
}

}  // namespace

const std::vector<RecipeRow>& recipes() {
  static const std::vector<RecipeRow> rows{
      sft(), peft_lora_seq2seq(), seq2seq(), dpo(), orpo(), cpo(), kto(), reward(), classify()};
  return rows;
}

const RecipeRow& recipe_named(std::string_view name) {
  const auto found = std::ranges::find(recipes(), name, &RecipeRow::name);
  if (found == recipes().end()) {
    throw InternalError("recipe: found {}, expected a known one", name);
  }
  return *found;
}

const RecipeRow& recipe_of(const RunConfig& config) { return recipe_named(config.recipe); }

bool is_recipe_command(std::string_view word) {
  return std::ranges::find(recipes(), word, &RecipeRow::command) != recipes().end();
}

std::string recipe_commands() {
  std::vector<std::string_view> commands;
  for (const RecipeRow& row : recipes()) {
    if (row.name == row.command) commands.push_back(row.name);
  }
  return fmt::format("{}", fmt::join(commands, ", "));
}

}  // namespace strata::config
