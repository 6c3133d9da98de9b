// Lists of devices, as gpu_ids and CUDA_VISIBLE_DEVICES write them. Owns: what an entry may be.
#pragma once

#include <string_view>

namespace strata::config {

// Devices are numbered, or named as the driver names them (GPU-8932f937-..., MIG-...).
bool names_device(std::string_view id);

// Entries of "0,1". Throws ConfigError about `subject`: an entry names no device, or one twice.
int count_device_ids(std::string_view list, std::string_view subject);

}  // namespace strata::config
