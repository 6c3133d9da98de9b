#include "strata/hf/hub/model.h"

#include <algorithm>
#include <initializer_list>

#include "strata/base/error.h"
#include "strata/base/folder_update.h"
#include "strata/base/near_path.h"
#include "strata/hf/export_index.h"

namespace strata::hf {
namespace {

namespace fs = std::filesystem;

bool is_one_of(const std::string& file, std::initializer_list<const char*> names) {
  return std::ranges::find(names, file) != names.end();
}

// Without these a tokenizer or a template would silently be another one.
bool is_needed_tokenizer_file(const std::string& file) {
  return is_one_of(file, {"config.json", "tokenizer.json", "tokenizer_config.json",
                          "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"});
}

// What transformers would read: nothing of the folders of other formats (onnx/, original/).
bool is_small_model_file(const std::string& file) {
  const fs::path path(file);
  const std::string extension = path.extension().string();
  if (path.has_parent_path()) {
    return path.parent_path() == "additional_chat_templates" && extension == ".jinja";
  }
  return is_needed_tokenizer_file(file) || extension == ".model" || extension == ".tiktoken" ||
         is_one_of(file, {"generation_config.json", "adapter_config.json", kModelIndexFile,
                          "vocab.json", "merges.txt", "vocab.txt", "tekken.json"});
}

// Weights of another naming (Mistral's consolidated.safetensors) hold the same once more.
bool is_weight_file(const std::string& file) {
  return file.ends_with(".safetensors") && file.find('/') == std::string::npos &&
         !file.starts_with("consolidated");
}

bool is_model_file(const std::string& file) {
  return is_weight_file(file) || is_small_model_file(file);
}
bool is_needed_model_file(const std::string& file) {
  return is_weight_file(file) || file == kModelIndexFile || is_needed_tokenizer_file(file);
}

[[noreturn]] void throw_nowhere(const HubRequest& request, const IoError& error) {
  const bool is_usual = request.revision == HubPlace{}.revision;
  // Which it is, the cause says: no such name, or no way to the Hub.
  throw IoError("{}: found no such folder, and got no model of that name{} from the Hub ({}){}",
                request.name, is_usual ? "" : " and revision " + request.revision, error.what(),
                did_you_mean(request.name));
}

HubRequest request_of(const std::string& name, const HubPlace& place) {
  if (is_hub_revision(place.revision)) {
    return {
        .kind = HubKind::kModel, .name = name, .revision = place.revision, .cache = place.cache};
  }
  throw ConfigError("model_revision: found \"{}\" for {}, expected a branch, tag or commit",
                    place.revision, name);
}

// Whether it names a folder of this machine, of which something must be there.
bool is_local(const std::string& name_or_path) {
  if (!fs::exists(name_or_path) && is_hub_name(name_or_path)) return false;
  require_whole_folder(name_or_path);
  return true;
}

bool has_config(const HubRequest& request) {
  return has_snapshot(request) && fs::exists(find_snapshot(request) / "config.json");
}

// Where the configuration of a model lies, or would lie that has none in the cache.
HubRequest config_request(const std::string& name, const HubPlace& place) {
  HubRequest request = request_of(name, place);
  if (has_config(request)) return request;
  request.cache = (place.cache.empty() ? hub_cache_folder() : place.cache) / "configs";
  return request;
}

fs::path locate(const std::string& name_or_path, const HubPlace& place,
                const DownloadOptions& options) {
  if (is_local(name_or_path)) return name_or_path;
  const HubRequest request = request_of(name_or_path, place);
  if (is_offline() && !has_snapshot(request)) return name_or_path;
  try {
    return fetch_snapshot(request, options);
  } catch (const IoError& error) {
    if (has_snapshot(request)) throw;
    throw_nowhere(request, error);
  }
}

}  // namespace

fs::path locate_model(const std::string& name_or_path, const HubPlace& place,
                      const DownloadProgress& progress) {
  return locate(name_or_path, place,
                {.wants = is_model_file,
                 .needs = is_needed_model_file,
                 .lacks = lacking_model_files,
                 .progress = progress});
}

fs::path locate_tokenizer(const std::string& name_or_path, const HubPlace& place,
                          const DownloadProgress& progress) {
  return locate(name_or_path, place,
                {.wants = is_small_model_file,
                 .needs = is_needed_tokenizer_file,
                 .lacks = lacking_tokenizer_files,
                 .progress = progress});
}

fs::path locate_model_config(const std::string& name_or_path, const HubPlace& place,
                             const DownloadProgress& progress) {
  if (is_local(name_or_path)) return name_or_path;
  const HubRequest request = config_request(name_or_path, place);
  if (has_config(request)) return find_snapshot(request);
  if (is_offline()) return name_or_path;
  try {
    return download_snapshot(
        request, {.wants = [](const std::string& file) { return file == "config.json"; },
                  .progress = progress});
  } catch (const IoError& error) {
    throw_nowhere(request, error);
  }
}

fs::path locate_generation_config(const std::string& name_or_path, const HubPlace& place,
                                  const DownloadProgress& progress) {
  if (is_local(name_or_path)) return name_or_path;
  const auto is_wanted = [](const std::string& file) {
    return is_one_of(file, {"config.json", "generation_config.json"});
  };
  return fetch_snapshot(config_request(name_or_path, place),
                        {.wants = is_wanted,
                         .needs = [](const std::string& file) { return file == "config.json"; },
                         .progress = progress});
}

}  // namespace strata::hf
