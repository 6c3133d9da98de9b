// A micro-batch of plain vectors as the tensors that blocks read. Owns: nothing.
#pragma once

#include "strata/data/batch.h"
#include "strata/nn/batch.h"

namespace strata::train {

nn::Batch to_tensors(const data::MicroBatch& batch, at::Device device);

}  // namespace strata::train
