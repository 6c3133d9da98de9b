#include "strata/models/families.h"

#include "strata/base/error.h"
#include "strata/models/bamba/layers.h"
#include "strata/models/bart/model.h"
#include "strata/models/bert/model.h"
#include "strata/models/config_reader.h"
#include "strata/models/deepseek/layers.h"
#include "strata/models/eurobert/model.h"
#include "strata/models/falcon/model.h"
#include "strata/models/falcon_h1/layers.h"
#include "strata/models/gemma4/model.h"
#include "strata/models/gpt2/model.h"
#include "strata/models/gpt_neox/model.h"
#include "strata/models/gpt_oss/mixture.h"
#include "strata/models/granite_hybrid/layers.h"
#include "strata/models/granite_moe/layers.h"
#include "strata/models/lfm2/layers.h"
#include "strata/models/llama/extended_layer.h"
#include "strata/models/llama/model.h"
#include "strata/models/llama/nanochat.h"
#include "strata/models/llama/plain_mlp.h"
#include "strata/models/llama/relatives.h"
#include "strata/models/llama4/feed_forward.h"
#include "strata/models/modernbert/model.h"
#include "strata/models/moe/extended_mixture.h"
#include "strata/models/moe/mixture.h"
#include "strata/models/nemotron_h/layers.h"
#include "strata/models/opt/model.h"
#include "strata/models/phi3/blocks.h"
#include "strata/models/qwen3_5/layers.h"
#include "strata/models/reward_head.h"
#include "strata/models/rotary_decoder/model.h"
#include "strata/models/t5/model.h"

namespace strata::models {
namespace {

void apply(const Json& json, const ModelOptions& options, LlamaConfig& config) {
  config.num_labels = num_labels(json);
  config.rope.buffer_type = options.buffers;
  if (config.local_rope) config.local_rope->buffer_type = options.buffers;
  config.has_own_head = options.is_untied;
}

template <LlamaConfig (*parse)(const Json&), typename Layer = LlamaDecoderLayer>
std::unique_ptr<Model> create_llama(const Json& json, const ModelOptions& options) {
  LlamaConfig config = parse(json);
  apply(json, options, config);
  return std::make_unique<LlamaModel>(config, options.storage, make_decoder_layer<Layer>);
}

// What a family's settings hold of Llama's.
template <typename Config>
LlamaConfig& llama_of(Config& config) {
  return config.llama;
}
LlamaConfig& llama_of(DeepseekConfig& config) { return config.mixture.llama; }
LlamaConfig& llama_of(ExtendedMixtureConfig& config) { return config.mixture.llama; }

// Llama's chain with layers of the family's own.
template <auto parse, auto make_layers>
std::unique_ptr<Model> create_layers(const Json& json, const ModelOptions& options) {
  auto config = parse(json);
  LlamaConfig& llama = llama_of(config);
  apply(json, options, llama);
  return std::make_unique<LlamaModel>(llama, options.storage, make_layers(config));
}

std::unique_ptr<Model> create_gemma4(const Json& json, const ModelOptions& options) {
  Gemma4Config config = parse_gemma4_config(json);
  apply(json, options, config.llama);
  return std::make_unique<Gemma4Model>(config, options.storage);
}

template <T5Config (*parse)(const Json&)>
std::unique_ptr<Model> create_t5(const Json& config, const ModelOptions& options) {
  return std::make_unique<T5Model>(parse(config), options.storage, options.is_untied);
}

template <BartConfig (*parse)(const Json&)>
std::unique_ptr<Model> create_bart(const Json& config, const ModelOptions& options) {
  return std::make_unique<BartModel>(parse(config), options.storage, options.is_untied);
}

// `architecture`: that of such models for whole texts.
int64_t require_labels(const Json& json, const std::string& architecture) {
  const int64_t labels = num_labels(json);
  if (labels > 0) return labels;
  throw ConfigError(
      "config.json: found architectures {} of an encoder, expected {}, which strata classify "
      "makes of it; run that first",
      dump_python(json.value("architectures", Json::array()), -1), architecture);
}

template <BertConfig (*parse)(const Json&)>
std::unique_ptr<Model> create_bert(const Json& json, const ModelOptions& options) {
  BertConfig config = parse(json);
  config.num_labels = require_labels(json, config.names.architecture);
  config.has_new_dense = options.has_new_dense;
  return std::make_unique<BertModel>(config, options.storage);
}

std::unique_ptr<Model> create_modernbert(const Json& json, const ModelOptions& options) {
  ModernBertConfig config = parse_modernbert_config(json);
  config.num_labels = require_labels(json, "ModernBertForSequenceClassification");
  config.has_new_dense = options.has_new_dense;
  config.rope.buffer_type = config.window_rope.buffer_type = options.buffers;
  return std::make_unique<ModernBertModel>(config, options.storage);
}

std::unique_ptr<Model> create_eurobert(const Json& json, const ModelOptions& options) {
  EuroBertConfig config = parse_eurobert_config(json);
  apply(json, options, config.llama);
  config.llama.num_labels = require_labels(json, config.llama.architecture);
  config.has_new_dense = options.has_new_dense;
  return std::make_unique<EuroBertModel>(config, options.storage);
}

// Without rotary tables.
template <typename Decoder, auto parse>
std::unique_ptr<Model> create_decoder(const Json& json, const ModelOptions& options) {
  auto config = parse(json);
  config.num_labels = num_labels(json);
  config.has_own_head = options.is_untied;
  return std::make_unique<Decoder>(config, options.storage);
}

std::unique_ptr<Model> create_gpt_neox(const Json& json, const ModelOptions& options) {
  GptNeoXConfig config = parse_gpt_neox_config(json);
  config.num_labels = num_labels(json);
  config.has_own_head = options.is_untied;
  config.rope.buffer_type = options.buffers;
  return std::make_unique<GptNeoXModel>(config, options.storage);
}

template <FalconConfig (*parse)(const Json&)>
std::unique_ptr<Model> create_falcon(const Json& json, const ModelOptions& options) {
  FalconConfig config = parse(json);
  config.num_labels = num_labels(json);
  config.has_own_head = options.is_untied;
  if (config.rope) config.rope->buffer_type = options.buffers;
  return std::make_unique<FalconModel>(config, options.storage);
}

template <RotaryDecoderConfig (*parse)(const Json&)>
std::unique_ptr<Model> create_rotary_decoder(const Json& json, const ModelOptions& options) {
  RotaryDecoderConfig config = parse(json);
  config.num_labels = num_labels(json);
  config.has_own_head = options.is_untied;
  if (config.rope) config.rope->buffer_type = options.buffers;
  return std::make_unique<RotaryDecoderModel>(config, options.storage);
}

template <Gpt2Config (*parse)(const Json&)>
std::optional<PositionTable> gpt2_positions(const Json& json) {
  return PositionTable{parse(json).n_positions, "n_positions"};
}

template <BertConfig (*parse)(const Json&)>
std::optional<PositionTable> bert_positions(const Json& json) {
  const BertConfig config = parse(json);
  if (!config.has_positions) return std::nullopt;
  return PositionTable{
      .num_positions = config.num_positions(),
      .key = "max_position_embeddings",
      .padding_id = config.counts_from_padding ? config.pad_token_id : std::nullopt};
}

std::optional<PositionTable> gpt_neo_positions(const Json& json) {
  return PositionTable{parse_gpt_neo_config(json).max_position_embeddings,
                       "max_position_embeddings"};
}

std::optional<PositionTable> opt_positions(const Json& json) {
  return PositionTable{parse_opt_config(json).max_position_embeddings, "max_position_embeddings"};
}

template <BartConfig (*parse)(const Json&)>
std::optional<PositionTable> bart_positions(const Json& json) {
  return PositionTable{parse(json).max_position_embeddings, "max_position_embeddings"};
}

template <BertConfig (*parse)(const Json&)>
Family encoder(const char* classifier, const char* head_dense) {
  return {.create = create_bert<parse>,
          .classifier = classifier,
          .head_dense = head_dense,
          .position_table = bert_positions<parse>};
}

}  // namespace

const std::map<std::string, Family>& families() {
  static const std::map<std::string, Family> kFamilies{
      {"afmoe", {create_layers<parse_afmoe_config, make_mixture_layers>, nullptr}},
      {"albert",
       encoder<parse_albert_config>("AlbertForSequenceClassification", "albert.pooler.weight")},
      {"apertus", {create_layers<parse_apertus_config, make_plain_mlp_layers>, nullptr}},
      {"arcee",
       {create_layers<parse_arcee_config, make_plain_mlp_layers>,
        "ArceeForSequenceClassification"}},
      {"bamba", {create_layers<parse_bamba_config, make_bamba_layers>, nullptr}},
      {"bart",
       {.create = create_bart<parse_bart_config>,
        .classifier = nullptr,
        .has_encoder = true,
        .position_table = bart_positions<parse_bart_config>}},
      {"bert",
       encoder<parse_bert_config>("BertForSequenceClassification", "bert.pooler.dense.weight")},
      {"bloom", {create_falcon<parse_bloom_config>, "BloomForSequenceClassification"}},
      {"camembert", encoder<parse_camembert_config>("CamembertForSequenceClassification",
                                                    "classifier.dense.weight")},
      {"codegen", {create_rotary_decoder<parse_codegen_config>, nullptr}},
      {"cohere", {create_rotary_decoder<parse_cohere_config>, nullptr}},
      {"cohere2", {create_rotary_decoder<parse_cohere2_config>, nullptr}},
      {"cwm", {create_llama<parse_cwm_config>, nullptr}},
      {"deberta",
       encoder<parse_deberta_config>("DebertaForSequenceClassification", "pooler.dense.weight")},
      {"deberta-v2", encoder<parse_deberta_v2_config>("DebertaV2ForSequenceClassification",
                                                      "pooler.dense.weight")},
      {"deepseek_v2",
       {create_layers<parse_deepseek_v2_config, make_deepseek_layers>,
        "DeepseekV2ForSequenceClassification"}},
      {"deepseek_v3",
       {create_layers<parse_deepseek_v3_config, make_deepseek_layers>,
        "DeepseekV3ForSequenceClassification"}},
      {"distilbert", encoder<parse_distilbert_config>("DistilBertForSequenceClassification",
                                                      "pre_classifier.weight")},
      {"dots1", {create_layers<parse_dots1_config, make_mixture_layers>, nullptr}},
      {"electra", encoder<parse_electra_config>("ElectraForSequenceClassification",
                                                "classifier.dense.weight")},
      {"ernie4_5", {create_llama<parse_ernie4_5_config>, nullptr}},
      {"ernie4_5_moe", {create_layers<parse_ernie4_5_moe_config, make_mixture_layers>, nullptr}},
      {"eurobert",
       {.create = create_eurobert,
        .classifier = "EuroBertForSequenceClassification",
        .head_dense = "dense.weight"}},
      {"exaone4", {create_llama<parse_exaone4_config>, "Exaone4ForSequenceClassification"}},
      {"exaone_moe", {create_layers<parse_exaone_moe_config, make_mixture_layers>, nullptr}},
      {"falcon", {create_falcon<parse_falcon_config>, "FalconForSequenceClassification"}},
      {"falcon_h1", {create_layers<parse_falcon_h1_config, make_falcon_h1_layers>, nullptr}},
      {"flex_olmo", {create_layers<parse_flex_olmo_config, make_mixture_layers>, nullptr}},
      {"gemma", {create_llama<parse_gemma_config>, "GemmaForSequenceClassification"}},
      {"gemma2", {create_llama<parse_gemma2_config>, "Gemma2ForSequenceClassification"}},
      {"gemma3_text",
       {create_llama<parse_gemma3_text_config>, "Gemma3TextForSequenceClassification"}},
      {"gemma4_text", {create_gemma4, nullptr}},
      {"glm", {create_llama<parse_glm_config>, "GlmForSequenceClassification"}},
      {"glm4", {create_llama<parse_glm4_config>, "Glm4ForSequenceClassification"}},
      {"glm4_moe", {create_layers<parse_glm4_moe_config, make_mixture_layers>, nullptr}},
      {"glm4_moe_lite", {create_layers<parse_glm4_moe_lite_config, make_deepseek_layers>, nullptr}},
      {"gpt2",
       {.create = create_decoder<Gpt2Model, parse_gpt2_config>,
        .classifier = "GPT2ForSequenceClassification",
        .position_table = gpt2_positions<parse_gpt2_config>}},
      {"gpt_bigcode",
       {.create = create_decoder<Gpt2Model, parse_gpt_bigcode_config>,
        .classifier = "GPTBigCodeForSequenceClassification",
        .position_table = gpt2_positions<parse_gpt_bigcode_config>}},
      {"gpt_neo",
       {.create = create_rotary_decoder<parse_gpt_neo_config>,
        .classifier = "GPTNeoForSequenceClassification",
        .position_table = gpt_neo_positions}},
      {"gpt_neox", {create_gpt_neox, "GPTNeoXForSequenceClassification"}},
      {"gpt_oss",
       {.create = create_layers<parse_gpt_oss_config, make_gpt_oss_layers>,
        .classifier = "GptOssForSequenceClassification",
        .experts_are_transposed = true}},
      {"gptj", {create_rotary_decoder<parse_gptj_config>, "GPTJForSequenceClassification"}},
      {"granite", {create_llama<parse_granite_config>, nullptr}},
      {"granite_swa", {create_llama<parse_granite_swa_config>, nullptr}},
      {"granitemoe", {create_layers<parse_granitemoe_config, make_granite_moe_layers>, nullptr}},
      {"granitemoe_swa",
       {create_layers<parse_granitemoe_swa_config, make_granite_moe_swa_layers>, nullptr}},
      {"granitemoeshared",
       {create_layers<parse_granitemoeshared_config, make_granite_moe_layers>, nullptr}},
      {"granitemoehybrid",
       {create_layers<parse_granitemoehybrid_config, make_granite_hybrid_layers>, nullptr}},
      {"helium", {create_llama<parse_helium_config>, "HeliumForSequenceClassification"}},
      {"hunyuan_v1_dense",
       {create_layers<parse_hunyuan_v1_dense_config, make_extended_layers>,
        "HunYuanDenseV1ForSequenceClassification"}},
      {"hunyuan_v1_moe",
       {create_layers<parse_hunyuan_v1_moe_config, make_extended_mixture_layers>,
        "HunYuanMoEV1ForSequenceClassification"}},
      {"hyperclovax", {create_llama<parse_hyperclovax_config>, nullptr}},
      {"internlm3", {create_llama<parse_internlm3_config>, nullptr}},
      {"iquestcoder", {create_llama<parse_iquestcoder_config>, nullptr}},
      {"jais2", {create_rotary_decoder<parse_jais2_config>, nullptr}},
      {"kimi_k2",
       {create_layers<parse_deepseek_v3_config, make_deepseek_layers>,
        "DeepseekV3ForSequenceClassification"}},
      {"lfm2", {create_layers<parse_lfm2_config, make_lfm2_layers>, nullptr}},
      {"lfm2_moe",
       {.create = create_layers<parse_lfm2_moe_config, make_lfm2_layers>,
        .classifier = nullptr,
        .expert_layers = {{"w1", "gate_up_proj", 0},
                          {"w3", "gate_up_proj", 1},
                          {"w2", "down_proj", 0}}}},
      {"llama", {create_llama<parse_llama_config>, "LlamaForSequenceClassification"}},
      {"llama4_text", {create_layers<parse_llama4_text_config, make_llama4_layers>, nullptr}},
      {"m2m_100", {create_bart<parse_m2m_100_config>, nullptr, /*has_encoder=*/true}},
      {"marian",
       {.create = create_bart<parse_marian_config>,
        .classifier = nullptr,
        .has_encoder = true,
        .position_table = bart_positions<parse_marian_config>}},
      {"mbart",
       {.create = create_bart<parse_mbart_config>,
        .classifier = nullptr,
        .has_encoder = true,
        .position_table = bart_positions<parse_mbart_config>}},
      {"mellum", {create_layers<parse_mellum_config, make_mixture_layers>, nullptr}},
      {"minicpm3",
       {create_layers<parse_minicpm3_config, make_deepseek_layers>,
        "MiniCPM3ForSequenceClassification"}},
      {"minimax_m2", {create_layers<parse_minimax_m2_config, make_mixture_layers>, nullptr}},
      {"ministral", {create_llama<parse_mistral_config>, "MinistralForSequenceClassification"}},
      {"ministral3",
       {create_layers<parse_ministral3_config, make_extended_layers>,
        "Ministral3ForSequenceClassification"}},
      {"mistral", {create_llama<parse_mistral_config>, "MistralForSequenceClassification"}},
      {"mixtral",
       {create_layers<parse_mixtral_config, make_mixture_layers>,
        "MixtralForSequenceClassification"}},
      {"modernbert",
       {.create = create_modernbert,
        .classifier = "ModernBertForSequenceClassification",
        .head_dense = "head.dense.weight"}},
      {"mpnet",
       encoder<parse_mpnet_config>("MPNetForSequenceClassification", "classifier.dense.weight")},
      {"mpt", {create_falcon<parse_mpt_config>, "MptForSequenceClassification"}},
      {"mt5", {create_t5<parse_mt5_config>, nullptr, /*has_encoder=*/true}},
      {"nanochat", {create_layers<parse_nanochat_config, make_nanochat_layers>, nullptr}},
      {"nemotron",
       {create_rotary_decoder<parse_nemotron_config>, "NemotronForSequenceClassification"}},
      {"nemotron_h",
       {.create = create_layers<parse_nemotron_h_config, make_nemotron_h_layers>,
        .classifier = nullptr,
        .expert_layers = {{"up_proj", "up_proj", 0}, {"down_proj", "down_proj", 0}}}},
      {"olmo", {create_rotary_decoder<parse_olmo_config>, "OlmoForSequenceClassification"}},
      {"olmo2", {create_llama<parse_olmo2_config>, "Olmo2ForSequenceClassification"}},
      {"olmo3", {create_llama<parse_olmo3_config>, "Olmo3ForSequenceClassification"}},
      {"olmoe", {create_layers<parse_olmoe_config, make_extended_mixture_layers>, nullptr}},
      {"openai-gpt",
       {.create = create_decoder<Gpt2Model, parse_openai_gpt_config>,
        .classifier = "OpenAIGPTForSequenceClassification",
        .position_table = gpt2_positions<parse_openai_gpt_config>}},
      {"opt",
       {.create = create_decoder<OptModel, parse_opt_config>,
        .classifier = "OPTForSequenceClassification",
        .position_table = opt_positions}},
      {"pegasus",
       {.create = create_bart<parse_pegasus_config>,
        .classifier = nullptr,
        .has_encoder = true,
        .position_table = bart_positions<parse_pegasus_config>}},
      {"persimmon",
       {create_rotary_decoder<parse_persimmon_config>, "PersimmonForSequenceClassification"}},
      {"phi", {create_rotary_decoder<parse_phi_config>, "PhiForSequenceClassification"}},
      {"phi3",
       {create_llama<parse_phi3_config, Phi3DecoderLayer>, "Phi3ForSequenceClassification"}},
      {"qwen2", {create_llama<parse_qwen2_config>, "Qwen2ForSequenceClassification"}},
      {"qwen2_moe",
       {create_layers<parse_qwen2_moe_config, make_mixture_layers>,
        "Qwen2MoeForSequenceClassification"}},
      {"qwen3", {create_llama<parse_qwen3_config>, "Qwen3ForSequenceClassification"}},
      {"qwen3_5_moe_text", {create_layers<parse_qwen3_5_moe_config, make_qwen3_5_layers>, nullptr}},
      {"qwen3_5_text",
       {create_layers<parse_qwen3_5_config, make_qwen3_5_layers>,
        "Qwen3_5TextForSequenceClassification"}},
      {"qwen3_moe",
       {create_layers<parse_qwen3_moe_config, make_mixture_layers>,
        "Qwen3MoeForSequenceClassification"}},
      {"qwen3_next",
       {create_layers<parse_qwen3_next_config, make_qwen3_5_layers>,
        "Qwen3NextForSequenceClassification"}},
      {"roberta", encoder<parse_roberta_config>("RobertaForSequenceClassification",
                                                "classifier.dense.weight")},
      {"seed_oss",
       {create_layers<parse_seed_oss_config, make_extended_layers>,
        "SeedOssForSequenceClassification"}},
      {"smollm3", {create_llama<parse_smollm3_config>, "SmolLM3ForSequenceClassification"}},
      {"solar_open", {create_layers<parse_solar_open_config, make_mixture_layers>, nullptr}},
      {"stablelm",
       {create_rotary_decoder<parse_stablelm_config>, "StableLmForSequenceClassification"}},
      {"starcoder2",
       {create_rotary_decoder<parse_starcoder2_config>, "Starcoder2ForSequenceClassification"}},
      {"t5", {create_t5<parse_t5_config>, nullptr, /*has_encoder=*/true}},
      {"umt5", {create_t5<parse_umt5_config>, nullptr, /*has_encoder=*/true}},
      {"vaultgemma", {create_llama<parse_vaultgemma_config>, nullptr}},
      {"xlm-roberta", encoder<parse_xlm_roberta_config>("XLMRobertaForSequenceClassification",
                                                        "classifier.dense.weight")},
      {"xglm", {create_decoder<OptModel, parse_xglm_config>, nullptr}},
      {"youtu", {create_layers<parse_youtu_config, make_deepseek_layers>, nullptr}}};
  return kFamilies;
}

}  // namespace strata::models
