// Values of config.json's quantization_config, by key. Owns: reading them, and the errors that name
// them. Never: what they mean (fp8_form.h, int_form.h).
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "strata/base/json.h"

namespace strata::hf {

// null where the key is missing or null.
const Json* value_of(const Json& json, const char* key);

// config.json's quantization_config; null where it has none. Kimi K2.5's is one of its language
// model's keys.
const Json* quantization_entry(const Json& model_config);

// "" for what is no text.
std::string text_of(const Json& json, const char* key);

// A whole number from 1 on.
bool is_size(const Json& n);

[[noreturn]] void refuse_value(const std::string& key, const Json& value,
                               std::string_view expected);

// Absent, or one of some texts, of which the first is told.
void require_text(const Json& entry, const char* key, std::initializer_list<const char*> expected);

// Of weights that are plain from here on: no entry, nor one of the language model's.
void erase_quantization(Json& model_config);

// Weights of compressed-tensors that were turned or thinned out before they were rounded.
void require_untransformed(const Json& entry);

}  // namespace strata::hf
