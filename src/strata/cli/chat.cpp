// `strata chat`: answers from a model, with or without an adapter.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <random>

#include <fmt/format.h>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"
#include "strata/base/visible_text.h"
#include "strata/cli/chat_lines.h"
#include "strata/cli/command.h"
#include "strata/cli/line_reader.h"
#include "strata/cli/run_sources.h"
#include "strata/cli/standard_streams.h"
#include "strata/cli/waiting_line.h"
#include "strata/config/describe.h"
#include "strata/generate/conversation.h"
#include "strata/generate/generation_config.h"
#include "strata/ops/quant/format.h"
#include "strata/train/setup/base_quantization.h"
#include "strata/train/setup/device.h"

namespace strata::cli {
namespace {

using generate::StopReason;

constexpr const char* kUsage =
    "usage: strata chat MODEL [flags]                 a conversation\n"
    "       strata chat MODEL --prompt TEXT [flags]   one answer\n\n"
    "MODEL stands for --model_name_or_path. Without --prompt it reads turns from the terminal "
    "(Ctrl-D: end, Ctrl-C: stop the answer) or,\n"
    "line by line, from standard input. Answers go to standard output. Flags take hyphens or\n"
    "underscores.\n\n"
    "between turns:\n"
    "  /reset                        a new conversation\n"
    "  /exit                         end\n"
    "  /adapters                     lists adapters\n"
    "  /adapter NAME                 uses one of them; off: none\n"
    "  /merge, /unmerge              folds the one in use into the weights; takes it out again\n";

struct ChatRequest {
  config::ChatConfig config;
  config::QuantizationConfig quantization;
  std::vector<std::string> prompts;
  std::vector<generate::NamedAdapter> adapters;
};

// NAME=FOLDER, or a folder, which is named as its last part.
generate::NamedAdapter named_adapter(const std::string& text) {
  const size_t equals = text.find('=');
  generate::NamedAdapter adapter;
  if (equals == std::string::npos) {
    adapter.folder = text;
    adapter.name = std::filesystem::absolute(adapter.folder / "").parent_path().filename().string();
  } else {
    adapter.name = text.substr(0, equals);
    adapter.folder = text.substr(equals + 1);
  }
  if (!adapter.name.empty() && !text.ends_with('=')) return adapter;
  throw ConfigError("--adapter: found \"{}\", expected NAME=FOLDER; name both", text);
}

// ConfigError for both widths at once, and for flags of a width that is not asked for.
void require_one_width(const config::QuantizationConfig& asked,
                       const std::vector<config::Given>& given_flags) {
  if (asked.load_in_4bit && asked.load_in_8bit) {
    throw ConfigError(
        "--load_in_4bit: found with --load_in_8bit, expected one of them; remove one");
  }
  if (asked.load_in_4bit) {
    ops::quant::check_block(asked.bnb_4bit_blocksize, "--bnb_4bit_blocksize");
  }
  const bool is_on = asked.load_in_4bit || asked.load_in_8bit;
  for (const config::Given& given : given_flags) {
    const std::string_view name = given.setting->name;
    const bool has_effect = name.starts_with("bnb_4bit_")     ? asked.load_in_4bit
                            : name == "llm_int8_threshold"    ? asked.load_in_8bit
                            : name == "llm_int8_skip_modules" ? is_on
                                                              : true;
    if (has_effect) continue;
    throw ConfigError("--{}: found without --{}, expected both; add it or remove this", name,
                      name == "llm_int8_threshold" ? "load_in_8bit" : "load_in_4bit");
  }
}

// The model's folder or name may stand before the flags.
std::vector<std::string> with_named_model(std::vector<std::string> arguments) {
  if (!arguments.empty() && !arguments[0].empty() && arguments[0][0] != '-') {
    arguments.insert(arguments.begin(), "--model_name_or_path");
  }
  return arguments;
}

ChatRequest read_request(const std::vector<std::string>& arguments) {
  config::RunConfig config;
  ChatRequest request;
  const std::vector<config::Given> given_flags =
      read_command_flags(config::chat_settings_table(), "chat", with_named_model(arguments));
  for (const config::Given& given : given_flags) {
    if (given.setting->name == "adapter") {
      request.adapters.push_back(named_adapter(given.value.items.at(0)));
      continue;
    }
    if (given.setting->name != "prompt") {
      config::assign(given, config);
      continue;
    }
    const std::string& prompt = given.value.items.at(0);
    if (prompt.find_first_not_of(" \t\r\n") == std::string::npos) {
      throw ConfigError("--prompt: found an empty text, expected words for the model");
    }
    require_utf8(prompt, "--prompt");
    request.prompts.push_back(prompt);
  }
  request.config = config.chat;
  request.quantization = config.quantization;
  require_one_width(request.quantization, given_flags);
  return request;
}

// A flag that greedy answers would not feel.
void require_sampling(const config::ChatConfig& chat) {
  if (chat.do_sample.value_or(false)) return;
  const std::pair<const char*, bool> kFlags[] = {{"temperature", chat.temperature.has_value()},
                                                 {"top_k", chat.top_k.has_value()},
                                                 {"top_p", chat.top_p.has_value()},
                                                 {"min_p", chat.min_p.has_value()},
                                                 {"seed", chat.seed.has_value()}};
  for (const auto& [name, is_given] : kFlags) {
    if (!is_given) continue;
    throw ConfigError(
        "--{}: found with do_sample off, where it has no effect, expected --do_sample with it; add "
        "--do_sample or leave --{} out",
        name, name);
  }
}

// Flags before the model's file before the reference's defaults.
generate::SamplingOptions sampling_options(const config::ChatConfig& chat,
                                           const generate::GenerationConfig& file) {
  generate::SamplingOptions options;
  const auto choose = [](const auto& flag, const auto& from_file, auto& value) {
    value = flag ? *flag : from_file.value_or(value);
  };
  options.do_sample = chat.do_sample.value_or(false);
  choose(chat.repetition_penalty, file.repetition_penalty, options.repetition_penalty);
  // Greedy answers feel nothing of the others, whatever a file says: temperature 0, top_k -1.
  if (!options.do_sample) return options;
  choose(chat.temperature, file.temperature, options.temperature);
  choose(chat.top_k, file.top_k, options.top_k);
  choose(chat.top_p, file.top_p, options.top_p);
  choose(chat.min_p, file.min_p, options.min_p);
  return options;
}

void note(const std::string& text) { tell("note: {}\n", visible(text)); }

// Not through stdio, which gives up when Ctrl-C comes during a write.
void write_answer(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw IoError("standard output: {}", errno_text(errno));
    text.remove_prefix(static_cast<size_t>(count));
  }
}

std::atomic<bool> interrupted = false;

// Without SA_RESTART, so that waiting for a line ends too.
void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = true; };
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
}

generate::LoadOptions load_options(const ChatRequest& request) {
  const config::ChatConfig& chat = request.config;
  generate::LoadOptions options{
      .model = chat.model_name_or_path,
      .adapter = chat.adapter_name_or_path,
      .adapters = request.adapters,
      .dtype = chat.dtype,
      .device = train::count_gpus() > 0 ? at::Device(at::kCUDA, 0) : at::kCPU,
      .cache = chat.cache_dir,
      .download_progress = shown_downloads()};
  const config::QuantizationConfig& asked = request.quantization;
  options.decoded = {
      .mxfp4 = asked.mxfp4_dequantize, .fp8 = asked.fp8_dequantize, .ints = asked.int_dequantize};
  if (!asked.load_in_4bit && !asked.load_in_8bit && !asked.mxfp4_dequantize &&
      !asked.fp8_dequantize && !asked.int_dequantize) {
    return options;
  }
  const Json base = read_json_file(generate::find_model(options).base / "config.json");
  options.quantization = train::quantization_of(asked, base);
  for (const std::string& text : train::quantization_warnings(asked, base)) note(text);
  return options;
}

class Chat {
 public:
  explicit Chat(const ChatRequest& request) : Chat(request.config, load_options(request)) {}

  Chat(const config::ChatConfig& chat, const generate::LoadOptions& options)
      : model_(options),
        tokenizer_(text::Tokenizer::load(model_.tokenizer_folder())),
        file_(generate::read_generation_config(model_.paths().base)),
        conversation_(model_, *tokenizer_, chat.system),
        sampler_(sampling_options(chat, file_), chat.seed ? *chat.seed : std::random_device{}()) {
    options_.max_new_tokens = chat.max_new_tokens;
    options_.eos_ids = file_.eos_ids;
    if (tokenizer_->eos_id()) options_.eos_ids.push_back(*tokenizer_->eos_id());
    options_.is_asked_to_stop = [] { return interrupted.load(); };
    for (const std::string& text : model_.notes()) note(text);
    for (const auto& notes : {file_.notes, file_.decoder_notes}) {
      for (const std::string& text : notes) note(text);
    }
    if (file_.do_sample.value_or(false) && !chat.do_sample) {
      note(file_.source +
           " asks for sampling, answers are the most likely ones; add --do_sample, or --do_sample "
           "false to silence this");
    }
    if (!conversation_.has_template()) {
      note("the model has no chat template; it continues the text of each prompt");
    }
  }

  StopReason answer(const std::string& prompt) {
    bool ends_line = false;
    const StopReason reason =
        conversation_.answer(prompt, options_, sampler_, [&](std::string_view piece) {
          write_answer(shows_escapes_ ? visible(piece) : std::string(piece));
          if (!piece.empty()) ends_line = piece.ends_with('\n');
          return !interrupted;
        });
    if (!ends_line) write_answer("\n");
    if (reason == StopReason::kContextLimit) {
      note(fmt::format("the answer ends at the model's context of {} tokens {}",
                       model_.max_text_tokens(), model_.text_limit_note()));
    }
    return reason;
  }

  // Whether the line was a command, not a turn. ConfigError for an unknown command or adapter, and
  // for commands of adapters without any.
  bool obey(const std::string& line) {
    if (obey_known(line)) return true;
    if (!is_command_word(line)) return false;
    throw ConfigError(
        "{}: found an unknown command, expected /reset, /exit, /adapters, /adapter NAME, /merge or "
        "/unmerge; put a space before it to send it to the model",
        line);
  }

 private:
  bool obey_known(const std::string& line) {
    if (line == "/reset") {
      reset();
      return true;
    }
    if (model_.adapter_names().empty()) {
      if (!is_adapter_command(line)) return false;
      throw ConfigError(
          "{}: found no adapters to choose from, expected some; start with --adapter NAME=FOLDER",
          line);
    }
    if (line == "/adapters") {
      list_adapters();
    } else if (line == "/adapter off") {
      model_.use_adapter("");
    } else if (line.starts_with("/adapter ")) {
      model_.use_adapter(line.substr(line.find_last_of(' ') + 1));
    } else if (line == "/merge") {
      model_.merge_adapter();
    } else if (line == "/unmerge") {
      model_.unmerge_adapter();
    } else {
      return false;
    }
    return true;
  }

  void reset() {
    conversation_.reset();
    sampler_.reset();
  }

  static bool is_adapter_command(const std::string& line) {
    return line == "/adapters" || line == "/merge" || line == "/unmerge" ||
           line.starts_with("/adapter ");
  }

  void list_adapters() const {
    for (const std::string& name : model_.adapter_names()) {
      const bool is_active = name == model_.active_adapter();
      tell("{} {}{}\n", is_active ? "*" : " ", name, model_.is_merged(name) ? " (merged)" : "");
    }
  }

  generate::LoadedModel model_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  generate::GenerationConfig file_;
  generate::Conversation conversation_;
  generate::Sampler sampler_;
  generate::GenerateOptions options_;
  // A terminal would obey what the model writes; a file gets it as it is.
  const bool shows_escapes_ = ::isatty(STDOUT_FILENO) == 1;
};

void converse_on_terminal(Chat& chat, const config::ChatConfig& config) {
  catch_interrupts();
  tell("/reset: a new conversation, /exit or Ctrl-D: end, Ctrl-C: stop an answer\n");
  LineReader reader(&interrupted);
  std::string line;
  while (true) {
    interrupted = false;
    tell("> ");
    const LineEnd end = reader.read(line);
    line = without_blanks_behind_command(line);
    if (end != LineEnd::kLine) tell("\n");
    if (end == LineEnd::kEndOfInput || line == "/exit") return;
    if (end == LineEnd::kInterrupted || is_blank(line)) continue;
    // What does not fit ends neither the program nor the conversation.
    try {
      require_utf8(line, "standard input");
      if (chat.obey(line)) continue;
    } catch (const Error& error) {
      tell("error: {}\n", visible(error.what()));
      continue;
    }
    try {
      if (chat.answer(line) == StopReason::kMaxNewTokens) {
        note(fmt::format("the answer ends after {} (max_new_tokens)",
                         counted(config.max_new_tokens, "token")));
      }
    } catch (const ConfigError& error) {
      tell("error: {}; /reset starts a new one\n", visible(error.what()));
    } catch (const FormatError& error) {  // of the template, which may refuse what was said
      tell("error: {}\n", visible(error.what()));
    }
  }
}

void answer_lines(Chat& chat) {
  LineReader reader;
  std::string line;
  for (int number = 1; reader.read(line) == LineEnd::kLine; ++number) {
    line = without_blanks_behind_command(line);
    if (line == "/exit") return;
    require_utf8(line, fmt::format("standard input:{}", number));
    if (is_blank(line) || chat.obey(line)) continue;
    chat.answer(line);
  }
}

}  // namespace

int run_chat(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}{}", kUsage, config::flags_help(config::chat_settings_table(), help_columns()));
    return 0;
  }
  const ChatRequest request = read_request(arguments);
  require_sampling(request.config);
  std::optional<Chat> loaded;
  naming_model(request.config.model_name_or_path, [&] { loaded.emplace(request); });
  Chat& chat = *loaded;
  for (const std::string& given : request.prompts) {
    const std::string prompt = without_blanks_behind_command(given);
    if (prompt == "/exit") return 0;
    if (!chat.obey(prompt)) chat.answer(prompt);
  }
  if (!request.prompts.empty()) return 0;
  if (::isatty(STDIN_FILENO) == 1) {
    converse_on_terminal(chat, request.config);
  } else {
    answer_lines(chat);
  }
  return 0;
}

}  // namespace strata::cli
