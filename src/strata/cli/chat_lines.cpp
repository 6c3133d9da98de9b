#include "strata/cli/chat_lines.h"

#include <algorithm>

namespace strata::cli {

bool is_command_word(const std::string& line) {
  return line.size() > 1 && line[0] == '/' &&
         std::all_of(line.begin() + 1, line.end(), [](char c) { return 'a' <= c && c <= 'z'; });
}

std::string without_blanks_behind_command(const std::string& line) {
  const std::string trimmed = line.substr(0, line.find_last_not_of(" \t") + 1);
  return is_command_word(trimmed) || trimmed.starts_with("/adapter ") ? trimmed : line;
}

bool is_blank(const std::string& line) {
  return line.find_first_not_of(" \t") == std::string::npos;
}

}  // namespace strata::cli
