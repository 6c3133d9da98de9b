// What every method gives a linear layer: names in the adapter's file, shapes, what cannot be.
// Owns: attaching to layers that are known. Never: which those are (target_layers.h), the products
// (nn/linear.h), first values (lora_init.h).
#pragma once

#include <memory>
#include <vector>

#include "strata/adapters/lora.h"

namespace strata::adapters {

// VeRA's matrices, drawn as large as the largest of `layers` needs them.
std::shared_ptr<nn::VeraProjection> make_projection(const std::vector<nn::Linear*>& layers,
                                                    const LoraOptions& options);

// Gives each of `layers`, all that are targets, what options.method attaches (fp32), and returns
// its weights in the order of the adapter's tensors. `projection`: of VeRA, else null. ConfigError
// for a rank larger than a layer, or first values that a layer cannot have.
std::vector<AdapterTensor> attach_to_layers(const std::vector<nn::Linear*>& layers,
                                            const LoraOptions& options, const models::Model& model,
                                            const std::shared_ptr<nn::VeraProjection>& projection);

}  // namespace strata::adapters
