// Which weights of a model rest in the whole numbers that its files hold them in. Owns: the choice,
// and the text in which ranks tell each other. Never: arithmetic, loading, files (hf/int_codes.h).
#pragma once

#include <map>
#include <string>

#include "strata/hf/int_weight.h"
#include "strata/hf/model_folder.h"
#include "strata/models/model.h"

namespace strata::models {

// Matrices in whole numbers by name; those of 2 bits, too, which are always decoded.
using IntFormats = std::map<std::string, ops::quant::Format>;

// Errors: as hf::IntValues.
ops::quant::Format format_of(const hf::ModelFolder& folder, const hf::IntWeight& weight);

// The formats of a folder that can be read; loading any other reports why not. Errors: as
// format_of().
IntFormats int_formats(const hf::ModelFolder& folder);

// What config.json says of files that are not there: linear layers but those that it excepts, with
// scales of 16 bits. Errors: as hf::read_int_form().
IntFormats announced_int_formats(Model& model, const Json& model_config);

// Where config.json announces several forms, of which no files tell whose they are: the one that
// announced_int_formats() gives all weights. Empty where there is one form. Errors: the same.
std::string assumed_int_scheme(const Json& model_config);

std::string text_of(const IntFormats& formats);
IntFormats parse_int_formats(const std::string& text);

// Marks the frozen ones among weights of linear layers (kept_weights.h), so that they rest, travel
// and are gathered as codes of 4 or 8 bits, and are decoded for each product, to values that were
// `type` on the way. Call when quantize_base() would be called. Returns how many of `formats`
// are decoded while they are read.
int keep_ints(Model& model, const IntFormats& formats, at::ScalarType type);

}  // namespace strata::models
