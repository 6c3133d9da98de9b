// The rules of transformers 5.23: models/auto/tokenization_auto.py.
#include "strata/text/classes/tokenizer_class.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>

#include "strata/base/error.h"

namespace strata::text {
namespace {

// Model types by their registered class. A type that is missing (llama) has none.
constexpr std::pair<const char*, const char*> kRegistered[] = {
    {kFileAsIs,
     " EvollaModel aria beam bigbird_pegasus canary flex_olmo glm glm4 glm4_moe glm4_moe_lite "
     "glm4v glm4v_moe glm_image glmasr got_ocr2 gpt_bigcode gradium_phonon_tts granite "
     "granitemoe granitemoehybrid granitemoeshared kimi_k25 kimi_linear kosmos-2 "
     "mimo_v2_flash minicpm_ocr minicpmv4_6 minicpmv4_7 ministral ministral3 mistral "
     "mistral3 mistral_large4 mixtral nemo_speechlm nystromformer olmo2 olmo3 olmo_hybrid "
     "pegasus_x persimmon pix2struct pixtral pocket_tts stablelm umt5 voxtral "
     "voxtral_realtime xlm-roberta-xl "},
    {"BertTokenizer",
     " align bark bert blip bros chinese_clip convbert distilbert electra ernie flava git "
     "grounding-dino layoutlm megatron-bert mm-grounding-dino nezha nomic_bert qdqbert realm "
     "retribert squeezebert tvp vilt visual_bert "},
    {"Qwen2Tokenizer",
     " audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl "
     "lighton_ocr moss_transcribe_diarize ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl "
     "qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe "
     "qwen3_vl qwen3_vl_moe vibevoice "},
    {"GPT2Tokenizer",
     " blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip "
     "instructblipvideo jais2 opt phi starcoder2 "},
    {"CLIPTokenizer",
     " aimv2 clip clipseg groupvit omdet-turbo oneformer owlv2 owlvit sam3 sam3_video xclip "},
    {"GemmaTokenizer",
     " diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma "
     "shieldgemma2 t5gemma zaya "},
    {"RobertaTokenizer",
     " bart bridgetower clap data2vec-text ibert lilt longformer mega mra roberta "
     "roberta-prelayernorm "},
    {"GPTNeoXTokenizer", " falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm "},
    {"Wav2Vec2CTCTokenizer",
     " data2vec-audio hubert unispeech unispeech-sat wav2vec2 wav2vec2-bert "
     "wav2vec2-conformer "},
    {"ParakeetTokenizer",
     " granite_speech5_ctc nemotron3_5_asr nemotron_asr_streaming parakeet_ctc parakeet_rnnt "
     "parakeet_tdt "},
    {"XLMRobertaTokenizer", " gte jina_embeddings_v3 metaclip_2 trocr xlm-roberta xmod "},
    {"Qwen3_5Tokenizer", " qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp "},
    {"T5Tokenizer", " mt5 musicgen musicgen_melody switch_transformers t5 "},
    {"CohereTokenizer", " aya_vision cohere cohere2 "},
    {"AlbertTokenizer", " albert yoso "},
    {"EsmcTokenizer", " esmc esmfold2 "},
    {"LasrTokenizer", " lasr_ctc lasr_encoder "},
    {"LlamaTokenizer", " idefics idefics2 "},
    {"NllbTokenizer", " nllb nllb-moe "},
    {"NougatTokenizer", " nougat pp_formulanet "},
    {"SeamlessM4TTokenizer", " seamless_m4t seamless_m4t_v2 "},
    {"BartTokenizer", " florence2 "},
    {"BarthezTokenizer", " barthez "},
    {"BartphoTokenizer", " bartpho "},
    {"BertGenerationTokenizer", " bert-generation "},
    {"BertJapaneseTokenizer", " bert-japanese "},
    {"BertweetTokenizer", " bertweet "},
    {"BigBirdTokenizer", " big_bird "},
    {"BioGptTokenizer", " biogpt "},
    {"BlenderbotSmallTokenizer", " blenderbot-small "},
    {"BlenderbotTokenizer", " blenderbot "},
    {"ByT5Tokenizer", " byt5 "},
    {"CTRLTokenizer", " ctrl "},
    {"CamembertTokenizer", " camembert "},
    {"CanineTokenizer", " canine "},
    {"ClvpTokenizer", " clvp "},
    {"CodeLlamaTokenizer", " code_llama "},
    {"CpmAntTokenizer", " cpmant "},
    {"CpmTokenizer", " cpm "},
    {"DPRQuestionEncoderTokenizer", " dpr "},
    {"DebertaTokenizer", " deberta "},
    {"DebertaV2Tokenizer", " deberta-v2 "},
    {"DiaTokenizer", " dia "},
    {"EsmTokenizer", " esm "},
    {"FNetTokenizer", " fnet "},
    {"FSMTTokenizer", " fsmt "},
    {"FastSpeech2ConformerTokenizer", " fastspeech2_conformer "},
    {"FlaubertTokenizer", " flaubert "},
    {"FunnelTokenizer", " funnel "},
    {"GPTNeoXJapaneseTokenizer", " gpt_neox_japanese "},
    {"GPTSw3Tokenizer", " gpt-sw3 "},
    {"HerbertTokenizer", " herbert "},
    {"LEDTokenizer", " led "},
    {"LayoutLMv2Tokenizer", " layoutlmv2 "},
    {"LayoutLMv3Tokenizer", " layoutlmv3 "},
    {"LayoutXLMTokenizer", " layoutxlm "},
    {"LukeTokenizer", " luke "},
    {"LxmertTokenizer", " lxmert "},
    {"M2M100Tokenizer", " m2m_100 "},
    {"MBart50Tokenizer", " mbart50 "},
    {"MBartTokenizer", " mbart "},
    {"MLukeTokenizer", " mluke "},
    {"MPNetTokenizer", " mpnet "},
    {"MarianTokenizer", " marian "},
    {"MarkupLMTokenizer", " markuplm "},
    {"MgpstrTokenizer", " mgp-str "},
    {"MobileBertTokenizer", " mobilebert "},
    {"MvpTokenizer", " mvp "},
    {"MyT5Tokenizer", " myt5 "},
    {"OpenAIGPTTokenizer", " openai-gpt "},
    {"PLBartTokenizer", " plbart "},
    {"PegasusTokenizer", " pegasus "},
    {"PerceiverTokenizer", " perceiver "},
    {"PhobertTokenizer", " phobert "},
    {"ProphetNetTokenizer", " prophetnet "},
    {"RagTokenizer", " rag "},
    {"ReformerTokenizer", " reformer "},
    {"RemBertTokenizer", " rembert "},
    {"RoCBertTokenizer", " roc_bert "},
    {"RoFormerTokenizer", " roformer "},
    {"Siglip2Tokenizer", " siglip2 "},
    {"SiglipTokenizer", " siglip "},
    {"Speech2TextTokenizer", " speech_to_text "},
    {"SpeechT5Tokenizer", " speecht5 "},
    {"SplinterTokenizer", " splinter "},
    {"TapasTokenizer", " tapas "},
    {"Tipsv2Tokenizer", " tipsv2 "},
    {"UdopTokenizer", " udop "},
    {"VideoPrismTokenizer", " videoprism "},
    {"VitsTokenizer", " vits "},
    {"Wav2Vec2PhonemeCTCTokenizer", " wav2vec2_phoneme "},
    {"WhisperTokenizer", " whisper "},
    {"XGLMTokenizer", " xglm "},
    {"XLMTokenizer", " xlm "},
    {"XLNetTokenizer", " xlnet "},
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
  constexpr std::string_view kTypes =
      " arctic chatlm ernie4_5 ernie4_5_moe fuyu h2ovl_chat hyperclovax internlm2 internlm3 "
      "iquestcoder jamba llava llava_next minicpm3 minicpmv minimax_m2 modernbert "
      "modernbert-decoder molmo molmo2 nemotron nvfp4 opencua openvla paddleocr_vl phi3 "
      "phi3_v phimoe qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp step3_vl vipllava "
      "cohere_asr siglip2 smolvlm hyperclovax_vlm hyperclovax_vision_v2 camembertv2-base ";
  return kTypes.find(' ' + model_type + ' ') != std::string_view::npos;
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

// Names that stand for the class of another model.
std::string class_behind(const std::string& name) {
  static const std::map<std::string, const char*> names = {
      {"BartTokenizer", "RobertaTokenizer"},       {"ElectraTokenizer", "BertTokenizer"},
      {"LEDTokenizer", "RobertaTokenizer"},        {"LayoutLMTokenizer", "BertTokenizer"},
      {"LongformerTokenizer", "RobertaTokenizer"}, {"LxmertTokenizer", "BertTokenizer"},
      {"MobileBertTokenizer", "BertTokenizer"},    {"MvpTokenizer", "RobertaTokenizer"},
      {"Phi3Tokenizer", "LlamaTokenizer"},         {"SqueezeBertTokenizer", "BertTokenizer"},
  };
  const auto it = names.find(name);
  return it == names.end() ? name : it->second;
}

std::string choose_name(const Json& tokenizer_config, const Json& model_config,
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

}  // namespace

std::string choose_tokenizer_class(const Json& tokenizer_config, const Json& model_config,
                                   const Json& document) {
  return class_behind(choose_name(tokenizer_config, model_config, document));
}

bool class_gives_token_types(const std::string& tokenizer_class, const Json& tokenizer_config,
                             const std::string& folder) {
  constexpr std::string_view kClasses[] = {
      "BertTokenizer", "ConvBertTokenizer",   "DebertaTokenizer", "DebertaV2Tokenizer",
      "FNetTokenizer", "LayoutLMv2Tokenizer", "MarkupLMTokenizer"};
  const Json names =
      tokenizer_config.is_object() ? tokenizer_config.value("model_input_names", Json()) : Json();
  if (names.is_null()) return std::ranges::find(kClasses, tokenizer_class) != std::end(kClasses);
  if (names.is_array()) return std::ranges::find(names, "token_type_ids") != names.end();
  throw FormatError("{}/tokenizer_config.json: found model_input_names {}, expected a list", folder,
                    names.dump(-1, ' ', /*ensure_ascii=*/true));
}

}  // namespace strata::text
