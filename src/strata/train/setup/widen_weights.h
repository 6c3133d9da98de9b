// Which of a model's weights are stored in fp32 whatever the files hold. Never: values.
#pragma once

#include "strata/comm/mesh.h"
#include "strata/models/model.h"
#include "strata/train/setup/trainee.h"

namespace strata::train {

// prepare_model_for_kbit_training: beside codes of bitsandbytes everything else is fp32, but, as in
// TRL, not where the base is sharded. Nor, here, where it has the type that it is computed in:
// fp32 of it would be the same numbers in twice the memory, and a copy more in every use.
void widen_beside_codes(const comm::Mesh& mesh, Trainee& trainee);

// Trained weights have fp32 masters, whatever the file holds.
void widen_trained_weights(models::Model& model);

}  // namespace strata::train
