// `strata convert --to gguf`: a model or an adapter as one file of llama.cpp. Owns: its flags.
#pragma once

#include "strata/cli/file_flags.h"

namespace strata::cli {

// Two paths: what is converted, the file. Returns the exit code. Throws ConfigError for flags that
// mean nothing there; errors of checkpoint/gguf.
int convert_to_gguf_file(const FileFlags& flags);

}  // namespace strata::cli
