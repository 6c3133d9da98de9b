#include "strata/ops/attention/cudnn_compiler_cuda.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace strata::ops::cuda {
namespace {

// Of a library that the process has loaded, by the start of its file's name; empty without one.
std::filesystem::path folder_of_loaded(std::string_view name) {
  struct Search {
    std::string_view name;
    std::filesystem::path folder;
  } search{name, {}};
  const auto look = [](dl_phdr_info* info, size_t, void* data) {
    auto& wanted = *static_cast<Search*>(data);
    const std::filesystem::path file = info->dlpi_name;
    if (!file.filename().string().starts_with(wanted.name)) return 0;
    wanted.folder = file.parent_path();
    return 1;
  };
  dl_iterate_phdr(look, &search);
  return search.folder;
}

bool load() {
  std::error_code none;
  const std::filesystem::path folder = folder_of_loaded("libcublas.so");
  for (const auto& file : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = file.path().filename().string();
    // Kept for as long as the process lives.
    if (name.starts_with("libnvrtc-builtins.so.")) {
      return dlopen(file.path().c_str(), RTLD_LAZY) != nullptr;
    }
  }
  return false;
}

}  // namespace

void load_compiler_of_cudnn() { [[maybe_unused]] static const bool is_loaded = load(); }

}  // namespace strata::ops::cuda
