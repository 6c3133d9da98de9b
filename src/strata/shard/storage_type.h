// The type in which weights are stored after loading, and in which a result is written.
// Owns: what --dtype and --save_dtype mean.
// Never: the types of arithmetic.
#pragma once

#include <string>

#include <c10/core/ScalarType.h>

#include "strata/base/json.h"
#include "strata/hf/model_folder.h"

namespace strata::shard {

// The name that config.json gives ("dtype", else "torch_dtype"), without "torch."; empty: none.
std::string named_type(const Json& model_config);

// The name of the first floating type among the files' tensors, which the reference takes where
// config.json names none.
std::string type_in_files(const hf::ModelFolder& folder);

// The type that --dtype names; "auto": that in config.json, else `in_files`. ConfigError for types
// other than float32, bfloat16 and float16.
at::ScalarType storage_type_of(const std::string& dtype, const Json& model_config,
                               const std::string& in_files = "float32");

// What decides over a result's type, by the names of the settings.
struct ResultType {
  std::string save_dtype;
  std::string dtype;
  bool bf16 = false;
  bool fp16 = false;
  bool is_adapter = false;
};
// A value of --dtype that says it: of a model what it was loaded as, unless save_dtype says
// another; empty: an adapter's weights as they rest (float32).
std::string result_dtype(const ResultType& settings);

}  // namespace strata::shard
