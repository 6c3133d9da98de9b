// Which base model an adapter was trained on, as a short text that its files carry. Owns: what of a
// model goes into it, and how the text is written. Never: what is done about another base.
#pragma once

#include <string>
#include <vector>

#include "strata/hf/model_folder.h"

namespace strata::hf {

// The key in the metadata of adapter_model.safetensors, and of the files of a model whose codes
// strata wrote.
inline constexpr const char* kBaseFingerprintKey = "base_fingerprint";

// XXH3-64, in hexadecimal digits, of the matrices' names, shapes and some values of each (a block
// at the beginning and one in the middle), as fp32: the same however the model is cut into files,
// for an exact copy in a wider type, for weights in fp8 as for their copy in config.json's type,
// and for those in integers as for their copy. The output layer is left out: a tied one may be
// stored or not. Of a quantised folder: of the codes and scales as they lie there, which say
// nothing of the weights they were made of. Reads some kilobytes of each matrix. Errors: those of
// ModelFolder::bytes.
std::string base_fingerprint(const ModelFolder& folder);

// The values of plain matrices that go into it, those of fp8 and integers as they are decoded.
std::vector<float> sampled_values(const ModelFolder& folder);

// What the text says: "FINGERPRINT", or "FINGERPRINT as CODES" for a base whose matrices are codes.
struct BaseMark {
  std::string fingerprint;  // of the plain weights; with codes of unknown weights of those codes
  // How the codes were made ("nf4 of the weights as stored, blocks of 64"), or how they lie in a
  // folder that does not say of which weights ("stored nf4, blocks of 64"), either with the layers
  // that are none (", without q_proj") where those are not the default's. Empty: plain weights.
  std::string codes;

  bool is_of_known_weights() const { return !codes.starts_with("stored "); }
  std::string text() const;
};
BaseMark parse_base_mark(const std::string& text);

// What a folder carries; empty when nothing.
std::string fingerprint_in(const ModelFolder& folder);

}  // namespace strata::hf
