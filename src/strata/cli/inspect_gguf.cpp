#include "strata/cli/inspect_gguf.h"

#include <algorithm>
#include <array>
#include <fstream>

#include <fmt/format.h>

#include "strata/base/counted.h"
#include "strata/base/json.h"
#include "strata/base/visible_text.h"
#include "strata/hf/formats/gguf.h"

namespace strata::cli {
namespace {

constexpr size_t kShown = 12;      // tensors
constexpr size_t kShownText = 60;  // bytes of a value
constexpr size_t kShownElements = 4;

// Texts of foreign files may be anything.
Json shown(const std::string& text) { return visible(text); }
template <typename Number>
Json shown(Number number) {
  return number;
}

template <typename List>
Json first_of(const List& list) {
  Json first = Json::array();
  for (size_t i = 0; i < std::min(list.size(), kShownElements); ++i) {
    first.push_back(shown(typename List::value_type(list[i])));
  }
  return first;
}

// The value as JSON; of an array how many elements it has, and the first.
Json json_of(const hf::GgufValue& value) {
  return std::visit(
      [](const auto& content) -> Json {
        if constexpr (!std::is_same_v<std::decay_t<decltype(content)>, hf::GgufArray>) {
          return shown(content);
        } else {
          return std::visit(
              [](const auto& list) -> Json {
                if constexpr (std::is_same_v<std::decay_t<decltype(list)>, std::monostate>) {
                  return nullptr;
                } else {
                  return {{"count", list.size()}, {"first", first_of(list)}};
                }
              },
              content);
        }
      },
      value);
}

std::string cut(std::string text) {
  if (text.size() <= kShownText) return text;
  text.resize(kShownText);
  return visible(text) + " ...";  // may have been cut inside a character
}

// On one line.
std::string text_of(const hf::GgufValue& value) {
  const Json json = json_of(value);
  if (!json.is_object())
    return cut(dump_python(json, /*indent=*/-1, /*sort_keys=*/false, /*ensure_ascii=*/false));
  const auto count = json["count"].get<size_t>();
  return fmt::format(
      "{}: {}", counted(count, "element"),
      cut(dump_python(json["first"], /*indent=*/-1, /*sort_keys=*/false, /*ensure_ascii=*/false)));
}

// The text about an adapter, which is no model.
std::string adapter_words(const hf::GgufFile& file) {
  const auto text = [&](const char* key) {
    const hf::GgufValue* value = file.find(key);
    const auto* found = value == nullptr ? nullptr : std::get_if<std::string>(value);
    return found == nullptr ? "" : visible(*found);
  };
  if (text("general.type") != "adapter") return "";
  return fmt::format(", an adapter ({}) for {}", text("adapter.type"),
                     text("general.architecture"));
}

void print_json(const hf::GgufFile& file, const std::filesystem::path& path) {
  Json keys = Json::object(), tensors = Json::array();
  for (const auto& [key, value] : file.metadata()) keys[visible(key)] = json_of(value);
  for (const hf::GgufTensorInfo& info : file.tensors()) {
    tensors.push_back({{"name", visible(info.tensor.name)},
                       {"dtype", hf::gguf_type_name(info.tensor.type)},
                       {"shape", info.tensor.shape},
                       {"bytes", info.size_bytes}});
  }
  const Json json{{"path", path.string()},
                  {"format", fmt::format("GGUF version {}", file.version())},
                  {"keys", keys},
                  {"tensors", tensors}};
  fmt::print("{}\n", dump_python(json, /*indent=*/2, /*sort_keys=*/false));
}

}  // namespace

bool is_gguf_file(const std::filesystem::path& path) {
  if (!std::filesystem::is_regular_file(path)) return false;
  std::array<char, 4> magic{};
  std::ifstream(path, std::ios::binary).read(magic.data(), magic.size());
  return std::string_view(magic.data(), magic.size()) == "GGUF" || path.extension() == ".gguf";
}

void print_gguf(const std::filesystem::path& path, const GgufListing& listing) {
  const hf::GgufFile file(path);
  if (listing.is_json) return print_json(file, path);
  fmt::print("{}: GGUF version {}{}\n\n{}\n", path.string(), file.version(), adapter_words(file),
             counted(file.metadata().size(), "key"));
  for (const auto& [key, value] : file.metadata()) {
    fmt::print("  {}: {}\n", visible(key), text_of(value));
  }
  fmt::print("\n{}\n", counted(file.tensors().size(), "tensor"));
  size_t shown = 0;
  for (const auto& [tensor, begin, size_bytes] : file.tensors()) {
    if (!listing.is_whole && shown == kShown) {
      fmt::print("  ... {} more (--all)\n", file.tensors().size() - shown);
      break;
    }
    ++shown;
    fmt::print("  {:<5} {:<16} {:>12} B  {}\n", hf::gguf_type_name(tensor.type),
               fmt::format("[{}]", fmt::join(tensor.shape, ", ")), size_bytes,
               visible(tensor.name));
  }
}

}  // namespace strata::cli
