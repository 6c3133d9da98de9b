// Records of the settings of `strata chat`, under the names of transformers' GenerationConfig.
#include "strata/config/settings/table.h"

namespace strata::config {
namespace {

std::vector<Setting> build_table() {
  std::vector<Setting> table = {
      {.name = "model_name_or_path",
       .aliases = {"model_name"},
       .field = STRATA_FIELD(chat.model_name_or_path),
       .is_path = true,
       .help = "folder of a checkpoint, or of an adapter that names its base model, or a name on "
               "the Hub",
       .group = "model"},
      {.name = "adapter_name_or_path",
       .field = STRATA_FIELD(chat.adapter_name_or_path),
       .is_path = true,
       .help = "folder of an adapter to put on the model",
       .group = "model"},
      {.name = "adapter",
       .kind = Kind::kSource,
       .repeatable = true,
       .help = "NAME=FOLDER of an adapter to choose with /adapter NAME; the first given is in use "
               "at first; several may be given",
       .group = "model"},
      {.name = "cache_dir",
       .field = STRATA_FIELD(chat.cache_dir),
       .is_path = true,
       .help = "folder of the Hub cache; default: HF_HUB_CACHE, else HF_HOME/hub",
       .group = "model"},
      {.name = "dtype",
       .aliases = {"torch_dtype"},
       .field = STRATA_FIELD(chat.dtype),
       .choices = {"auto", "float32", "bfloat16", "float16"},
       .synonyms = {{"fp32", "float32"}, {"bf16", "bfloat16"}, {"fp16", "float16"}},
       .help = "type to which the weights are rounded; auto: that of the checkpoint",
       .group = "model"},
      same_setting("load_in_4bit", STRATA_FIELD(quantization.load_in_4bit)),
      same_setting("load_in_8bit", STRATA_FIELD(quantization.load_in_8bit)),
      same_setting("bnb_4bit_quant_type", STRATA_FIELD(quantization.bnb_4bit_quant_type)),
      same_setting("bnb_4bit_blocksize", STRATA_FIELD(quantization.bnb_4bit_blocksize)),
      same_setting("bnb_4bit_use_double_quant",
                   STRATA_FIELD(quantization.bnb_4bit_use_double_quant)),
      same_setting("bnb_4bit_compute_dtype", STRATA_FIELD(quantization.bnb_4bit_compute_dtype)),
      same_setting("llm_int8_threshold", STRATA_FIELD(quantization.llm_int8_threshold)),
      same_setting("llm_int8_skip_modules", STRATA_FIELD(quantization.llm_int8_skip_modules)),
      same_setting("mxfp4_dequantize", STRATA_FIELD(quantization.mxfp4_dequantize)),
      same_setting("fp8_dequantize", STRATA_FIELD(quantization.fp8_dequantize)),
      same_setting("int_dequantize", STRATA_FIELD(quantization.int_dequantize)),
      {.name = "prompt",
       .kind = Kind::kSource,
       .repeatable = true,
       .help = "answer this and exit; given several times: the turns of one conversation",
       .group = "conversation"},
      {.name = "system",
       .field = STRATA_FIELD(chat.system),
       .help = "the conversation's system message",
       .group = "conversation"},
      {.name = "max_new_tokens",
       .field = STRATA_FIELD(chat.max_new_tokens),
       .range = {.min = 1},
       .help = "most tokens of one answer",
       .group = "conversation"},
      {.name = "do_sample",
       .field = STRATA_FIELD(chat.do_sample),
       .help = "draw each token at random instead of taking the most likely one",
       .group = "sampling (defaults: the model's generation_config.json)"},
      {.name = "temperature",
       .field = STRATA_FIELD(chat.temperature),
       .range = {.min = 0},
       .help = "above 1: more surprising; below 1: less"},
      {.name = "top_k",
       .field = STRATA_FIELD(chat.top_k),
       .range = {.min = 0},
       .help = "draw from the k most likely tokens; 0: from all"},
      {.name = "top_p",
       .field = STRATA_FIELD(chat.top_p),
       .range = {.min = 0, .max = 1},
       .help = "draw from the most likely tokens whose probabilities add up to p"},
      {.name = "min_p",
       .field = STRATA_FIELD(chat.min_p),
       .range = {.min = 0, .max = 1},
       .help = "draw from tokens with at least this fraction of the largest probability"},
      {.name = "repetition_penalty",
       .field = STRATA_FIELD(chat.repetition_penalty),
       .range = {.min = 0},
       .help = "above 1: tokens of the conversation so far become less likely"},
      {.name = "seed",
       .field = STRATA_FIELD(chat.seed),
       .help = "seed of the random numbers: the same seed gives the same answers"}};
  std::string_view group;
  for (Setting& setting : table) {
    if (setting.group.empty()) setting.group = group;
    group = setting.group;
  }
  return table;
}

}  // namespace

std::span<const Setting> chat_settings_table() {
  static const std::vector<Setting> table = build_table();
  return table;
}

}  // namespace strata::config
