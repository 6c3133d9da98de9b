#include "strata/cli/conversion.h"

#include <malloc.h>

#include <utility>

#include <fmt/format.h>

#include "strata/base/byte_size.h"
#include "strata/base/error.h"
#include "strata/checkpoint/convert/convert.h"
#include "strata/cli/standard_streams.h"
#include "strata/cli/waiting_line.h"
#include "strata/hf/formats/torch_types.h"
#include "strata/hf/hub/model.h"

namespace strata::cli {

namespace fs = std::filesystem;

std::optional<hf::DType> weight_type(const FileFlags& flags, const char* expected) {
  if (!flags.has("dtype")) return std::nullopt;
  std::string name = flags.get("dtype");
  for (const auto& [spelling, meaning] :
       {std::pair("fp32", "float32"), {"bf16", "bfloat16"}, {"fp16", "float16"}}) {
    if (name == spelling) name = meaning;
  }
  if (name != "float32" && name != "bfloat16" && name != "float16") {
    throw ConfigError("--dtype: found \"{}\", expected {}; name one of them", name, expected);
  }
  return hf::dtype_of_torch_dtype(name);
}

uint64_t max_shard_size(const FileFlags& flags) {
  const std::string text = flags.get("max_shard_size", "50GB");
  try {
    return parse_byte_size(text);
  } catch (const ConfigError&) {
    throw ConfigError("--max_shard_size: found \"{}\", expected a size like 50GB or 500MB", text);
  }
}

fs::path base_of(const FileFlags& flags, const checkpoint::SavedState& adapter) {
  if (const std::string given = flags.get("base_model"); !given.empty()) {
    return hf::locate_model(given, {}, shown_downloads());
  }
  std::string named, unreachable;
  for (const checkpoint::NamedBase& base : checkpoint::named_bases(adapter)) {
    named = fmt::format(" (\"{}\")", base.name);
    try {
      const fs::path folder = hf::locate_model(base.name, base.place, shown_downloads());
      if (fs::exists(folder / "config.json")) return folder;
    } catch (const IoError& error) {  // another name of it may be a folder
      unreachable = error.what();
    }
  }
  const fs::path base = checkpoint::base_model_of(adapter);
  if (!base.empty()) return base;
  if (!unreachable.empty()) {
    throw IoError("{}; or name the folder of the base of {} with --base_model", unreachable,
                  flags.paths[0]);
  }
  throw ConfigError(
      "{}: found no folder of the base model that it names{}, expected one; give "
      "--base_model FOLDER",
      flags.paths[0], named);
}

void give_back_freed_tensors() { ::mallopt(M_MMAP_THRESHOLD, 1 << 20); }

void tell_result(const std::vector<std::string>& notes, const fs::path& out) {
  for (const std::string& note : notes) tell("note: {}\n", note);
  fmt::print("{}\n", out.string());
}

}  // namespace strata::cli
