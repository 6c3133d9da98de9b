// Whether the tokenizers of two folders are one, for adapters that answer in one conversation.
// Owns: which files and keys decide. Never: tokenizes.
#pragma once

#include <filesystem>

namespace strata::generate {

// Whether they make the same of a conversation. Writers of the files differ in what they add.
bool reads_alike(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace strata::generate
