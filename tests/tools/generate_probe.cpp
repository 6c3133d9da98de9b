// Continues token ids with a model folder, or filters given logits. Oracle tool of tests/parity.
// Usage: generate_probe REQUEST.json; prints one JSON value.
//
// Request: {"model": folder, "adapter": folder | absent, "dtype", "prompts": [[ids]], "eos_ids",
// "max_new_tokens", "use_cache", "seed", "adapters": {name: folder} | absent, "commands": before
// prompt i ("use NAME", "use ", "merge", "unmerge") | absent, and sampling options by name} -> the
// new ids of each prompt; or {"logits": [...], "ids": [...], sampling options} -> filtered logits.
#include <cstdio>
#include <exception>

#include <ATen/ATen.h>

#include "probe_main.h"
#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/generate/generate.h"

namespace strata {
namespace {

generate::SamplingOptions sampling_options(const Json& json) {
  generate::SamplingOptions options;
  options.do_sample = json.value("do_sample", options.do_sample);
  options.temperature = json.value("temperature", options.temperature);
  options.top_k = json.value("top_k", options.top_k);
  options.top_p = json.value("top_p", options.top_p);
  options.min_p = json.value("min_p", options.min_p);
  options.repetition_penalty = json.value("repetition_penalty", options.repetition_penalty);
  generate::check_sampling_options(options);
  return options;
}

Json filtered(const Json& request) {
  const auto logits = at::tensor(request.at("logits").get<std::vector<float>>());
  const auto ids = request.at("ids").get<std::vector<int32_t>>();
  const at::Tensor scores = generate::filter_logits(logits, ids, sampling_options(request));
  Json result = Json::array();
  for (int64_t i = 0; i < scores.numel(); ++i) result.push_back(scores[i].item<double>());
  return result;
}

void obey(const std::string& command, generate::LoadedModel& model) {
  if (command == "merge") {
    model.merge_adapter();
  } else if (command == "unmerge") {
    model.unmerge_adapter();
  } else if (command.starts_with("use ")) {
    model.use_adapter(command.substr(4));
  }
}

Json continued(const Json& request) {
  std::vector<generate::NamedAdapter> adapters;
  const Json named = request.value("adapters", Json::object());
  for (const auto& [name, folder] : named.items()) {
    adapters.push_back({name, folder.get<std::string>()});
  }
  generate::LoadedModel model({.model = request.at("model").get<std::string>(),
                               .adapter = request.value("adapter", std::string()),
                               .adapters = adapters,
                               .dtype = request.value("dtype", std::string("auto"))});
  generate::GenerateOptions options;
  options.max_new_tokens = request.value("max_new_tokens", options.max_new_tokens);
  options.eos_ids = request.value("eos_ids", options.eos_ids);
  options.use_cache = request.value("use_cache", true);
  generate::Generator generator(model);
  Json result = Json::array();
  const auto commands = request.value("commands", std::vector<std::string>{});
  for (const Json& prompt : request.at("prompts")) {
    if (result.size() < commands.size()) obey(commands[result.size()], model);
    generate::Sampler sampler(sampling_options(request), request.value("seed", uint64_t{0}));
    const auto ids = prompt.get<std::vector<int32_t>>();
    result.push_back(generator.generate(ids, options, sampler).ids);
  }
  return result;
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  return strata::probe_main(argc, 1, "generate_probe REQUEST.json", [&] {
    const strata::Json request = strata::read_json_file(argv[1]);
    const strata::Json result =
        request.contains("logits") ? strata::filtered(request) : strata::continued(request);
    std::printf("%s\n", strata::dump_python(result, /*indent=*/-1).c_str());
  });
}
