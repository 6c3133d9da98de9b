// What operators on the emulated GPU are made of. Owns: nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <set>
#include <string>

#include "stream_order.h"

namespace torch {
class Library;
}

namespace emulated_gpu {

// The same elements, as a tensor of the host.
at::Tensor host_view(const at::Tensor& t);
// A new tensor of the current device with these elements, written by `operation`.
at::Tensor to_device(Operation& operation, const at::Tensor& on_host);

void reads(Operation& operation, const at::Tensor& t);
void writes(Operation& operation, const at::Tensor& t);

// Operators that the CPU does not have; their names are added to `installed`.
void install_own_operators(torch::Library& library, std::set<std::string>& installed);
void install_attention(torch::Library& library, std::set<std::string>& installed);

}  // namespace emulated_gpu
