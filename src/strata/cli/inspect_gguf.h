// What `strata inspect` says of a GGUF file: its keys and tensors. Never: other formats
// (inspect.cpp).
#pragma once

#include <filesystem>

namespace strata::cli {

struct GgufListing {
  bool is_json = false;
  bool is_whole = false;  // every tensor, not the first ones
};

// Whether it is a file that begins as one.
bool is_gguf_file(const std::filesystem::path& path);

// Errors: those of hf::GgufFile.
void print_gguf(const std::filesystem::path& path, const GgufListing& listing);

}  // namespace strata::cli
