// Records of the supported settings of model, data, LoRA, optimizer and training loop.
#include "strata/config/settings_table.h"

namespace strata::config {
namespace {

constexpr std::string_view kModel = "model", kData = "data", kLora = "LoRA",
                           kQuantization = "quantised base", kFiles = "settings files";

std::vector<Setting> with_group(std::string_view group, std::string_view peer,
                                std::vector<Setting> settings) {
  for (Setting& setting : settings) {
    setting.group = group;
    if (setting.peer.empty()) setting.peer = peer;
  }
  return settings;
}

std::vector<Setting> file_settings() {
  return with_group(kFiles, "Strata",
                    {{.name = "config",
                      .kind = Kind::kSource,
                      .help = "YAML or JSON file with the settings of this table"},
                     {.name = "config_file",
                      .kind = Kind::kSource,
                      .help = "configuration file of accelerate, YAML or JSON",
                      .peer = "accelerate launch",
                      .scope = Scope::kBoth}});
}

std::vector<Setting> model_settings() {
  return with_group(kModel, "ModelConfig",
                    {{.name = "model_name_or_path",
                      .aliases = {"model_name"},
                      .field = STRATA_FIELD(model.model_name_or_path),
                      .help = "folder with the checkpoint, or its name on the Hub"},
                     {.name = "config_name",
                      .field = STRATA_FIELD(model.config_name),
                      .help = "train from scratch: a config.json or a folder that holds one",
                      .peer = "run_clm.py"},
                     {.name = "tokenizer_name",
                      .aliases = {"tokenizer_name_or_path"},
                      .field = STRATA_FIELD(model.tokenizer_name),
                      .help = "folder with the tokenizer; default: the model's",
                      .peer = "run_clm.py"},
                     {.name = "dtype",
                      .aliases = {"torch_dtype"},
                      .field = STRATA_FIELD(model.dtype),
                      .choices = {"auto", "float32", "bfloat16", "float16"},
                      .help = "element type of frozen weights at rest"},
                     {.name = "cache_dir",
                      .field = STRATA_FIELD(model.cache_dir),
                      .help = "folder of the Hub cache; default: HF_HUB_CACHE, else HF_HOME/hub",
                      .peer = "run_clm.py"},
                     {.name = "mean_resizing",
                      .field = STRATA_FIELD(model.mean_resizing),
                      .help = "rows of new tokens start around the mean of the old ones; false: "
                              "as those of an untrained model",
                      .peer = "resize_token_embeddings"},
                     {.name = "resize_to_multiple_of",
                      .field = STRATA_FIELD(model.resize_to_multiple_of),
                      .range = {.min = 1},
                      .help = "rows of the embedding when tokens are added; default: 8 for "
                              "chat_template_format, 64 for chat_template_path",
                      .peer = "clone_chat_template"},
                     {.name = "adapter_name_or_path",
                      .field = STRATA_FIELD(model.adapter_name_or_path),
                      .help = "continue this LoRA adapter (turns use_peft on)",
                      .peer = "Strata"}});
}

std::vector<Setting> data_settings() {
  return with_group(
      kData, "SFTConfig",
      {{.name = "dataset_name",
        .field = STRATA_FIELD(data.dataset_name),
        .help = "file, folder, pattern (data/*.jsonl) or Hub name; several with commas between",
        .peer = "ScriptArguments"},
       {.name = "dataset_config",
        .field = STRATA_FIELD(data.dataset_config),
        .help = "a configuration of the data set, as its README.md lists them, or a folder in it; "
                "default: the one that the README.md calls default",
        .peer = "ScriptArguments"},
       {.name = "dataset_streaming",
        .field = STRATA_FIELD(data.dataset_streaming),
        .help = "take the rows in the files' order, the same in every epoch, and with max_steps "
                "prepare only those that will be used",
        .peer = "ScriptArguments"},
       {.name = "dataset_weights",
        .field = STRATA_FIELD(data.dataset_weights),
        .help = "draw from several data sets with these probabilities until one is used up; "
                "default: one after the other",
        .peer = "datasets.interleave_datasets"},
       {.name = "dataset_columns",
        .field = STRATA_FIELD(data.dataset_columns),
        .help = "other names of columns: messages=dialog prompt=question completion=answer",
        .peer = "Strata"},
       {.name = "on_bad_row",
        .field = STRATA_FIELD(data.on_bad_row),
        .choices = {"error", "skip"},
        .help =
            "what a row does that cannot be read or used: end the run, or be left out and counted",
        .peer = "Strata"},
       {.name = "long_rows",
        .field = STRATA_FIELD(data.long_rows),
        .choices = {"truncate", "drop", "split"},
        .help = "what happens to a row of more than max_length tokens",
        .peer = "Strata"},
       {.name = "splits",
        .field = STRATA_FIELD(data.splits),
        .help = "names of the train split and, after a comma, of the test split; slices as in "
                "train[:10%] or train[100:200]+extra",
        .peer = "PEFT examples/sft"},
       {.name = "dataset_train_split",
        .kind = Kind::kTranslated,
        .help = "name of the train split (first part of splits)",
        .peer = "ScriptArguments"},
       {.name = "dataset_test_split",
        .kind = Kind::kTranslated,
        .help = "name of the test split (second part of splits)",
        .peer = "ScriptArguments"},
       {.name = "dataset_text_field",
        .field = STRATA_FIELD(data.dataset_text_field),
        .help = "column with the text, for examples that are plain text"},
       {.name = "max_length",
        .aliases = {"max_seq_length", "max_seq_len"},
        .field = STRATA_FIELD(data.max_length),
        .range = {.min = 1},
        .help = "longest sequence in tokens; with packing, the length of a packed row"},
       {.name = "packing",
        .field = STRATA_FIELD(data.packing),
        .help = "put several examples into one row; they do not see each other"},
       {.name = "packing_strategy",
        .field = STRATA_FIELD(data.packing_strategy),
        .choices = {"bfd", "bfd_split", "wrapped"},
        .synonyms = {{"bfd-requeue", "bfd_split"}},
        .help = "bfd: best fit, longest first; bfd_split: the same, and what is longer than "
                "max_length is split instead of cut; wrapped: one stream cut into rows"},
       {.name = "eval_packing",
        .field = STRATA_FIELD(data.eval_packing),
        .help = "packing of the test split; default: as packing"},
       {.name = "completion_only_loss",
        .field = STRATA_FIELD(data.completion_only_loss),
        .help = "train only on completions; default: when the rows are prompt and completion"},
       {.name = "assistant_only_loss",
        .field = STRATA_FIELD(data.assistant_only_loss),
        .help = "train only on what the assistant says"},
       {.name = "shuffle_dataset",
        .field = STRATA_FIELD(data.shuffle_dataset),
        .help = "shuffle the examples once before packing"},
       {.name = "chat_template_path",
        .field = STRATA_FIELD(data.chat_template_path),
        .help = "file with a chat template, or a folder whose tokenizer has one"},
       {.name = "chat_template_format",
        .field = STRATA_FIELD(data.chat_template_format),
        .choices = {"none", "chatml", "zephyr", "llama-2", "llama-3", "alpaca", "vicuna", "oasst"},
        .help = "a built-in chat template instead of the tokenizer's",
        .peer = "PEFT examples/sft"},
       {.name = "add_special_tokens",
        .field = STRATA_FIELD(data.add_special_tokens),
        .help = "let the tokenizer add its tokens (like BOS) to each row; default: to text, not to "
                "conversations, whose template writes them",
        .peer = "PEFT examples/sft"},
       {.name = "append_concat_token",
        .field = STRATA_FIELD(data.append_concat_token),
        .help = "end every row with the end-of-sequence token, conversations too",
        .peer = "PEFT examples/sft"},
       {.name = "dataset_num_proc",
        .field = STRATA_FIELD(data.dataset_num_proc),
        .range = {.min = 1},
        .help = "threads that prepare the data; default: all cores. Never changes the result"},
       {.name = "dataset_cache",
        .field = STRATA_FIELD(data.dataset_cache),
        .help =
            "keep the tokenized rows in HF_HOME/strata for the next run with the same files and "
            "settings",
        .peer = "Strata"},
       {.name = "eos_token",
        .field = STRATA_FIELD(data.eos_token),
        .help = "end-of-sequence token; default: the tokenizer's"},
       {.name = "pad_token",
        .field = STRATA_FIELD(data.pad_token),
        .help = "padding token; default: the tokenizer's, else the end-of-sequence token"}});
}

std::vector<Setting> quantization_settings() {
  return with_group(
      kQuantization, "BitsAndBytesConfig",
      {{.name = "load_in_4bit",
        .aliases = {"use_4bit_quantization"},
        .field = STRATA_FIELD(quantization.load_in_4bit),
        .help = "quantise the frozen linear layers to 4 bits while loading (QLoRA)"},
       {.name = "load_in_8bit",
        .aliases = {"use_8bit_quantization"},
        .field = STRATA_FIELD(quantization.load_in_8bit),
        .help = "quantise the frozen linear layers to 8 bits while loading, one scale a row"},
       {.name = "bnb_4bit_quant_type",
        .field = STRATA_FIELD(quantization.bnb_4bit_quant_type),
        .choices = {"nf4", "fp4"},
        .help = "the 16 values of 4 bits"},
       {.name = "bnb_4bit_blocksize",
        .field = STRATA_FIELD(quantization.bnb_4bit_blocksize),
        .range = {.min = 32, .max = 4096},
        .help = "elements that share a scale in 4 bits: a power of two",
        .peer = "bitsandbytes"},
       {.name = "bnb_4bit_use_double_quant",
        .aliases = {"use_bnb_nested_quant", "use_nested_quant"},
        .field = STRATA_FIELD(quantization.bnb_4bit_use_double_quant),
        .help = "quantise the scales of 4 bits to 8 bits"},
       {.name = "bnb_4bit_compute_dtype",
        .field = STRATA_FIELD(quantization.bnb_4bit_compute_dtype),
        .choices = {"auto", "float32", "bfloat16", "float16"},
        .help = "type in which 4-bit weights are multiplied; auto, and float16 for want of such "
                "arithmetic: that of the activations"},
       {.name = "llm_int8_threshold",
        .field = STRATA_FIELD(quantization.llm_int8_threshold),
        .range = {.min = 0},
        .help = "8 bits, while evaluating: activations this large are not quantised; 0: all are"},
       {.name = "llm_int8_skip_modules",
        .field = STRATA_FIELD(quantization.llm_int8_skip_modules),
        .help = "modules that are not quantised; default: the output layer"}});
}

std::vector<Setting> lora_settings() {
  return with_group(
      kLora, "ModelConfig",
      {{.name = "use_peft",
        .field = STRATA_FIELD(lora.use_peft),
        .help = "train a LoRA adapter (r 16, alpha 32, dropout 0.05 unless set)"},
       {.name = "use_peft_lora",
        .kind = Kind::kTranslated,
        .is_switch = true,
        .help = "train a LoRA adapter (r 64, alpha 16, dropout 0.1, all linear layers of the "
                "blocks unless set)",
        .peer = "PEFT examples/sft"},
       {.name = "peft_type",
        .field = STRATA_FIELD(lora.peft_type),
        .choices = {"LORA", "IA3"},
        .help = "method: LoRA, or (IA)^3, which trains factors on the layers' outputs",
        .peer = "PeftConfig"},
       {.name = "feedforward_modules",
        .field = STRATA_FIELD(lora.feedforward_modules),
        .help = "(IA)^3: targets that are rescaled at their input; default: the model family's",
        .peer = "IA3Config"},
       {.name = "lora_r",
        .aliases = {"r", "lora_rank"},
        .field = STRATA_FIELD(lora.r),
        .range = {.min = 1},
        .help = "rank of the adapter"},
       {.name = "lora_alpha",
        .field = STRATA_FIELD(lora.alpha),
        .range = {.min = 0},
        .help = "the adapter's output is scaled by alpha / r"},
       {.name = "lora_dropout",
        .field = STRATA_FIELD(lora.dropout),
        .range = {.min = 0, .max = 1, .max_open = true},
        .help = "dropout on the adapter's input"},
       {.name = "lora_target_modules",
        .aliases = {"target_modules"},
        .field = STRATA_FIELD(lora.target_modules),
        .help = "layers that get an adapter: names, one regular expression, or all-linear; "
                "default: the model family's"},
       {.name = "lora_modules_to_save",
        .aliases = {"modules_to_save"},
        .field = STRATA_FIELD(lora.modules_to_save),
        .help = "modules trained whole and saved beside the adapter"},
       {.name = "trainable_token_indices",
        .field = STRATA_FIELD(lora.trainable_token_indices),
        .help = "train the rows of these tokens alone: [32000, 32001], or an object of such lists "
                "by the embedding's name",
        .peer = "LoraConfig"},
       {.name = "ensure_weight_tying",
        .field = STRATA_FIELD(lora.ensure_weight_tying),
        .help = "embedding and output layer that are tied stay so when one of them is adapted",
        .peer = "LoraConfig"},
       {.name = "use_rslora",
        .field = STRATA_FIELD(lora.use_rslora),
        .help = "scale by alpha / sqrt(r)"},
       {.name = "use_dora",
        .field = STRATA_FIELD(lora.use_dora),
        .help = "DoRA: train the lengths of the adapted rows too"},
       {.name = "init_lora_weights",
        .field = STRATA_FIELD(lora.init_lora_weights),
        .help =
            "first values: true, gaussian, orthogonal, pissa, pissa_niter_N, olora, or false for "
            "those of a plain layer",
        .peer = "LoraConfig"},
       {.name = "rank_pattern",
        .field = STRATA_FIELD(lora.rank_pattern),
        .help = "JSON object: another rank for modules whose path's end matches the key",
        .peer = "LoraConfig"},
       {.name = "alpha_pattern",
        .field = STRATA_FIELD(lora.alpha_pattern),
        .help = "JSON object: another alpha for modules whose path's end matches the key",
        .peer = "LoraConfig"},
       {.name = "exclude_modules",
        .field = STRATA_FIELD(lora.exclude_modules),
        .help = "layers that get no adapter: names, or one regular expression",
        .peer = "LoraConfig"},
       {.name = "layers_to_transform",
        .field = STRATA_FIELD(lora.layers_to_transform),
        .help = "numbers of the layers that get an adapter; default: all",
        .peer = "LoraConfig"},
       {.name = "layers_pattern",
        .field = STRATA_FIELD(lora.layers_pattern),
        .help = "names behind which the layers' numbers stand; default: any",
        .peer = "LoraConfig"},
       {.name = "bias",
        .field = STRATA_FIELD(lora.bias),
        .choices = {"none", "all", "lora_only"},
        .help = "biases of the base that train beside the adapter",
        .peer = "LoraConfig"},
       {.name = "lora_bias",
        .field = STRATA_FIELD(lora.lora_bias),
        .help = "give B of every adapter a bias",
        .peer = "LoraConfig"}});
}

}  // namespace

std::vector<Setting> model_and_data_settings() {
  std::vector<Setting> all;
  for (auto part :
       {file_settings, model_settings, data_settings, quantization_settings, lora_settings}) {
    for (Setting& setting : part()) all.push_back(std::move(setting));
  }
  return all;
}

}  // namespace strata::config
