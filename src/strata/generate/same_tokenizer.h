// Whether the tokenizers of two folders are one, for adapters that answer in one conversation.
// Owns: which files and keys decide. Never: tokenizes.
#pragma once

#include <filesystem>

namespace strata::generate {

// Whether they make the same of a conversation. Writers of the files differ in what they add; where
// one has no chat template, the other's is not compared.
bool reads_alike(const std::filesystem::path& a, const std::filesystem::path& b);

// Whether the folder's tokenizer brings a chat template, whichever file holds it.
bool has_chat_template(const std::filesystem::path& folder);

}  // namespace strata::generate
