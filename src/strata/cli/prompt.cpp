// Menus and lines.
#include "strata/cli/prompt.h"

#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

#include "strata/base/error.h"

namespace strata::cli {
namespace {

enum class Key { kUp, kDown, kEnter, kInterrupt, kEnd, kOther };
struct KeyPress {
  Key key = Key::kOther;
  char character = 0;
};

// Keys one by one and unseen, for as long as it lives.
class KeyMode {
 public:
  KeyMode() {
    ::tcgetattr(STDIN_FILENO, &before_);
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
    keys.c_cc[VMIN] = 1;
    keys.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &keys);
  }
  ~KeyMode() { ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_); }
  KeyMode(const KeyMode&) = delete;
  KeyMode& operator=(const KeyMode&) = delete;

 private:
  termios before_{};
};

// 0 at the end of input.
char read_byte() {
  char byte = 0;
  return ::read(STDIN_FILENO, &byte, 1) == 1 ? byte : '\0';
}

KeyPress read_key() {
  const char byte = read_byte();
  switch (byte) {
    case '\r':
    case '\n':
      return {Key::kEnter};
    case '\x03':
      return {Key::kInterrupt};
    case '\x04':
    case '\0':
      return {Key::kEnd};
    case '\x1b': {
      // ESC [ A or, in a terminal's application mode, ESC O A.
      const char second = read_byte();
      if (second != '[' && second != 'O') return {};
      const char third = read_byte();
      return {third == 'A' ? Key::kUp : third == 'B' ? Key::kDown : Key::kOther};
    }
    default:
      return {Key::kOther, byte};
  }
}

void write_out(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string menu_rows(const std::vector<std::string>& options, size_t position) {
  std::string rows;
  for (size_t i = 0; i < options.size(); ++i) {
    rows += i == position ? fmt::format("\x1b[2K > \x1b[32m{}\x1b[0m\n", options[i])
                          : fmt::format("\x1b[2K   {}\n", options[i]);
  }
  return rows;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

template <typename Number>
bool parse(const std::string& text, Number& number) {
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end;
}

}  // namespace

Prompt::Prompt() : is_terminal_(::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1) {}

void Prompt::say(const std::string& line) { write_out(line + "\n"); }

void Prompt::ask(const std::string& question, const std::string& hint,
                 const std::optional<std::string>& fallback, const std::string& expectation,
                 const std::function<bool(const std::string&)>& accept) {
  while (true) {
    write_out(question + (hint.empty() ? " " : " [" + hint + "]: "));
    std::string line;
    if (lines_.read(line) != LineEnd::kLine) {
      throw ConfigError(
          "standard input: found its end, expected an answer to \"{}\"; nothing was written",
          question);
    }
    if (!is_terminal_) write_out("\n");
    line.erase(0, line.find_first_not_of(" \t"));
    line.erase(line.find_last_not_of(" \t") + 1);
    if (line.empty() && fallback) line = *fallback;
    if (accept(line)) return;
    say("expected " + expectation);
  }
}

std::string Prompt::text(const std::string& question, const std::optional<std::string>& fallback) {
  std::string answer;
  ask(question, fallback.value_or(""), fallback, "some text", [&](const std::string& line) {
    answer = line;
    return !line.empty();
  });
  return answer;
}

bool Prompt::yes_no(const std::string& question, bool fallback) {
  bool answer = fallback;
  ask(question, fallback ? "YES/no" : "yes/NO", fallback ? "yes" : "no", "yes or no",
      [&](const std::string& line) {
        const std::string word = lower(line);
        answer = word == "yes" || word == "y";
        return answer || word == "no" || word == "n";
      });
  return answer;
}

int64_t Prompt::integer(const std::string& question, std::optional<int64_t> fallback, int64_t min,
                        int64_t max) {
  int64_t answer = 0;
  std::optional<std::string> text;
  if (fallback) text = std::to_string(*fallback);
  ask(question, text.value_or(""), text, fmt::format("an integer from {} to {}", min, max),
      [&](const std::string& line) {
        return parse(line, answer) && answer >= min && answer <= max;
      });
  return answer;
}

double Prompt::number(const std::string& question, double fallback, double min) {
  double answer = 0;
  const std::string text = fmt::format("{}", fallback);
  ask(question, text, text, fmt::format("a number of at least {}", min),
      [&](const std::string& line) {
        return parse(line, answer) && std::isfinite(answer) && answer >= min;
      });
  return answer;
}

size_t Prompt::choose(const std::string& question, const std::vector<std::string>& options,
                      size_t fallback) {
  if (is_terminal_) return choose_by_keys(question, options, fallback);
  for (size_t i = 0; i < options.size(); ++i) say(fmt::format("  {}  {}", i, options[i]));
  size_t answer = 0;
  ask(question, std::to_string(fallback), std::to_string(fallback),
      fmt::format("a number from 0 to {}, or one of the texts", options.size() - 1),
      [&](const std::string& line) {
        const auto same = [&](const std::string& option) { return lower(option) == lower(line); };
        if (auto found = std::ranges::find_if(options, same); found != options.end()) {
          answer = static_cast<size_t>(found - options.begin());
          return true;
        }
        return parse(line, answer) && answer < options.size();
      });
  return answer;
}

size_t Prompt::choose_by_keys(const std::string& question, const std::vector<std::string>& options,
                              size_t fallback) {
  const KeyMode mode;
  size_t position = fallback;
  write_out(fmt::format("{}\n(arrow or number keys, then enter)\n{}", question,
                        menu_rows(options, position)));
  while (true) {
    const KeyPress press = read_key();
    if (press.key == Key::kInterrupt) throw Interrupted{};
    if (press.key == Key::kEnd) {
      throw ConfigError(
          "standard input: found its end, expected an answer to \"{}\"; nothing was written",
          question);
    }
    if (press.key == Key::kUp && position > 0) --position;
    if (press.key == Key::kDown && position + 1 < options.size()) ++position;
    const size_t digit = static_cast<size_t>(press.character - '0');
    if (std::isdigit(static_cast<unsigned char>(press.character)) && digit < options.size()) {
      position = digit;
    }
    const std::string up = fmt::format("\x1b[{}A\r", options.size());
    if (press.key == Key::kEnter) {
      // The menu gives way to the answer.
      write_out(fmt::format("\x1b[{}A\r\x1b[J{}\n", options.size() + 1, options[position]));
      return position;
    }
    write_out(up + menu_rows(options, position));
  }
}

}  // namespace strata::cli
