// A model whose output layer may be its embedding's table. Owns: the tie, and how it ends. Never:
// which names of both a file may hold beside it.
#pragma once

#include <memory>
#include <string>

#include "strata/models/model.h"
#include "strata/nn/linear.h"

namespace strata::hf {
struct TensorInfo;
}

namespace strata::models {

class TiedModel : public Model {
 public:
  bool follow_tie(const hf::ModelFolder& folder) override;

 protected:
  static constexpr const char* kHeadWeight = "lm_head.weight";

  explicit TiedModel(at::ScalarType storage) : storage_(storage) {}

  virtual const std::shared_ptr<nn::Parameter>& table() const = 0;
  virtual nn::Linear& output_layer() const = 0;
  bool is_tied() const { return output_layer().shared_weight() == table(); }
  // The tensor under its name, or under another that the family's files have for it.
  virtual const hf::TensorInfo* find(const hf::ModelFolder& folder, const std::string& name) const;

 private:
  // Gives the output layer a parameter kHeadWeight of its own.
  void untie();
  bool untie(const std::string& name) override;

  at::ScalarType storage_;
};

}  // namespace strata::models
