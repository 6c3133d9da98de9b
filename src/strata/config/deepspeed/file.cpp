// Reading with strict JSON rules; yaml-cpp gives the lines, because JSON is YAML.
#include "strata/config/deepspeed/file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::config {
namespace {

std::string allowed_autos() {
  std::string text;
  for (const DsKey& key : deepspeed_keys()) {
    if (key.automatic.empty()) continue;
    text += (text.empty() ? "" : ", ") + std::string(key.path);
  }
  return text;
}

class Flattener {
 public:
  explicit Flattener(DsFile& file) : file_(file) {}

  void add_document(const Json& document, const YAML::Node& lines) {
    add_block("", document, lines);
    if (problems_.empty()) return;
    if (problems_.size() == 1) throw ConfigError("{}", problems_[0]);
    throw ConfigError(
        "{}: found {} keys or values that are wrong, expected a ds_config; correct "
        "them:\n  {}",
        file_.name, problems_.size(), fmt::join(problems_, "\n  "));
  }

 private:
  // `lines`: the same mapping as YAML, undefined for inline text.
  void add_block(const std::string& block, const Json& object, const YAML::Node& lines) {
    for (const auto& [name, value] : object.items()) {
      std::string place = file_.name;
      YAML::Node below;
      if (lines.IsDefined() && lines.IsMap()) {
        for (const auto& entry : lines) {
          if (entry.first.Scalar() != name) continue;
          place += ":" + std::to_string(entry.first.Mark().line + 1);
          below.reset(entry.second);
          break;
        }
      }
      add(block.empty() ? name : block + "." + name, value, place, below);
    }
  }

  void add(const std::string& path, const Json& value, const std::string& place,
           const YAML::Node& lines) {
    const DsKey* key = find_deepspeed_key(path);
    const bool is_leaf = key && key->type == DsType::kBlock;
    if (value.is_object() && !is_leaf && is_deepspeed_block(path)) {
      return add_block(path, value, lines);
    }
    if (!key && is_deepspeed_block(path)) {
      if (value.is_null()) return;
      return refuse("{}: found {} for \"{}\", expected a block {{...}}", place, value.dump(), path);
    }
    // The oldest form of a block is true or false.
    const bool may_be_plain = is_leaf || value.is_boolean() || value.is_null();
    if (key && is_deepspeed_block(path) && !may_be_plain) {
      return refuse("{}: found {} for \"{}\", expected a block {{...}}", place, value.dump(), path);
    }
    if (!key) {
      return refuse("{}: found the unknown key \"{}\", expected {}; {}", place, path,
                    path.starts_with("optimizer.params.")
                        ? "a parameter of AdamW, Adam, Lion or SGD"
                        : "a key of DeepSpeed",
                    deepspeed_hint(path));
    }
    if (key->use == DsUse::kRemoved) {
      return refuse("{}: found \"{}\", which DeepSpeed removed in {}; remove it", place, path,
                    key->text);
    }
    add_value(*key, value, place);
  }

  void add_value(const DsKey& key, const Json& value, const std::string& place) {
    DsEntry entry{&key, std::string(key.path), value, place};
    if (value.is_string() && value.get<std::string>() == "auto" && key.type != DsType::kAny) {
      if (key.automatic.empty()) {
        return refuse("{}: found \"auto\" for \"{}\", expected a value; \"auto\" is for {}", place,
                      key.path, allowed_autos());
      }
      entry.is_auto = true;
    } else if (auto error = deepspeed_type_error(key, value)) {
      return refuse("{}: {}: {}", place, key.path, *error);
    }
    for (const DsEntry& other : file_.entries) {
      if (other.path != entry.path) continue;
      return refuse("{}: found \"{}\" with {}, which is the same key, expected one; remove one",
                    place, key.path, other.place);
    }
    file_.entries.push_back(std::move(entry));
  }

  // Who brings a file learns of all that is wrong with it at once.
  template <typename... Args>
  void refuse(fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  DsFile& file_;
  std::vector<std::string> problems_;
};

Json parse_object(const std::string& text, const std::string& name) {
  Json document;
  try {
    document = parse_json(text, name, {.duplicates = DuplicateKeys::kReject, .max_depth = 32});
  } catch (const FormatError& error) {
    throw ConfigError(error.what());
  }
  if (!document.is_object()) {
    throw ConfigError("{}: found no object, expected a ds_config {{...}}", name);
  }
  return document;
}

}  // namespace

const DsEntry* DsFile::find(std::string_view path) const {
  for (const DsEntry& entry : entries) {
    if (entry.path == path) return entry.value.is_null() ? nullptr : &entry;
  }
  return nullptr;
}

bool DsFile::has_block(std::string_view block) const {
  const std::string prefix = std::string(block) + ".";
  return std::ranges::any_of(entries,
                             [&](const DsEntry& entry) { return entry.path.starts_with(prefix); });
}

bool DsFile::is_disabled(std::string_view block) const {
  const DsEntry* enabled = find(std::string(block) + ".enabled");
  return enabled && enabled->value == Json(false);
}

DsFile read_deepspeed(const std::string& text, const std::string& source) {
  DsFile file;
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != text.npos && text[first] == '{') {
    file.name = source;
    Flattener(file).add_document(parse_object(text, source), YAML::Node());
    return file;
  }
  file.name = text;
  if (!std::filesystem::is_regular_file(text)) {
    throw ConfigError("{}: found no file {}, expected a ds_config in JSON", source, text);
  }
  std::string content;
  try {
    content = read_file(text);
  } catch (const IoError& error) {
    throw ConfigError(error.what());
  }
  const Json document = parse_object(content, text);
  // JSON has tabs between its tokens only; YAML dislikes them there.
  std::ranges::replace(content, '\t', ' ');
  YAML::Node lines;
  try {
    lines = YAML::Load(content);
  } catch (const YAML::Exception&) {
    lines = YAML::Node();  // messages then name the file and the key
  }
  Flattener(file).add_document(document, lines);
  return file;
}

bool is_deepspeed_json(const Json& file) {
  if (!file.is_object()) return false;
  for (const char* name : {"zero_optimization", "train_micro_batch_size_per_gpu",
                           "train_batch_size", "gradient_clipping"}) {
    if (file.contains(name)) return true;
  }
  for (const char* name : {"bf16", "bfloat16", "fp16", "optimizer", "scheduler"}) {
    if (file.contains(name) && file[name].is_object()) return true;
  }
  return false;
}

std::string ds_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number == std::floor(number) && std::abs(number) < 9e15) {
      return std::to_string(static_cast<int64_t>(number));
    }
    return python_float_repr(number);
  }
  return value.dump();
}

}  // namespace strata::config
