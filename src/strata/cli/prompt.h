// Questions on the terminal: menus with arrow and number keys where standard input and output are a
// terminal, plain lines otherwise. Owns: the terminal's mode while a menu is open. Never: what the
// answers mean.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "strata/cli/line_reader.h"

namespace strata::cli {

// Ctrl-C inside a menu, where the terminal does not turn it into a signal.
struct Interrupted {};

// Every question is asked again, with what is expected, until the answer fits. The end of standard
// input before an answer is a ConfigError.
class Prompt {
 public:
  Prompt();

  // The index of the chosen option. In plain lines: its number from 0, or its text.
  size_t choose(const std::string& question, const std::vector<std::string>& options,
                size_t fallback = 0);
  // The line that was typed; an empty one means `fallback`, and is refused where there is none.
  std::string text(const std::string& question, const std::optional<std::string>& fallback = {});
  bool yes_no(const std::string& question, bool fallback);
  int64_t integer(const std::string& question, std::optional<int64_t> fallback, int64_t min,
                  int64_t max = INT32_MAX);
  double number(const std::string& question, double fallback, double min);
  void say(const std::string& line);

 private:
  // Asks until `accept` takes the text.
  void ask(const std::string& question, const std::string& hint,
           const std::optional<std::string>& fallback, const std::string& expectation,
           const std::function<bool(const std::string&)>& accept);
  size_t choose_by_keys(const std::string& question, const std::vector<std::string>& options,
                        size_t fallback);

  bool is_terminal_;
  LineReader lines_;
};

}  // namespace strata::cli
