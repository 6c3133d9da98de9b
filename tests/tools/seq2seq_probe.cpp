// Runs one forward and backward of an encoder-decoder model on one rank, built and scheduled as a
// run's, and writes logits, loss, gradients and answers. Oracle tool of tests/parity. Usage:
// seq2seq_probe REQUEST.json OUTPUT.safetensors; prints one JSON object.
//
// Request: {"model": folder, "adapter": folder | absent, "pairs": [{"source": ids, "target": ids}],
// "checkpointing": "none" | "selective" | "attention" | "full", "training": bool, "max_new_tokens":
// n, "start": id, "eos": id or ids, "forced_bos": id, "forced_eos": id, "banned": ids, "num_beams":
// n, "length_penalty": number, "early_stopping": bool | "never", "no_repeat_ngram_size": n,
// "min_new_tokens": n, "renormalize_logits": bool, "searches": [what answers are to be once more,
// of these]}.
#include <cstdio>
#include <exception>

#include <ATen/ATen.h>

#include "probe_main.h"
#include "strata/base/error.h"
#include "strata/comm/single_group.h"
#include "strata/data/collate.h"
#include "strata/hf/formats/safetensors.h"
#include "strata/train/loop/batch_tensors.h"
#include "strata/train/loop/decode_answers.h"
#include "strata/train/setup/assemble.h"

namespace strata {
namespace {

class Writer {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    tensors_[name] = tensor.to(at::kFloat).contiguous();
  }
  void write(const std::string& path) const {
    std::vector<hf::TensorSpec> specs;
    for (const auto& [name, tensor] : tensors_) {
      specs.push_back({name, hf::DType::kF32, tensor.sizes().vec()});
    }
    hf::SafetensorsWriter writer(path, std::move(specs));
    for (const auto& [name, tensor] : tensors_) {
      const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
      writer.write(name, {data, tensor.nbytes()});
    }
    writer.finish();
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

config::RunConfig settings_of(const Json& request) {
  config::RunConfig config;
  config.recipe = "seq2seq";
  config.model.model_name_or_path = request.at("model").get<std::string>();
  config.model.adapter_name_or_path = request.value("adapter", "");
  config.lora.use_peft = request.contains("adapter");
  config.shard.bf16 = false;
  const std::string checkpointing = request.value("checkpointing", "none");
  config.shard.gradient_checkpointing = checkpointing != "none";
  if (checkpointing != "none") {
    config.shard.checkpointing_mode =
        config::value_named<config::Checkpointing>(checkpointing).value();
  }
  return config;
}

nn::Batch batch_of(const Json& pairs, int64_t decoder_start) {
  std::vector<data::Example> rows;
  std::vector<int64_t> indices;
  for (const Json& pair : pairs) {
    data::Example row;
    row.ids = pair.at("source").get<std::vector<int32_t>>();
    const auto target = pair.at("target").get<std::vector<int32_t>>();
    row.lengths = {static_cast<int32_t>(row.ids.size()), static_cast<int32_t>(target.size())};
    row.labels.assign(row.ids.size(), -100);
    row.labels.insert(row.labels.end(), target.begin(), target.end());
    // A label that is not trained is read as the start token, which of these models is padding.
    for (int32_t id : target) {
      row.ids.push_back(id == -100 ? static_cast<int32_t>(decoder_start) : id);
    }
    indices.push_back(static_cast<int64_t>(rows.size()));
    rows.push_back(std::move(row));
  }
  const std::vector<data::ExampleView> views(rows.begin(), rows.end());
  return train::to_tensors(data::collate(views, indices, decoder_start), at::kCPU);
}

at::Tensor all_logits(train::Trainee& trainee, const nn::Batch& batch) {
  const at::NoGradGuard no_grad;
  nn::Shelf shelf(static_cast<size_t>(trainee.model->num_shelved()));
  nn::ForwardContext context;
  context.batch = &batch;
  context.pass.shelf = &shelf;
  at::Tensor x = at::empty({0});
  for (int u = 0; u < trainee.store->num_units(); ++u) {
    trainee.store->gather(u);
    trainee.store->wait_gather(u);
  }
  for (models::Block* block : trainee.model->blocks()) {
    x = block->kind() == models::BlockKind::kHead ? trainee.model->logits(x)
                                                  : block->forward(x, context);
  }
  for (int u = 0; u < trainee.store->num_units(); ++u) trainee.store->release(u);
  return x;
}

void add_gradients(shard::UnitStore& store, Writer& writer) {
  for (int u = 0; u < store.num_units(); ++u) {
    const auto& segments = store.unit(u).segments;
    for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
      if (!segments[static_cast<size_t>(s)].trainable) continue;
      for (const shard::Extent& extent : segments[static_cast<size_t>(s)].extents) {
        const nn::Parameter& p = *extent.parameter;
        writer.add("grad:" + p.name(),
                   store.home(u, s).gradient.narrow(0, extent.begin, p.numel()).view(p.shape()));
      }
    }
  }
}

train::AnswerOptions answer_options(const Json& request, int64_t start) {
  using generate::EarlyStopping;
  Json ends = request.value("eos", Json(1));
  if (!ends.is_array()) ends = Json::array({ends});
  const Json stops = request.value("early_stopping", Json(false));
  train::AnswerOptions options{.max_new_tokens = request.value("max_new_tokens", int64_t{8}),
                               .start = request.value("start", start),
                               .eos_ids = ends.get<std::vector<int32_t>>(),
                               .forced_first = request.value("forced_bos", int64_t{-1}),
                               .forced_last = request.value("forced_eos", int64_t{-1}),
                               .banned_ids = request.value("banned", std::vector<int32_t>{})};
  options.beams = {.count = request.value("num_beams", int64_t{1}),
                   .length_penalty = request.value("length_penalty", 1.0),
                   .early_stopping = stops == Json("never") ? EarlyStopping::kNever
                                     : stops == Json(true)  ? EarlyStopping::kWhenFull
                                                            : EarlyStopping::kLikely,
                   .renormalize_logits = request.value("renormalize_logits", false)};
  options.no_repeat_ngram_size = request.value("no_repeat_ngram_size", int64_t{0});
  options.min_new_tokens = request.value("min_new_tokens", int64_t{0});
  return options;
}

void run_probe(const Json& request, const std::string& output) {
  comm::Mesh mesh{comm::make_single_group(), comm::make_single_group(), comm::make_single_group()};
  const config::RunConfig config = settings_of(request);
  const auto trainee = train::assemble(config, mesh);
  const int64_t start = trainee->model->decoder_start_id().value();
  const nn::Batch batch = batch_of(request.at("pairs"), start);
  Writer writer;
  writer.add("logits", all_logits(*trainee, batch));
  const auto trained = static_cast<double>(batch.targets.ne(-100).sum().item<int64_t>());
  nn::LossSums sums;
  nn::ForwardContext context;
  context.training = request.value("training", false);
  context.draw = {.seed = 1, .step = 2, .micro_step = 3};
  context.head.loss_scale = static_cast<float>(1 / trained);
  context.head.sums = &sums;
  trainee->executor->train(batch, context, /*first_micro_step=*/true, /*last_micro_step=*/true);
  writer.add("loss", at::tensor(sums.loss / trained));
  add_gradients(*trainee->store, writer);
  writer.write(output);

  Json report = Json::object();
  Json order = Json::array();
  for (const nn::Parameter* p : trainee->model->parameters()) order.push_back(p->name());
  report["parameters"] = order;
  const auto answer = [&](const Json& settings) {
    return train::decode_answers(batch, answer_options(settings, start), *trainee).value();
  };
  report["answers"] = answer(request);
  report["searched"] = Json::array();
  for (const Json& search : request.value("searches", Json::array())) {
    Json settings = request;
    settings.update(search);
    report["searched"].push_back(answer(settings));
  }
  std::printf("%s\n", dump_python(report, /*indent=*/-1).c_str());
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  return strata::probe_main(argc, 2, "seq2seq_probe REQUEST.json OUTPUT.safetensors",
                            [&] { strata::run_probe(strata::read_json_file(argv[1]), argv[2]); });
}
