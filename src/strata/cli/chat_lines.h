// Lines of a conversation: which are commands. Never: what commands do.
#pragma once

#include <string>

namespace strata::cli {

// A word of letters after a slash: nobody says that to a model, but many programs have such
// commands.
bool is_command_word(const std::string& line);

// A command without the blanks after it; any other line as it is.
std::string without_blanks_behind_command(const std::string& line);

bool is_blank(const std::string& line);

}  // namespace strata::cli
