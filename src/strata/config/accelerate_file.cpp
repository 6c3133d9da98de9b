// Writers of accelerate's files.
#include "strata/config/accelerate_file.h"

#include <algorithm>
#include <map>
#include <regex>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/config/yaml_reader.h"

namespace strata::config {
namespace {

Json without_empty(const Json& file) {
  Json result = Json::object();
  for (const auto& [key, value] : file.items()) {
    if (value.is_null() || (value.is_object() && value.empty())) continue;
    result[key] = value.is_object() ? without_empty(value) : value;
  }
  return result;
}

bool is_printable_ascii(const std::string& text) {
  return std::ranges::all_of(text, [](unsigned char c) { return c >= 0x20 && c < 0x7f; });
}

// Whether a plain scalar of this text would be read as text by a YAML 1.1 reader.
bool is_plain_text(const std::string& text) {
  constexpr std::string_view kIndicators = "#,[]{}&*!|>'\"%@`";
  if (text.empty() || text.front() == ' ' || text.back() == ' ' || text.back() == ':') return false;
  if (kIndicators.find(text.front()) != std::string_view::npos) return false;
  const bool is_dash = text.front() == '-' || text.front() == '?' || text.front() == ':';
  if (is_dash && (text.size() == 1 || text[1] == ' ')) return false;
  if (text.find(": ") != text.npos || text.find(" #") != text.npos) return false;
  return !is_yaml11_special(text);
}

std::string yaml_scalar(const Json& value) {
  if (value.is_number_float()) {
    // YAML 1.1 wants a dot in a number with an exponent.
    std::string text = python_float_repr(value.get<double>());
    const size_t exponent = text.find('e');
    if (exponent != text.npos && text.find('.') == text.npos) text.insert(exponent, ".0");
    return text;
  }
  if (!value.is_string()) return value.dump();
  std::string text = value.get<std::string>();
  if (!is_printable_ascii(text)) return quote_json(text, /*ensure_ascii=*/true);
  if (is_plain_text(text)) return text;
  return "'" + std::regex_replace(text, std::regex("'"), "''") + "'";
}

void append_yaml(std::string& out, const Json& mapping, const std::string& indent) {
  std::map<std::string, const Json*> sorted;
  for (const auto& [key, value] : mapping.items()) sorted.emplace(key, &value);
  for (const auto& [key, value] : sorted) {
    out += indent + key + ":";
    if (value->is_object()) {
      out += '\n';
      append_yaml(out, *value, indent + "  ");
    } else if (value->is_array() && !value->empty()) {
      for (const Json& item : *value) out += "\n" + indent + "- " + yaml_scalar(item);
      out += '\n';
    } else {
      out += " " + (value->is_array() ? "[]" : yaml_scalar(*value)) + "\n";
    }
  }
}

}  // namespace

std::string accelerate_yaml(const Json& file) {
  std::string out;
  append_yaml(out, without_empty(file), "");
  return out;
}

std::string accelerate_json(const Json& file) { return dump_python(without_empty(file)) + "\n"; }

void write_accelerate_file(const std::filesystem::path& path, const Json& file) {
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  write_file_atomically(
      path, path.extension() == ".json" ? accelerate_json(file) : accelerate_yaml(file));
}

Json default_accelerate_settings(const std::string& mixed_precision, int num_devices) {
  return {{"compute_environment", "LOCAL_MACHINE"},
          {"debug", false},
          {"distributed_type", num_devices > 1 ? "MULTI_GPU" : "NO"},
          {"downcast_bf16", false},
          {"enable_cpu_affinity", false},
          {"machine_rank", 0},
          {"main_training_function", "main"},
          {"mixed_precision", mixed_precision},
          {"num_machines", 1},
          {"num_processes", std::max(num_devices, 1)},
          {"rdzv_backend", "static"},
          {"same_network", false},
          {"tpu_use_cluster", false},
          {"tpu_use_sudo", false},
          {"use_cpu", num_devices == 0}};
}

Json to_fsdp2(Json file, std::vector<std::string>& warnings) {
  const auto found = file.find("fsdp_config");
  if (found == file.end() || !found->is_object() || found->empty()) {
    throw ConfigError("fsdp_config: found none, expected a section to convert");
  }
  if (found->value("fsdp_version", Json(1)) == Json(2)) {
    throw ConfigError("fsdp_version: found 2 already, expected 1; there is nothing to convert");
  }
  Json section = Json::object();
  for (const auto& [key, value] : found->items()) {
    if (key == "fsdp_backward_prefetch" || key == "fsdp_backward_prefetch_policy" ||
        key == "fsdp_forward_prefetch" || key == "fsdp_sync_module_states" ||
        key == "fsdp_use_orig_params") {
      warnings.push_back(key + ": left out; version 2 has no such setting");
    } else if (key == "fsdp_sharding_strategy" || key == "fsdp_reshard_after_forward") {
      static const std::map<std::string, bool> kReshards = {{"FULL_SHARD", true},
                                                            {"HYBRID_SHARD", true},
                                                            {"SHARD_GRAD_OP", false},
                                                            {"NO_SHARD", false},
                                                            {"HYBRID_SHARD_ZERO2", false},
                                                            {"1", true},
                                                            {"2", false},
                                                            {"3", false},
                                                            {"4", true},
                                                            {"5", false}};
      const auto known =
          kReshards.find(value.is_string() ? value.get<std::string>() : value.dump());
      section["fsdp_reshard_after_forward"] =
          known == kReshards.end() ? value : Json(known->second);
    } else {
      section[key] = value;
    }
  }
  section["fsdp_version"] = 2;
  *found = section;
  return file;
}

}  // namespace strata::config
