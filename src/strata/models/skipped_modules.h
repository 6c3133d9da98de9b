// Linear layers that may rest as codes, and those of them that a list leaves plain. Owns: the rules
// of transformers for both. Never: what is done to a layer. Source: transformers 5.23
// quantizers/quantizers_utils.py, should_convert_module().
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/hf/module_pattern.h"
#include "strata/models/model.h"
#include "strata/nn/linear.h"

namespace strata::models {

// llm_int8_skip_modules: endings of paths, or expressions in Python's syntax for their beginnings.
// Nothing: the output layer stays as it is; an empty list: it becomes codes, too.
using SkipModules = std::optional<std::vector<std::string>>;

class SkippedModules {
 public:
  // `setting`: for errors of expressions.
  explicit SkippedModules(const SkipModules& entries,
                          const std::string& setting = "llm_int8_skip_modules");

  // By a plain ending, or by an expression for the path up to a border between modules. `path`: of
  // a layer, or of a parameter of all experts. What means the module of experts means all in it.
  bool contains(const std::string& path) const;

 private:
  bool is_named(const std::string& path) const;

  std::vector<std::string> entries_;
  std::vector<std::unique_ptr<hf::ModulePattern>> patterns_;
};

// The layers whose weights may become codes: not those that the family excepts, nor a weight that
// two modules use, as it is no codes to one of them (embedding and output layer).
std::vector<nn::Linear*> quantizable_linears(Model& model);

}  // namespace strata::models
