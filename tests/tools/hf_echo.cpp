// A test program for tests/parity: reads a file of the Hugging Face stack with Strata's reader and
// writes what it understood with Strata's writer. Never part of an installation.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "strata/base/byte_size.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/export_index.h"
#include "strata/hf/model_folder.h"

namespace {

using strata::Json;
using namespace strata::hf;

// Copies a file in pieces of 1000 bytes, the last tensor first and each from its end.
void copy_safetensors(const std::string& from, const std::string& to) {
  const SafetensorsFile file(from);
  std::vector<TensorSpec> specs;
  for (const TensorInfo& info : file.tensors())
    specs.push_back({info.name, info.dtype, info.shape});
  std::reverse(specs.begin(), specs.end());
  SafetensorsWriter writer(to, specs, file.metadata());
  constexpr uint64_t kPiece = 1000;
  for (const TensorSpec& spec : specs) {
    const auto bytes = file.bytes(*file.find(spec.name));
    for (uint64_t end = bytes.size(); end > 0;) {
      const uint64_t begin = end > kPiece ? end - kPiece : 0;
      writer.write(spec.name, bytes.subspan(begin, end - begin), begin);
      end = begin;
    }
  }
  writer.finish();
}

void copy_adapter_config(const std::string& folder, const std::string& to) {
  const AdapterConfig config = read_adapter_config(folder);
  for (const std::string& warning : config.warnings) std::fprintf(stderr, "%s\n", warning.c_str());
  strata::write_file_atomically(to, adapter_config_json(config));
}

// Prints one line for each tensor: name, type, shape, file.
void list_folder(const std::string& folder) {
  const ModelFolder model(folder);
  for (const std::string& name : model.names()) {
    const TensorInfo& info = *model.find(name);
    std::printf("%s %s %s %s\n", name.c_str(), std::string(name_of(info.dtype)).c_str(),
                strata::dump_python(Json(info.shape), -1).c_str(),
                model.file_of(info).path().filename().c_str());
  }
}

// Reads {"tensors": [[name, bytes], ...], "max_shard_size": text, "total_parameters": n}.
void plan_export(const std::string& from, const std::string& to) {
  const Json request = strata::read_json_file(from);
  std::vector<TensorBytes> tensors;
  for (const Json& row : request.at("tensors")) tensors.push_back({row.at(0), row.at(1)});
  const ShardPlan plan = plan_shards(
      tensors, strata::parse_byte_size(request.at("max_shard_size").get<std::string>()));
  strata::write_file_atomically(to, plan.index_json(request.at("total_parameters")));
}

int run(const std::vector<std::string>& arguments) {
  const std::string& command = arguments.at(1);
  if (command == "safetensors") {
    copy_safetensors(arguments.at(2), arguments.at(3));
  } else if (command == "json") {
    strata::write_file_atomically(arguments.at(3),
                                  strata::dump_python(strata::read_json_file(arguments.at(2))));
  } else if (command == "adapter") {
    copy_adapter_config(arguments.at(2), arguments.at(3));
  } else if (command == "folder") {
    list_folder(arguments.at(2));
  } else if (command == "plan") {
    plan_export(arguments.at(2), arguments.at(3));
  } else {
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
