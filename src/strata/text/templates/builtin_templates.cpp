#include "strata/text/templates/builtin_templates.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/text/vocabulary_files.h"

namespace strata::text {
namespace {

// What PEFT's examples/sft give a tokenizer together with a format.
struct FormatTokens {
  std::string_view bos, eos, pad;
  std::span<const std::string_view> roles;
};

struct BuiltinTemplate {
  std::string_view name;    // value of chat_template_format
  std::string_view source;  // Jinja
  // Tokens of a tokenizer that knows the format: without them the turns have no borders.
  std::span<const std::string_view> tokens;
  // What a tokenizer gets that does not know it; null: such a one is refused.
  const FormatTokens* added = nullptr;
};

constexpr std::string_view kChatmlTokens[] = {"<|im_start|>", "<|im_end|>"};
constexpr std::string_view kChatmlRoles[] = {"<|im_start|>user", "<|im_start|>assistant",
                                             "<|im_start|>system"};
constexpr FormatTokens kChatmlAdded = {
    .bos = "<s>", .eos = "<|im_end|>", .pad = "<pad>", .roles = kChatmlRoles};
constexpr std::string_view kChatml =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ message['content'] + '<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

constexpr std::string_view kZephyrTokens[] = {"<|user|>", "<|assistant|>", "<|system|>"};
constexpr FormatTokens kZephyrAdded = {
    .bos = "<s>", .eos = "</s>", .pad = "<pad>", .roles = kZephyrTokens};
constexpr std::string_view kZephyr =
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ message['content'] + eos_token + '\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

constexpr std::string_view kLlama2 =
    "{% if messages[0]['role'] == 'system' %}"
    "{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}"
    "{% set turns = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
    "{% for message in turns %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}"
    "{% if message['role'] == 'user' %}"
    "{% set content = (system if loop.first else '') + message['content'].strip() %}"
    "{{ bos_token }}{{ '[INST] ' + content + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{% generation %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endgeneration %}"
    "{% else %}{{ raise_exception('Only user, assistant and system roles are supported, found ' + "
    "message['role']) }}{% endif %}"
    "{% endfor %}";

constexpr std::string_view kLlama3Tokens[] = {"<|start_header_id|>", "<|end_header_id|>",
                                              "<|eot_id|>"};
constexpr std::string_view kLlama3 =
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'].strip() + '<|eot_id|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'].strip() + '<|eot_id|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
    "{% endif %}";

constexpr std::string_view kAlpaca =
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}"
    "{% elif message['role'] == 'user' %}"
    "{% if loop.first %}{{ 'Below is an instruction that describes a task. Write a response that "
    "appropriately completes the request.\\n\\n' }}{% endif %}"
    "{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '### Response:\\n' }}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{{ '\\n\\n' }}"
    "{% else %}{{ raise_exception('Only user, assistant and system roles are supported, found ' + "
    "message['role']) }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}";

constexpr std::string_view kVicuna =
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{% else %}"
    "{{ \"A chat between a curious user and an artificial intelligence assistant. The assistant "
    "gives helpful, detailed, and polite answers to the user's questions.\" }}{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ ' USER: ' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ASSISTANT:' }}"
    "{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}"
    "{% elif message['role'] != 'system' or not loop.first %}"
    "{{ raise_exception('Only user, assistant and a first system message are supported, found ' + "
    "message['role']) }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ ' ASSISTANT:' }}{% endif %}";

// <|system|>...<|endoftext|><|prompter|>...<|endoftext|><|assistant|>...<|endoftext|>
constexpr std::string_view kOasstTokens[] = {"<|prompter|>", "<|assistant|>", "<|endoftext|>"};
constexpr std::string_view kOasst =
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ '<|system|>' + message['content'] + '<|endoftext|>' }}"
    "{% elif message['role'] in ['user', 'prompter'] %}"
    "{{ '<|prompter|>' + message['content'] + '<|endoftext|>' }}"
    "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>' }}"
    "{% generation %}{{ message['content'] + '<|endoftext|>' }}{% endgeneration %}"
    "{% else %}{{ raise_exception('Only system, user (or prompter) and assistant roles are "
    "supported, found ' + message['role']) }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";

constexpr BuiltinTemplate kTemplates[] = {
    {"chatml", kChatml, kChatmlTokens, &kChatmlAdded},
    {"zephyr", kZephyr, kZephyrTokens, &kZephyrAdded},
    {"llama-2", kLlama2, {}},
    {"llama-3", kLlama3, kLlama3Tokens},
    {"alpaca", kAlpaca, {}},
    {"vicuna", kVicuna, {}},
    {"oasst", kOasst, kOasstTokens},
};

bool knows_all(const Tokenizer& tokenizer, std::span<const std::string_view> tokens) {
  return std::ranges::all_of(
      tokens, [&](std::string_view token) { return tokenizer.token_to_id(token).has_value(); });
}

// In the order in which transformers adds named and further tokens.
int add_format_tokens(Tokenizer& tokenizer, const FormatTokens& format) {
  std::vector<AddedToken> tokens;
  for (const std::string_view token : {format.bos, format.eos, format.pad}) {
    tokens.push_back({.content = std::string(token), .normalized = false, .special = true});
  }
  for (const std::string_view token : format.roles) {
    tokens.push_back({.content = std::string(token), .normalized = false, .special = true});
  }
  const int count = tokenizer.add_tokens(tokens);
  tokenizer.set_bos_token(std::string(format.bos));
  tokenizer.set_pad_token(std::string(format.pad));
  return count;
}

// A format with tokens of its own: adds them where they are missing.
TemplateSource format_source(Tokenizer& tokenizer, const BuiltinTemplate& format) {
  TemplateSource result{.text = std::string(format.source),
                        .name = "chat template " + std::string(format.name),
                        .multiple = 8};
  if (!knows_all(tokenizer, format.tokens)) {
    result.num_added = add_format_tokens(tokenizer, *format.added);
  }
  const std::string eos(format.added->eos);
  if (tokenizer.token_to_id(eos)) tokenizer.set_eos_token(eos);
  return result;
}

TemplateSource builtin_source(Tokenizer& tokenizer, const std::string& format) {
  std::vector<std::string_view> names;
  for (const BuiltinTemplate& one : kTemplates) {
    names.push_back(one.name);
    if (one.name != format) continue;
    if (one.added != nullptr) return format_source(tokenizer, one);
    for (const std::string_view token : one.tokens) {
      if (tokenizer.token_to_id(token)) continue;
      throw ConfigError(
          "chat_template_format: found no token \"{}\" in the tokenizer, expected the tokens of "
          "{}; choose a format that the model was made for, or add the token to tokenizer and "
          "model",
          token, format);
    }
    if (!tokenizer.specials().eos && one.source.find("eos_token") != std::string_view::npos) {
      throw ConfigError(
          "chat_template_format: found a tokenizer without an end-of-sequence token, expected one "
          "for {}; pass --eos_token",
          format);
    }
    return {.text = std::string(one.source), .name = "chat template " + format};
  }
  throw ConfigError("chat_template_format: found \"{}\", expected none, {}", format,
                    fmt::join(names, ", "));
}

// Template, tokens and end of sequence of another tokenizer.
TemplateSource clone_source(Tokenizer& tokenizer, const std::filesystem::path& folder) {
  TemplateSource result{.text = {}, .name = folder.string(), .multiple = 64, .fills_up = true};
  if (!vocabularies_in(folder).empty()) {
    const auto other = Tokenizer::load(folder);
    result.text = other->chat_template();
    std::vector<AddedToken> missing;
    for (AddedToken& token : other->added_tokens()) {
      if (!tokenizer.token_to_id(token.content)) missing.push_back(std::move(token));
    }
    if (!result.text.empty()) result.num_added = tokenizer.add_tokens(missing);
    if (other->specials().eos && tokenizer.token_to_id(*other->specials().eos)) {
      tokenizer.set_eos_token(*other->specials().eos);
    }
  } else if (const auto file = folder / "chat_template.jinja"; std::filesystem::exists(file)) {
    result.text = read_file(file);
  }
  if (result.text.empty()) {
    throw ConfigError(
        "chat_template_path: found no chat template in {}, expected chat_template.jinja or a "
        "tokenizer that has one; name the file itself",
        folder.string());
  }
  return result;
}

}  // namespace

TemplateSource choose_chat_template(Tokenizer& tokenizer, const std::string& path,
                                    const std::string& format) {
  if (!path.empty() && std::filesystem::is_directory(path)) return clone_source(tokenizer, path);
  if (!path.empty() && !std::filesystem::exists(path)) {
    const auto named = tokenizer.other_templates().find(path);
    if (named != tokenizer.other_templates().end()) {
      return {.text = named->second, .name = "chat template " + path};
    }
  }
  if (!path.empty()) {
    TemplateSource source{.text = read_file(path), .name = path};
    if (source.text.find_first_not_of(" \t\r\n") != std::string::npos) return source;
    throw ConfigError(
        "chat_template_path: found nothing in {}, expected a chat template; leave it out for the "
        "tokenizer's own",
        path);
  }
  if (format != "none") return builtin_source(tokenizer, format);
  return {.text = tokenizer.chat_template(),
          .name = tokenizer.chat_template_name(),
          .tool_text = tokenizer.tool_template()};
}

}  // namespace strata::text
