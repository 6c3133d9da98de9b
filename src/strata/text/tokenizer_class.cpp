// The rules of transformers 5.23: models/auto/tokenization_auto.py.
#include "strata/text/tokenizer_class.h"

#include <map>
#include <set>

namespace strata::text {
namespace {

// Model types by their registered class. A type that is missing (llama) has none.
constexpr std::pair<const char*, const char*> kRegistered[] = {
    {"GPT2Tokenizer",
     " blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip jais2 opt phi "
     "starcoder2 "},
    {"Qwen2Tokenizer",
     " colqwen2 internvl ovis2 qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 "
     "qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe vibevoice "},
    {"Qwen3_5Tokenizer", " qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp "},
    {"GPTNeoXTokenizer", " falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm "},
    {kFileAsIs,
     " aria bigbird_pegasus flex_olmo glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe got_ocr2 "
     "gpt_bigcode granite granitemoe granitemoehybrid granitemoeshared kimi_k25 kimi_linear "
     "kosmos-2 "
     "mimo_v2_flash minicpmv4_6 minicpmv4_7 nystromformer olmo2 olmo3 olmo_hybrid pegasus_x "
     "persimmon pix2struct stablelm umt5 xlm-roberta-xl ministral ministral3 mistral mistral3 "
     "mistral_large4 mixtral pixtral voxtral "},
    {"GemmaTokenizer",
     " gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2 t5gemma "},
    {"CohereTokenizer", " aya_vision cohere cohere2 "},
    {"RobertaTokenizer",
     " bart bridgetower data2vec-text ibert lilt longformer roberta roberta-prelayernorm "},
    {"T5Tokenizer", " mt5 musicgen switch_transformers t5 "},
    {"BertTokenizer",
     " align bert blip bros chinese_clip convbert distilbert electra ernie flava git layoutlm "
     "megatron-bert nezha nomic_bert squeezebert visual_bert "},
    {"LlamaTokenizer", " idefics idefics2 "},
    {"MPNetTokenizer", " mpnet "},
    {"XLMRobertaTokenizer", " gte jina_embeddings_v3 trocr xlm-roberta xmod "},
    {"CodeLlamaTokenizer", " code_llama "},
    {"CLIPTokenizer", " clip clipseg owlvit owlv2 xclip "},
    {"AlbertTokenizer", " albert yoso "},
    {"DebertaV2Tokenizer", " deberta-v2 "},
    {"WhisperTokenizer", " whisper "},
};

std::string registered_class(const std::string& model_type) {
  for (const auto& [name, types] : kRegistered) {
    if (std::string_view(types).find(' ' + model_type + ' ') != std::string_view::npos) return name;
  }
  return "";
}

// Model types whose published tokenizer_class is known to be wrong: the registered one counts,
// which is the file as written where no other is registered.
bool has_wrong_declared_class(const std::string& model_type) {
  static const std::set<std::string> types = {
      "arctic",       "chatlm",
      "ernie4_5",     "ernie4_5_moe",
      "fuyu",         "h2ovl_chat",
      "hyperclovax",  "internlm2",
      "internlm3",    "iquestcoder",
      "jamba",        "llava",
      "llava_next",   "minicpm3",
      "minicpmv",     "minimax_m2",
      "modernbert",   "modernbert-decoder",
      "molmo",        "molmo2",
      "nemotron",     "nvfp4",
      "opencua",      "openvla",
      "paddleocr_vl", "phi3",
      "phi3_v",       "phimoe",
      "qwen2",        "qwen3_5",
      "qwen3_5_moe",  "qwen3_5_moe_text",
      "qwen4_exp",    "step3_vl",
      "vipllava",     "cohere_asr",
      "siglip2",      "smolvlm",
  };
  return types.contains(model_type);
}

bool is_file_as_is(const std::string& name) {
  return name == kFileAsIs || name == "PreTrainedTokenizer" || name == "PythonBackend";
}

std::string read_string(const Json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

bool has_byte_level(const Json& document) {
  for (const char* part : {"pre_tokenizer", "decoder", "normalizer", "post_processor"}) {
    const auto it = document.is_object() ? document.find(part) : document.end();
    if (it != document.end() && it->dump().find("\"ByteLevel\"") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

std::string choose_tokenizer_class(const Json& tokenizer_config, const Json& model_config,
                                   const Json& document) {
  std::string declared = read_string(tokenizer_config, "tokenizer_class");
  if (declared.empty()) declared = read_string(model_config, "tokenizer_class");
  if (declared.ends_with("Fast")) declared.resize(declared.size() - 4);
  const std::string model_type = read_string(model_config, "model_type");
  const bool is_wrong = has_wrong_declared_class(model_type);
  std::string registered = registered_class(model_type);
  if (is_wrong && registered.empty()) registered = kFileAsIs;
  if (declared == "LlamaTokenizer" && !is_wrong && has_byte_level(document)) return kFileAsIs;
  if (declared.empty()) return registered.empty() ? kFileAsIs : registered;
  if (registered.empty() || registered == declared) return declared;
  if (is_file_as_is(registered)) return kFileAsIs;
  return is_wrong ? registered : declared;
}

}  // namespace strata::text
