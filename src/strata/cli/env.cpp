// `strata env` (`ds_report`): what this machine and this build offer, and what would fail.
#include <ATen/Version.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/cli/command.h"
#include "strata/cli/run_sources.h"
#include "strata/config/describe.h"
#include "strata/config/settings_files.h"
#include "strata/launch/environment.h"
#include "strata/launch/machine_report.h"
#include "strata/libtorch/cuda_build.h"
#include "strata/train/setup/device.h"

namespace strata::cli {
namespace {

using launch::Finding;
using launch::Severity;

constexpr const char* kUsage =
    "usage: strata env [--json] [--config_file FILE]    (also: strata ds_report)\n\n"
    "Prints versions, devices, communication, processor, memory, limits, disks and network of "
    "this\n"
    "machine, then what would fail in a run and what to do about it.\n";

const char* name_of(Severity severity) {
  constexpr const char* kNames[] = {"note", "warning", "error"};
  return kNames[static_cast<int>(severity)];
}

// What the build's definitions say: libtorch with CUDA and c10d with NCCL come with them.
Json build_facts() {
  return {{"strata", STRATA_VERSION},
          {"libtorch", TORCH_VERSION},
          {"compiler", "g++ " __VERSION__},
          {"kernels_of_libtorch", at::get_cpu_capability()},
          {"devices", kHasCuda ? Json::array({"cpu", "cuda"}) : Json::array({"cpu"})},
          {"usable_gpus", train::count_gpus()},
          {"communication", kHasCuda ? Json::array({"shared memory", "gloo", "nccl"})
                                     : Json::array({"shared memory", "gloo"})},
          {"not_in_this_build", kHasCuda ? Json::array() : Json::array({"cuda", "nccl"})}};
}

Json processor(const launch::CpuFacts& cpu) {
  return {{"model", cpu.model},
          {"cores_online", cpu.num_online},
          {"cores_usable", cpu.num_usable},
          {"cores_of_container", cpu.quota_cores > 0 ? Json(cpu.quota_cores) : Json()},
          {"memory_nodes", cpu.num_memory_nodes},
          {"features", cpu.features},
          {"bf16", cpu.has_bf16 ? "native" : "computed in float32"}};
}

Json memory(const launch::MemoryFacts& facts) {
  const bool is_limited = facts.limit_bytes > 0;
  return {{"total_bytes", facts.total_bytes},
          {"available_bytes", facts.available_bytes},
          {"swap_bytes", facts.swap_bytes},
          {"container_limit_bytes", is_limited ? Json(facts.limit_bytes) : Json()},
          {"container_used_bytes", is_limited ? Json(facts.limit_used_bytes) : Json()}};
}

Json limits(const std::vector<launch::Limit>& known) {
  auto number = [](uint64_t value) {
    return value == launch::Limit::kUnlimited ? Json("unlimited") : Json(value);
  };
  Json all = Json::object();
  for (const launch::Limit& limit : known) {
    all[fmt::format("{} ({})", limit.name, limit.flag)] = {{"soft", number(limit.soft)},
                                                           {"hard", number(limit.hard)}};
  }
  return all;
}

Json disks(const std::vector<launch::DiskFacts>& known) {
  Json all = Json::object();
  for (const launch::DiskFacts& disk : known) {
    all[disk.purpose] = {{"path", disk.path.string()},    {"file_system", disk.file_system},
                         {"free_bytes", disk.free_bytes}, {"size_bytes", disk.size_bytes},
                         {"writable", disk.is_writable},  {"direct_io", disk.has_direct_io}};
  }
  return all;
}

Json network(const launch::NetworkFacts& facts) {
  Json addresses = Json::object();
  for (const launch::NetworkAddress& address : facts.addresses) {
    Json& of_interface = addresses[address.interface];
    if (!address.is_up) of_interface.push_back(address.address + " (down)");
    if (address.is_up) of_interface.push_back(address.address);
  }
  return {{"host", facts.host_name},
          {"host_resolves_to", facts.host_addresses},
          {"addresses", addresses},
          {"infiniband", facts.infiniband}};
}

Json describe(const launch::MachineReport& report) {
  return {{"build", build_facts()},
          {"system", report.system},
          {"processor", processor(report.cpu)},
          {"memory", memory(report.memory)},
          {"accelerators", {{"found", report.accelerators}, {"driver", report.driver}}},
          {"limits", limits(report.limits)},
          {"disks", disks(report.disks)},
          {"network", network(report.network)},
          {"environment", report.environment}};
}

// What a launch would say about the settings that it reads by itself, and about the variables of
// whoever started this process.
Json settings_facts(const std::string& file, std::vector<Finding>& findings) {
  const config::Environment environment = process_environment();
  const auto path = file.empty() ? config::default_accelerate_file([&](const std::string& name) {
    auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  })
                                 : std::filesystem::path(file);
  Json facts = {{"file", path.string()}};
  facts["found"] = std::filesystem::exists(path);
  try {
    config::Sources sources{.environment = environment, .use_default_file = true};
    if (!file.empty()) sources.launch_flags = {"--config_file", file};
    const config::Settings settings = config::resolve(sources);
    for (const std::string& warning : settings.warnings) {
      findings.push_back({Severity::kWarning, warning});
    }
    facts["given"] = config::given_settings(settings);
  } catch (const ConfigError& error) {
    findings.push_back({Severity::kError, error.what()});
  }
  try {
    launch::detect_rank_environment();
  } catch (const ConfigError& error) {
    findings.push_back({Severity::kError, error.what()});
  }
  return facts;
}

std::string size_text(uint64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
}

std::string value_text(const std::string& key, const Json& value) {
  if (value.is_null()) return "none";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_string()) return value == Json("") ? "none" : value.get<std::string>();
  if (key.ends_with("_bytes")) return size_text(value.get<uint64_t>());
  if (!value.is_array()) return value.dump();
  std::vector<std::string> items;
  for (const Json& item : value) items.push_back(value_text("", item));
  return items.empty() ? "none" : fmt::format("{}", fmt::join(items, ", "));
}

// One line for a mapping of plain values: "path /tmp, free 3.00 GiB".
std::string line_text(const Json& mapping) {
  std::string text;
  for (const auto& [key, value] : mapping.items()) {
    std::string name = key.ends_with("_bytes") ? key.substr(0, key.size() - 6) : key;
    for (char& c : name) c = c == '_' ? ' ' : c;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value_text(key, value));
  }
  return text;
}

void print_section(const std::string& name, const Json& section) {
  fmt::print("{}\n", name);
  for (const auto& [key, value] : section.items()) {
    if (value.is_string() && value.get<std::string>().find('\n') != std::string::npos) {
      fmt::print("  {}:\n", key);
      std::string indented = "    ";
      for (char c : value.get<std::string>()) indented += c == '\n' ? "\n    " : std::string(1, c);
      fmt::print("{}\n", indented.substr(0, indented.find_last_not_of(" \n") + 1));
      continue;
    }
    std::string label = key.ends_with("_bytes") ? key.substr(0, key.size() - 6) : key;
    for (char& c : label) c = c == '_' && name != "environment" ? ' ' : c;
    fmt::print("  {:<22} {}\n", label,
               value.is_object() ? line_text(value) : value_text(key, value));
  }
}

void print_text(const Json& report) {
  for (const auto& [name, section] : report.items()) {
    if (name == "findings") continue;
    if (section.is_object()) {
      if (!section.empty()) print_section(name, section);
    } else {
      fmt::print("{:<24} {}\n", name, value_text(name, section));
    }
  }
  const Json& findings = report["findings"];
  if (findings.empty()) {
    fmt::print("findings: none\n");
    return;
  }
  fmt::print("findings\n");
  for (const Json& finding : findings) {
    fmt::print("  {}: {}\n", finding["severity"].get<std::string>(),
               finding["text"].get<std::string>());
  }
}

}  // namespace

int run_env(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", kUsage);
    return 0;
  }
  bool as_json = false;
  std::string file;
  for (const config::Given& given :
       read_command_flags(config::env_settings_table(), "env", arguments)) {
    if (given.setting->name == "json") as_json = config::canonical_text(given) == "true";
    if (given.setting->name == "config_file") file = config::canonical_text(given);
  }
  const launch::MachineReport machine = launch::inspect_system(process_environment());
  std::vector<Finding> findings = launch::judge(machine, /*uses_accelerators=*/kHasCuda);
  Json report = describe(machine);
  report["settings"] = settings_facts(file, findings);
  std::ranges::stable_sort(findings, std::ranges::greater(), &Finding::severity);
  report["findings"] = Json::array();
  for (const Finding& finding : findings) {
    report["findings"].push_back({{"severity", name_of(finding.severity)}, {"text", finding.text}});
  }
  if (as_json) {
    fmt::print("{}\n", dump_python(report, /*indent=*/2, /*sort_keys=*/false));
  } else {
    print_text(report);
  }
  return 0;
}

}  // namespace strata::cli
