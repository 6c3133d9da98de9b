// Text of files and models made fit for a terminal or a page. Never: wraps, cuts or colours.
#pragma once

#include <string>
#include <string_view>

namespace strata {

// The text with what a terminal would obey instead of showing as escapes: control characters but
// for line ends and tabs (\r, \b, \u001b, \u009b), the signs that turn the direction of writing
// around (\u202e), other line ends (\u2028), and bytes that are not UTF-8 (\xff). Idempotent. A
// JSON text stays one of the same meaning.
std::string visible(std::string_view text);

}  // namespace strata
