// Loads a model folder: chooses its files and class, and builds the pipeline.
#include <algorithm>
#include <unordered_set>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/text/classes/mistral_pattern.h"
#include "strata/text/classes/rules.h"
#include "strata/text/classes/tokenizer_class.h"
#include "strata/text/clean_up.h"
#include "strata/text/component_json.h"
#include "strata/text/length_rules.h"
#include "strata/text/templates/template_files.h"
#include "strata/text/tokenizer_impl.h"
#include "strata/text/tokenizer_parts.h"
#include "strata/text/vocabulary_files.h"

namespace strata::text {
namespace fs = std::filesystem;

void Tokenizer::Impl::build(TokenizerFile& file) {
  const Json& document = file.document;
  const auto component = [&](const char* name) {
    const auto it = document.find(name);
    return it == document.end() ? Json(nullptr) : *it;
  };
  const std::string where = file.subject + ": ";
  normalizer = make_normalizer(component("normalizer"), where + "normalizer");
  pre_tokenizer = make_pre_tokenizer(component("pre_tokenizer"), where + "pre_tokenizer");
  maps_bytes = pre_tokenizer != nullptr && pre_tokenizer->defer_byte_characters();
  post_processor = make_post_processor(component("post_processor"), where + "post_processor");
  decoder = make_decoder(component("decoder"), where + "decoder");
  lengths = {{"truncation", component("truncation")}, {"padding", component("padding")}};
  model = make_model(file);
  cuts_words = !maps_bytes && model->cuts_before(kWordMark);
}

void Tokenizer::Impl::add_tokens(const NamedTokens& tokens, const TokenizerFile& file,
                                 bool is_rebuilt) {
  const Vocabulary& vocabulary = model->vocabulary();
  for (const AddedToken& token : tokens.added) added.add(token, vocabulary);
  for (const AddedToken& token : tokens.legacy) {
    if (!added.find(token.content)) added.add(token, vocabulary);
  }
  std::unordered_set<std::string> known;
  for (const AddedToken& token : added.all()) known.insert(token.content);
  for (const AddedToken& token : tokens.specials_to_add) {
    if (!known.contains(token.content)) added.add(token, vocabulary);
  }
  added.prepare(normalizer.get());
  vocab_size = std::max(vocabulary.end_id(), added.end_id());
  specials = specials_at_load = tokens.specials;
  const auto listed = file.document.find("added_tokens");
  if (is_rebuilt || listed == file.document.end()) return;
  // `tokenizers` gives ids out anew and only warns; weights trained for other ids would be wrong.
  for (const Json& json : *listed) {
    if (!json.contains("id")) continue;  // converted from a file that gives no ids
    const std::string content = required_string(json, "content", file.subject + ": added_tokens");
    const int64_t id = int_field(json, "id", -1, file.subject + ": added_tokens");
    if (const auto given = added.find(content); given && *given != id) {
      throw FormatError(
          "{}: found id {} for the added token \"{}\", expected {} (its id in the "
          "vocabulary or the next free one)",
          file.subject, id, content, *given);
    }
  }
}

// The document's pre-tokenizer with the pattern that `config` asks for; nothing where it stays.
static std::optional<Json> corrected_pre_tokenizer(const Json& config, const Json& model_config,
                                                   const Json& document, int64_t vocab_size,
                                                   const std::string& where) {
  const auto written = document.find("pre_tokenizer");
  if (!config.is_object() || written == document.end() || written->is_null()) return std::nullopt;
  const bool is_asked = bool_field(config, "fix_mistral_regex", /*fallback=*/false, where);
  if (!is_asked || !may_have_wrong_pattern(model_config, vocab_size)) return std::nullopt;
  return with_right_pattern(*written);
}

// The settings of tokenizer_config.json that change how a text is cut, whatever the class.
void Tokenizer::Impl::use_switches(const Json& config, const Json& model_config,
                                   const Json& document) {
  if (!config.is_object()) return;
  const std::string where = fs::path(subject).replace_filename("tokenizer_config.json").string();
  if (bool_field(config, "split_special_tokens", /*fallback=*/false, where)) {
    added.ignore_specials_in_text();
  }
  const auto corrected = corrected_pre_tokenizer(config, model_config, document, vocab_size, where);
  if (!corrected) return;
  pre_tokenizer = make_pre_tokenizer(*corrected, where + ": fix_mistral_regex");
  maps_bytes = pre_tokenizer->defer_byte_characters();
  cuts_words = !maps_bytes && model->cuts_before(kWordMark);
  pipeline += ", corrected pattern";
}

void Tokenizer::Impl::use_post_processor(Json document) {
  post_processor = resolved_post_processor(std::move(document));
}

// The post-processor of a class, whose tokens are given by their names.
std::unique_ptr<PostProcessor> Tokenizer::Impl::resolved_post_processor(Json document) const {
  const std::map<std::string, std::optional<std::string> Specials::*> names = {
      {"bos_token", &Specials::bos},
      {"eos_token", &Specials::eos},
      {"sep_token", &Specials::sep},
      {"cls_token", &Specials::cls}};
  const auto resolve = [&](Json& id) {
    if (!id.is_string()) return;
    const auto name = names.find(id.get<std::string>());
    const std::optional<std::string> token =
        name == names.end() ? std::optional(id.get<std::string>()) : specials.*name->second;
    auto found = token ? find(*token) : std::nullopt;
    // A token that is not there, such as that of a language, becomes the unknown one.
    if (!found && name == names.end() && specials.unk) found = find(*specials.unk);
    if (!found) {
      throw FormatError("{}: found no {}, expected one, because the tokenizer class adds it",
                        subject, id.get<std::string>());
    }
    id = *found;
  };
  if (document.contains("special_tokens")) {
    for (Json& token : document["special_tokens"]) {
      for (Json& id : token["ids"]) resolve(id);
    }
  }
  for (const char* key : {"sep", "cls"}) {
    if (document.contains(key)) resolve(document[key][1]);
  }
  return make_post_processor(document, subject + ": post_processor");
}

namespace {

Json read_if_present(const fs::path& path, std::vector<fs::path>& files) {
  if (!fs::exists(path)) return nullptr;
  files.push_back(path);
  Json json = read_json_file(path);
  if (!json.is_object()) {
    throw FormatError("{}: found {}, expected an object", path.string(), json.type_name());
  }
  return json;
}

}  // namespace

// What a folder says of its tokenizer.
struct FolderFiles {
  TokenFiles files = {};
  Json settings = {};
  Json model_config = {};
  bool has_tokenizer_json = false;
  TokenizerFile file = {};
  std::string tokenizer_class = {};
};

namespace {

enum class Side { kSources, kTargets };

FolderFiles read_folder(const fs::path& folder, std::vector<fs::path>& paths,
                        Side side = Side::kSources) {
  FolderFiles source;
  TokenFiles& files = source.files;
  files.tokenizer_config = read_if_present(folder / "tokenizer_config.json", paths);
  files.special_tokens_map = read_if_present(folder / "special_tokens_map.json", paths);
  files.added_tokens = read_if_present(folder / "added_tokens.json", paths);
  source.settings = merged_settings(files);
  std::vector<fs::path> not_ours;
  const Json& model_config = source.model_config =
      read_if_present(folder / "config.json", not_ours);
  const fs::path path = folder / "tokenizer.json";
  const std::string without_it =
      choose_tokenizer_class(files.tokenizer_config, model_config, nullptr);
  const bool is_mapped = has_mapped_files(folder, without_it);
  source.has_tokenizer_json = fs::exists(path) && !is_mapped;
  if (source.has_tokenizer_json) {
    source.file = read_tokenizer_file(path);
    paths.push_back(path);
    source.tokenizer_class =
        choose_tokenizer_class(files.tokenizer_config, model_config, source.file.document);
    require_described_class(source.tokenizer_class, /*has_tokenizer_json=*/true, folder.string());
  } else {
    if (!is_mapped) {
      require_described_class(without_it, /*has_tokenizer_json=*/false, folder.string());
    }
    VocabularyFiles found =
        is_mapped ? read_mapped_files(folder, source.settings, without_it, side == Side::kTargets)
                  : read_vocabulary_files(folder, source.settings, without_it);
    source.file = std::move(found.file);
    // What a class reads from its settings and the model file says.
    source.settings.update(source.file.document.value("settings", Json::object()));
    source.tokenizer_class = found.tokenizer_class;
    paths.insert(paths.end(), found.paths.begin(), found.paths.end());
  }
  require_field(source.file.document, "model", source.file.subject);
  return source;
}

std::string model_type(const Json& document) {
  const Json& model = document.at("model");
  return model.is_object() ? model.value("type", "") : "";
}

}  // namespace

// The pipeline that a folder describes.
void Tokenizer::Impl::assemble(FolderFiles source, const fs::path& folder) {
  Json& document = source.file.document;
  subject = source.file.subject;
  pipeline = source.tokenizer_class;
  ClassRules rules =
      apply_class_rules(source.tokenizer_class, source.settings, document, folder.string());
  if (!source.has_tokenizer_json) add_file_specials(document, source.tokenizer_class, rules);
  const NamedTokens tokens = collect_tokens(source.files, document, rules, folder.string());
  build(source.file);
  cleans_spaces = cleans_up_spaces(source.settings, source.tokenizer_class, model_type(document));
  add_tokens(tokens, source.file, !rules.name.empty());
  const Json& config = source.files.tokenizer_config;
  use_switches(config, source.model_config, document);
  if (!source.has_tokenizer_json && rules.post_processor.is_null()) {
    rules.post_processor = ends_by_flags(config, rules.default_specials);
  }
  if (!rules.post_processor.is_null()) use_post_processor(rules.post_processor);
  language_ends = rules.language_ends;
  reads_code_prefix = rules.reads_code_prefix;
  truncates_from_left = text::truncates_from_left(config, document, folder.string());
}

std::unique_ptr<Tokenizer> Tokenizer::load(const fs::path& folder) {
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
  Impl& impl = *tokenizer->impl_;
  FolderFiles source = read_folder(folder, impl.files);
  const Json config = source.files.tokenizer_config;
  const std::string tokenizer_class = source.tokenizer_class;
  if (!source.has_tokenizer_json && has_target_pieces(tokenizer_class)) {
    impl.of_targets = std::make_unique<Impl>();
    impl.of_targets->assemble(read_folder(folder, impl.of_targets->files, Side::kTargets), folder);
  }
  impl.assemble(std::move(source), folder);
  TemplateFiles templates = read_template_files(folder, config);
  impl.files.insert(impl.files.end(), templates.files.begin(), templates.files.end());
  impl.model_max_length = read_model_max_length(config, folder.string());
  impl.gives_token_types = class_gives_token_types(tokenizer_class, config, folder.string());
  impl.chat_template = std::move(templates.standard);
  impl.chat_template_name = "chat template of " + folder.string();
  impl.tool_template = std::move(templates.tools);
  impl.other_templates = std::move(templates.others);
  return tokenizer;
}

TokenizerParts read_tokenizer_parts(const fs::path& folder) {
  std::vector<fs::path> paths;
  FolderFiles source = read_folder(folder, paths);
  Json& document = source.file.document;
  apply_class_rules(source.tokenizer_class, source.settings, document, folder.string());
  const auto component = [&](const char* name) { return document.value(name, Json(nullptr)); };
  TokenizerParts parts{.subject = source.file.subject,
                       .model = component("model"),
                       .normalizer = component("normalizer"),
                       .pre_tokenizer = component("pre_tokenizer"),
                       .vocabulary = std::move(source.file.vocab),
                       .merges = std::move(source.file.merges)};
  int64_t end = 0;
  for (const auto& [token, id] : parts.vocabulary) end = std::max(end, id + 1);
  for (const Json& token : document.value("added_tokens", Json::array())) {
    end = std::max(end, int_field(token, "id", -1, parts.subject) + 1);
  }
  const std::string where = (folder / "tokenizer_config.json").string();
  if (auto corrected = corrected_pre_tokenizer(source.files.tokenizer_config, source.model_config,
                                               document, end, where)) {
    parts.pre_tokenizer = std::move(*corrected);
  }
  return parts;
}

}  // namespace strata::text
