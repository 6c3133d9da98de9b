// Records of the settings of files and of the model.
#include "strata/config/recipes.h"
#include "strata/config/settings/table.h"

namespace strata::config {
namespace {

constexpr std::string_view kFiles = "settings files", kModel = "model";

std::vector<std::string_view> recipe_names() {
  std::vector<std::string_view> names;
  for (const RecipeRow& row : recipes()) names.push_back(row.name);
  return names;
}

std::vector<Setting> file_settings() {
  return with_group(kFiles, "Strata",
                    {{.name = "recipe",
                      .field = STRATA_FIELD(recipe),
                      .choices = recipe_names(),
                      .help = "name of the command; peft_lora_seq2seq: defaults from "
                              "peft_lora_seq2seq_accelerate_fsdp.py"},
                     {.name = "config",
                      .kind = Kind::kSource,
                      .is_path = true,
                      .help = "YAML or JSON file with the settings of this table"},
                     {.name = "config_file",
                      .kind = Kind::kSource,
                      .is_path = true,
                      .help = "configuration file of accelerate, YAML or JSON",
                      .peer = "accelerate launch",
                      .scope = Scope::kBoth}});
}

std::vector<Setting> model_settings() {
  return with_group(
      kModel, "ModelConfig",
      {{.name = "model_name_or_path",
        .aliases = {"model_name"},
        .field = STRATA_FIELD(model.model_name_or_path),
        .resume = Resume::kTensors,
        .is_path = true,
        .help = "folder with the checkpoint, or its name on the Hub"},
       {.name = "model_revision",
        .field = STRATA_FIELD(model.model_revision),
        .synonyms = {{"none", "main"}, {"", "main"}},
        .help = "branch, tag or commit of a model on the Hub, and of its tokenizer"},
       {.name = "config_name",
        .field = STRATA_FIELD(model.config_name),
        .is_path = true,
        .help = "train from scratch: a config.json or a folder that holds one",
        .peer = "run_clm.py"},
       {.name = "tokenizer_name",
        .aliases = {"tokenizer_name_or_path"},
        .field = STRATA_FIELD(model.tokenizer_name),
        .resume = Resume::kTraining,
        .is_path = true,
        .help = "folder with the tokenizer; default: the model's",
        .peer = "run_clm.py"},
       {.name = "dtype",
        .aliases = {"torch_dtype"},
        .field = STRATA_FIELD(model.dtype),
        .choices = {"auto", "float32", "bfloat16", "float16"},
        .synonyms = {{"fp32", "float32"}, {"bf16", "bfloat16"}, {"fp16", "float16"}},
        .help = "element type of frozen weights in memory, and of the result when the whole model "
                "is trained"},
       {.name = "model_init_kwargs",
        .kind = Kind::kTranslated,
        .help = "mapping (or its JSON text) of dtype, revision, attn_implementation, "
                "trust_remote_code, cache_dir, use_cache, load_in_4bit and "
                "load_in_8bit, which are settings of their own here",
        .peer = "SFTConfig"},
       {.name = "cache_dir",
        .field = STRATA_FIELD(model.cache_dir),
        .is_path = true,
        .help = "folder of the Hub cache; default: HF_HUB_CACHE, else HF_HOME/hub",
        .peer = "run_clm.py"},
       {.name = "mean_resizing",
        .field = STRATA_FIELD(model.mean_resizing),
        .help = "embeddings of new tokens start around the mean of the old ones; false: as in an "
                "untrained model",
        .peer = "resize_token_embeddings"},
       {.name = "resize_to_multiple_of",
        .field = STRATA_FIELD(model.resize_to_multiple_of),
        .range = {.min = 1},
        .help = "round the embedding's rows up to a multiple of this when tokens are added; "
                "default: 8 for chat_template_format, 64 for chat_template_path",
        .peer = "clone_chat_template"},
       {.name = "router_aux_loss_coef",
        .field = STRATA_FIELD(model.router_aux_loss_coef),
        .resume = Resume::kTraining,
        .range = {.min = 0},
        .help = "weight of the loss that balances the experts of a mixture; 0: none; default: "
                "config.json's, else 0.001",
        .peer = "SFTConfig"},
       {.name = "adapter_name_or_path",
        .field = STRATA_FIELD(model.adapter_name_or_path),
        .is_path = true,
        .help = "continue this LoRA adapter (turns use_peft on)",
        .peer = "Strata"}});
}

}  // namespace

std::vector<Setting> file_and_model_settings() { return joined({file_settings, model_settings}); }

}  // namespace strata::config
