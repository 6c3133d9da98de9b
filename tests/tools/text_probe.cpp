// Answers questions about tokenizers and chat templates, one JSON object per line, so that the
// parity tests can compare them with the reference. Not part of the program.
#include <fmt/format.h>

#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "strata/base/error.h"
#include "strata/base/exact_json.h"
#include "strata/base/json.h"
#include "strata/text/classes/tokenizer_class.h"
#include "strata/text/templates/chat_template.h"
#include "strata/text/templates/template_marks.h"
#include "strata/text/tokenizer.h"

namespace {

using strata::Json;
using strata::text::ChatTemplate;
using strata::text::StreamDecoder;
using strata::text::Token;
using strata::text::Tokenizer;

const Tokenizer& tokenizer_of(const std::string& folder) {
  static std::map<std::string, std::unique_ptr<Tokenizer>> loaded;
  auto& tokenizer = loaded[folder];
  if (!tokenizer) tokenizer = Tokenizer::load(folder);
  return *tokenizer;
}

Json encode(const Json& request) {
  const Tokenizer& tokenizer = tokenizer_of(request.at("folder"));
  Json ids = Json::array(), ranges = Json::array();
  for (const Token& token : tokenizer.encode_with_ranges(request.at("text").get<std::string>(),
                                                         request.value("special", true))) {
    ids.push_back(token.id);
    ranges.push_back(Json::array({token.begin, token.end}));
  }
  return {{"ids", ids}, {"ranges", ranges}};
}

Json encode_all(const Json& request) {
  Json ids = Json::array(), ranges = Json::array();
  for (const Json& text : request.at("texts")) {
    Json one = encode({{"folder", request.at("folder")},
                       {"text", text},
                       {"special", request.value("special", true)}});
    ids.push_back(std::move(one["ids"]));
    ranges.push_back(std::move(one["ranges"]));
  }
  return {{"ids", ids}, {"ranges", ranges}};
}

// Texts, or pairs of them ([first, second]).
Json join_all(const Json& request) {
  const Tokenizer& tokenizer = tokenizer_of(request.at("folder"));
  Json ids = Json::array(), types = Json::array(), are_cut = Json::array();
  for (const Json& texts : request.at("texts")) {
    std::optional<std::string> second;
    if (texts.size() > 1) second = texts.at(1).get<std::string>();
    const auto joined = tokenizer.encode_texts(texts.at(0).get<std::string>(), second,
                                               request.value("max_length", int64_t{0}));
    ids.push_back(joined.ids);
    types.push_back(joined.types);
    are_cut.push_back(joined.is_cut);
  }
  return {{"ids", ids},
          {"types", types},
          {"are_cut", are_cut},
          {"gives_types", tokenizer.gives_token_types()}};
}

// Texts as sources and as targets, where a tokenizer knows languages in those of the request.
Json translate_all(const Json& request) {
  const auto tokenizer = Tokenizer::load(request.at("folder").get<std::string>());
  if (request.contains("source")) {
    tokenizer->set_languages(request.at("source"), request.at("target"), "languages");
  }
  Json sources = Json::array(), targets = Json::array();
  for (const Json& item : request.at("texts")) {
    const auto text = item.get<std::string>();
    const int64_t max_length = request.value("max_length", int64_t{0});
    sources.push_back(tokenizer->encode_texts(text, std::nullopt, max_length).ids);
    targets.push_back(tokenizer->encode_target(text, max_length).ids);
  }
  return {{"sources", sources}, {"targets", targets}};
}

Json decode(const Json& request) {
  const Tokenizer& tokenizer = tokenizer_of(request.at("folder"));
  const auto ids = request.at("ids").get<std::vector<int32_t>>();
  const bool skips = request.value("skip", true);
  StreamDecoder stream(tokenizer, skips);
  std::string streamed;
  for (const int32_t id : ids) streamed += stream.push(id);
  streamed += stream.finish();
  return {{"text", tokenizer.decode(ids, skips)}, {"streamed", streamed}};
}

Json describe(const Json& request) {
  const Tokenizer& tokenizer = tokenizer_of(request.at("folder"));
  Json tokens = Json::object();
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.id_to_token(id).empty()) tokens[std::to_string(id)] = tokenizer.id_to_token(id);
  }
  const auto& s = tokenizer.specials();
  const auto text = [](const auto& token) { return token ? Json(*token) : Json(nullptr); };
  return {{"vocab_size", tokenizer.vocab_size()},
          {"tokens", tokens},
          {"own", Json(s.own)},
          {"specials", {text(s.bos), text(s.eos), text(s.unk), text(s.pad)}},
          {"template", tokenizer.chat_template()}};
}

Json render(const Json& request) {
  Tokenizer::Specials specials;
  specials.bos = request.value("bos", "<s>");
  specials.eos = request.value("eos", "</s>");
  const ChatTemplate chat_template(request.at("template").get<std::string>());
  const auto rendered =
      chat_template.render(request.at("messages"), specials, request.value("prompt", false),
                           request.value("extra", Json::object()));
  Json spans = Json::array();
  for (const auto& [begin, end] : rendered.generation) spans.push_back(Json::array({begin, end}));
  return {{"text", rendered.text}, {"spans", spans}};
}

// A conversation by the folder's own template.
Json chat(const Json& request) {
  const Tokenizer& tokenizer = tokenizer_of(request.at("folder"));
  const ChatTemplate chat_template(tokenizer.chat_template());
  const std::string text =
      chat_template
          .render(request.at("messages"), tokenizer.specials(), /*add_generation_prompt=*/false)
          .text;
  return {{"text", text}, {"ids", tokenizer.encode(text, /*add_special_tokens=*/false)}};
}

Json answer(const Json& request) {
  const std::string what = request.at("do");
  if (what == "encode") return encode(request);
  if (what == "encode_all") return encode_all(request);
  if (what == "join_all") return join_all(request);
  if (what == "translate_all") return translate_all(request);
  if (what == "decode") return decode(request);
  if (what == "describe") return describe(request);
  if (what == "render") return render(request);
  if (what == "chat") return chat(request);
  if (what == "class") {
    return {
        {"class", strata::text::choose_tokenizer_class(request.value("tokenizer_config", Json()),
                                                       request.value("model_config", Json()),
                                                       request.value("document", Json()))}};
  }
  if (what == "marks") {
    return {{"marks", strata::text::marks_without_token(request.at("template"),
                                                        tokenizer_of(request.at("folder")),
                                                        request.value("own", false))}};
  }
  return {{"error", "unknown request " + what}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    Json reply;
    try {
      reply = answer(strata::parse_json_exactly(line, "request"));
    } catch (const std::exception& error) {
      reply = {{"error", error.what()}};
    }
    std::cout << reply.dump(-1, ' ', /*ensure_ascii=*/true) << std::endl;
  }
}
