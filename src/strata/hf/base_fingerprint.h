// Which base model an adapter was trained on, as a short text that its files carry. Owns: what of a
// model goes into it. Never: what is done about another base.
#pragma once

#include <string>

#include "strata/hf/model_folder.h"

namespace strata::hf {

// The key in the metadata of adapter_model.safetensors.
inline constexpr const char* kBaseFingerprintKey = "base_fingerprint";

// XXH3-64, in hexadecimal digits, of the matrices' names, shapes and some values of each (a block
// at the beginning and one in the middle), as fp32: the same however the model is cut into files,
// and for an exact copy in a wider type. The output layer is left out: a tied one may be stored or
// not. Empty for quantised folders, whose codes say nothing of the weights they were made of. Reads
// some kilobytes of each matrix. Errors: those of ModelFolder::bytes.
std::string base_fingerprint(const ModelFolder& folder);

// The fingerprint of a base whose matrices became codes while it was loaded, for an adapter that
// belongs to those: its first values were made from them (OLoRA, LoftQ). `codes`: their format.
// Empty for an empty fingerprint.
std::string fingerprint_of_codes(const std::string& fingerprint, const std::string& codes);

// The format of the codes that such a fingerprint names; empty: of a plain base.
std::string codes_of_fingerprint(const std::string& fingerprint);

// What an adapter folder carries; empty when nothing.
std::string fingerprint_in(const ModelFolder& adapter);

}  // namespace strata::hf
