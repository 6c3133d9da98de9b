// Runs one forward and backward of a model folder, block by block as the executor does but with
// every tensor gathered trivially, and writes logits, loss and gradients. Oracle tool of
// tests/parity. Usage: model_probe REQUEST.json OUTPUT.safetensors; prints one JSON object. With
// --serve in their place: one after the other (probe_server.h).
//
// Request: {"model": folder, "dtype": "float32" | "bfloat16", "documents": [{"ids", "labels",
// "types": of tokens | absent}], "task": {"loss": "pairs" | "classes" | "labels" | "numbers",
// "targets"} of a model that looks at whole documents | absent, "checkpoint": bool, "training":
// bool, "embedding_noise": number, "label_smoothing": number, "balance": weight of the loss that
// balances experts, "lora": {LoRA settings} | absent, "seed": initial values, "adapter": folder |
// absent, "quantization": {"kind", "block", "nested", "skip", "threshold"} | absent}.
// STRATA_TEST_DEVICE=cuda computes on the first GPU.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>

#include <torch/csrc/autograd/autograd.h>

#include "probe_main.h"
#include "probe_server.h"
#include "strata/adapters/adapter_options.h"
#include "strata/adapters/counts.h"
#include "strata/adapters/lora.h"
#include "strata/adapters/lora_init.h"
#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_weight.h"
#include "strata/hf/model_folder.h"
#include "strata/models/embedding_scale.h"
#include "strata/models/quantization.h"
#include "strata/models/registry.h"
#include "strata/nn/document_loss.h"
#include "strata/nn/experts/expert_balance.h"
#include "strata/shard/fp8_loading.h"
#include "strata/shard/int_loading.h"
#include "strata/shard/loading.h"

namespace strata {
namespace {

at::Tensor read_tensor(const hf::ModelFolder& folder, const std::string& name) {
  if (const auto ints = hf::find_int_weight(folder, name)) {
    const at::Tensor decoded = at::empty(ints->dims());
    shard::read_ints(folder, *ints, /*begin=*/0, decoded.view({-1}));
    return decoded;
  }
  const hf::TensorInfo* info = folder.find(name);
  if (info == nullptr) throw FormatError("probe: found no tensor \"{}\"", name);
  if (const auto fp8 = hf::find_fp8_weight(folder, name)) {
    const at::Tensor decoded = at::empty(info->shape);
    shard::read_fp8(folder, *fp8, /*begin=*/0, decoded.view({-1}));
    return decoded;
  }
  at::Tensor tensor = at::empty(info->shape, at::dtype(shard::scalar_type_of(info->dtype, name)));
  const auto bytes = folder.bytes(*info);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

nn::Batch make_batch(const Json& documents) {
  std::vector<int64_t> ids, targets, positions, keys, types;
  nn::Batch batch;
  batch.offsets = {0};
  for (size_t d = 0; d < documents.size(); ++d) {
    const auto row = documents[d].at("ids").get<std::vector<int64_t>>();
    const auto labels = documents[d].at("labels").get<std::vector<int64_t>>();
    for (size_t i = 0; i < row.size(); ++i) {
      ids.push_back(row[i]);
      targets.push_back(i + 1 < labels.size() ? labels[i + 1] : -100);
      positions.push_back(static_cast<int64_t>(i));
      keys.push_back(static_cast<int64_t>(d << 24 | i));
    }
    if (documents[d].contains("types")) {
      const auto of_document = documents[d]["types"].get<std::vector<int64_t>>();
      types.insert(types.end(), of_document.begin(), of_document.end());
    }
    batch.offsets.push_back(static_cast<int64_t>(ids.size()));
    batch.first_labels.push_back(labels.at(0));
  }
  batch.ids = at::tensor(ids, at::kLong);
  batch.targets = at::tensor(targets, at::kLong);
  batch.positions = at::tensor(positions, at::kLong);
  batch.token_keys = at::tensor(keys, at::kLong);
  if (!types.empty()) batch.token_types = at::tensor(types, at::kLong);
  return batch;
}

nn::DocumentTask document_task(const Json& json, const models::Model& model,
                               const nn::Batch& batch) {
  static const std::map<std::string, nn::DocumentLoss> kLosses{
      {"pairs", nn::DocumentLoss::kPairs},
      {"classes", nn::DocumentLoss::kClasses},
      {"labels", nn::DocumentLoss::kLabels},
      {"numbers", nn::DocumentLoss::kNumbers}};
  nn::DocumentTask task{.loss = kLosses.at(json.at("loss").get<std::string>()),
                        .targets = json.value("targets", std::vector<float>{})};
  for (size_t d = 1; d < batch.offsets.size(); ++d) {
    task.rows.push_back(model.reads_first_token() ? batch.offsets[d - 1] : batch.offsets[d] - 1);
  }
  return task;
}

// The whole weights and gradients by parameter.
struct Store {
  std::map<nn::Parameter*, at::Tensor> values;
  std::map<nn::Parameter*, at::Tensor> gradients;
  std::map<nn::Parameter*, bool> written;

  void gather(models::Block& block) {
    for (nn::Parameter* p : block.parameters()) {
      p->attach_value(values.at(p));
      if (p->requires_grad()) p->attach_grad(gradients.at(p), /*overwrite=*/!written[p]);
    }
  }
  void release(models::Block& block) {
    for (nn::Parameter* p : block.parameters()) {
      p->detach_value();
      if (p->requires_grad()) written[p] = p->detach_grad() || written[p];
    }
  }
};

bool trains(models::Block& block) {
  for (const nn::Parameter* p : block.parameters()) {
    if (p->requires_grad()) return true;
  }
  return false;
}

// One block's tensors from forward to backward.
struct Trace {
  at::Tensor input;
  at::Tensor output = {};  // undefined when checkpointed
  // Beside the chain, as Block::reads() and makes().
  std::vector<at::Tensor> read = {}, made = {};
};

class Probe {
 public:
  Probe(models::Model& model, Store& store, const nn::ForwardContext& context, bool checkpoint)
      : blocks_(model.blocks()),
        store_(store),
        context_(context),
        checkpoint_(checkpoint),
        shelf_(static_cast<size_t>(model.num_shelved())),
        shelf_gradients_(shelf_.size()) {
    while (first_ < blocks_.size() && !trains(*blocks_[first_])) ++first_;
  }

  void run() {
    at::Tensor x = at::zeros({1});
    for (size_t i = 0; i < blocks_.size(); ++i) {
      traces_.push_back({x.detach().set_requires_grad(i >= first_), at::Tensor()});
      const bool is_head = i + 1 == blocks_.size();
      const at::Tensor y = forward(i, /*with_grad=*/i >= first_ && (!checkpoint_ || is_head));
      if (i >= first_ && (!checkpoint_ || is_head)) traces_.back().output = y;
      x = y.detach();
    }
    backward();
  }

 private:
  at::Tensor forward(size_t i, bool with_grad) {
    const at::AutoGradMode mode(with_grad);
    models::Block& block = *blocks_[i];
    Trace& trace = traces_[i];
    trace.read.clear();
    trace.made.clear();
    nn::Shelf shelf = shelf_;
    for (const int slot : block.reads()) {
      at::Tensor& read = shelf.at(static_cast<size_t>(slot));
      read = read.detach().set_requires_grad(with_grad);
      trace.read.push_back(read);
    }
    context_.pass.shelf = &shelf;
    store_.gather(block);
    const at::Tensor y = block.forward(trace.input, context_);
    store_.release(block);
    for (const models::Shelved& made : block.makes()) {
      const auto slot = static_cast<size_t>(made.slot);
      trace.made.push_back(shelf.at(slot));
      shelf_[slot] = shelf[slot].detach();
    }
    return y;
  }

  at::Tensor forward_again(size_t i) {
    context_.pass.wants_output = false;
    const at::Tensor y = forward(i, /*with_grad=*/true);
    context_.pass.wants_output = true;
    return y;
  }

  void backward() {
    at::Tensor dy = at::ones({});
    for (size_t i = blocks_.size(); i-- > first_;) {
      if (!traces_[i].output.defined()) traces_[i].output = forward_again(i);
      store_.gather(*blocks_[i]);
      differentiate(*blocks_[i], traces_[i], dy);
      store_.release(*blocks_[i]);
      dy = traces_[i].input.grad();
    }
  }

  void differentiate(const models::Block& block, const Trace& trace, const at::Tensor& dy) {
    std::vector<at::Tensor> outputs{trace.output}, gradients{dy};
    const std::vector<models::Shelved> made = block.makes();
    for (size_t i = 0; i < made.size(); ++i) {
      const at::Tensor& gradient = shelf_gradients_.at(static_cast<size_t>(made[i].slot));
      if (!gradient.defined() || !trace.made[i].requires_grad()) continue;
      outputs.push_back(trace.made[i]);
      gradients.push_back(gradient);
    }
    torch::autograd::backward(outputs, gradients);
    const std::vector<int> slots = block.reads();
    for (size_t i = 0; i < slots.size(); ++i) {
      const at::Tensor& part = trace.read[i].grad();
      at::Tensor& sum = shelf_gradients_.at(static_cast<size_t>(slots[i]));
      if (part.defined()) sum = sum.defined() ? sum + part : part;
    }
  }

  std::vector<models::Block*> blocks_;
  Store& store_;
  nn::ForwardContext context_;
  bool checkpoint_;
  nn::Shelf shelf_, shelf_gradients_;
  size_t first_ = 0;
  std::vector<Trace> traces_;
};

at::Tensor all_logits(models::Model& model, Store& store, nn::ForwardContext context) {
  const at::NoGradGuard guard;
  nn::Shelf shelf(static_cast<size_t>(model.num_shelved()));
  context.pass.shelf = &shelf;
  at::Tensor x = at::zeros({1});
  for (models::Block* block : model.blocks()) {
    store.gather(*block);
    x = block->kind() == models::BlockKind::kHead ? model.logits(x) : block->forward(x, context);
    store.release(*block);
  }
  return x;
}

// What the first block, the embedding, gives.
at::Tensor first_output(models::Model& model, Store& store, nn::ForwardContext context) {
  const at::NoGradGuard guard;
  nn::Shelf shelf(static_cast<size_t>(model.num_shelved()));
  context.pass.shelf = &shelf;
  models::Block& block = *model.blocks().front();
  store.gather(block);
  const at::Tensor rows = block.forward(at::zeros({1}), context);
  store.release(block);
  return rows;
}

// Keys of LoraConfig or IA3Config. Rank and dropout are checked where every caller's are, not by
// the file's reader.
adapters::LoraOptions lora_options(Json json) {
  const auto r = json.value("r", int64_t{8});
  const double dropout = json.value("lora_dropout", 0.0);
  const auto text_ids = json.value("prompt_text_ids", std::vector<int64_t>{});
  json.erase("prompt_text_ids");
  json.erase("r");
  json.erase("lora_dropout");
  if (!json.contains("peft_type")) json["peft_type"] = "LORA";
  const hf::AdapterConfig config = hf::parse_adapter_config(json, "request");
  adapters::LoraOptions options = adapters::lora_options_of(config);
  options.prefix_projection = config.prefix_projection;
  options.encoder_hidden_size = config.encoder_hidden_size;
  options.r = r;
  options.dropout = dropout;
  options.prompt_text_ids = text_ids;
  return options;
}

models::QuantizationOptions quantization_options(const Json& json) {
  models::QuantizationOptions options;
  options.quantization.format = {.kind = ops::quant::parse_kind(json.value("kind", "nf4"), "kind"),
                                 .block = json.value("block", 64),
                                 .nested = json.value("nested", false)};
  options.quantization.threshold = json.value("threshold", 6.0);
  options.quantization.compute = models::compute_type_of(json.value("compute", ""));
  if (json.contains("skip")) options.skip_modules = json["skip"].get<std::vector<std::string>>();
  return options;
}

class Writer {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    tensors_[name] = tensor.cpu().to(at::kFloat).contiguous();
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

using ReadPlain = std::function<at::Tensor(const nn::Parameter&)>;

void initialize_branches(const adapters::LoraAdapter& adapter, uint64_t seed, models::Model& model,
                         const ReadPlain& read_plain, Store& store, Writer& writer) {
  const adapters::Place place = [&](nn::Parameter& p, const at::Tensor& value) {
    writer.add("init:" + p.name(), value);
    store.values[&p] = value.clone();
  };
  if (const auto& tokens = adapter.trained_tokens()) {
    place(tokens->rows->rows(), store.values.at(tokens->weight)
                                    .to(at::kFloat)
                                    .index_select(0, at::tensor(tokens->rows->ids(), at::kLong)));
  }
  if (!adapters::starts_from_base(adapter.options())) {
    return adapters::initialize(adapter, seed, place);
  }
  adapters::BaseAccess base;
  if (adapter.options().has_virtual_tokens()) {
    base.embedding = &model.embedding_weight();
    base.embedding_scale = models::embedding_scale(model);
  }
  base.read_plain = read_plain;
  base.read = [&](const nn::Parameter& p) {
    const at::Tensor& value = store.values.at(const_cast<nn::Parameter*>(&p));
    if (!p.quantization()) return value.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    return p.decoded(value, at::kFloat);
  };
  base.write = [&](nn::Parameter& p, const at::Tensor& value) {
    at::Tensor& to = store.values.at(&p);
    to = p.quantization() ? p.encoded(value) : value.to(to.scalar_type());
  };
  base.share = [](at::Tensor&, int) {};
  adapters::initialize_from_base(adapter, seed, place, base, /*only_base=*/false);
}

void fill_values(models::Model& model, adapters::LoraAdapter* adapter, const Json& request,
                 at::ScalarType compute, Store& store, Writer& writer) {
  const hf::ModelFolder folder(request.at("model").get<std::string>());
  const models::WeightSources sources = model.check_weights(folder);
  std::map<std::string, nn::Parameter*> by_name;
  for (nn::Parameter* p : model.parameters()) {
    by_name[p->name()] = p;
    const auto source = sources.find(p->name());
    if (source == sources.end()) continue;
    const at::Tensor value = read_tensor(folder, source->second);
    store.values[p] = p->quantization() ? p->encoded(value)
                                        : value.to(p->keeps_type() ? p->storage_type() : compute);
  }
  if (adapter == nullptr) return;
  const ReadPlain read_plain = [&](const nn::Parameter& p) {
    return read_tensor(folder, sources.at(p.name())).to(at::kFloat);
  };
  initialize_branches(*adapter, request.value("seed", 0), model, read_plain, store, writer);
  for (const adapters::FixedTensor& fixed : adapter->fixed_tensors()) {
    writer.add("init:" + fixed.name, *fixed.tensor);
  }
  if (!request.contains("adapter")) return;
  const hf::ModelFolder files(request.at("adapter").get<std::string>());
  std::vector<std::pair<std::string, std::vector<int64_t>>> found;
  for (const std::string& name : files.names()) found.emplace_back(name, files.find(name)->shape);
  adapter->check_tensors(found, "adapter_model.safetensors");
  for (const adapters::FixedTensor& fixed : adapter->fixed_tensors()) {
    fixed.tensor->copy_(read_tensor(files, fixed.name));
  }
  for (const adapters::AdapterTensor& tensor : adapter->tensors()) {
    const at::Tensor value = read_tensor(files, tensor.name);
    const bool is_branch = tensor.parameter->name().ends_with(tensor.name);
    const bool is_wide = is_branch || tensor.parameter->keeps_type();
    store.values[tensor.parameter] = value.to(is_wide ? at::kFloat : compute);
  }
}

at::Device device_under_test() {
  const char* name = std::getenv("STRATA_TEST_DEVICE");
  return name != nullptr && std::string_view(name) == "cuda" ? at::Device(at::kCUDA, 0) : at::kCPU;
}

void move_to(at::Device device, Store& store, nn::Batch& batch) {
  for (auto& [parameter, value] : store.values) value = value.to(device);
  for (at::Tensor* tensor : {&batch.ids, &batch.positions, &batch.token_keys}) {
    *tensor = tensor->to(device);
  }
  if (batch.token_types.defined()) batch.token_types = batch.token_types.to(device);
  if (batch.virtual_rows.defined()) batch.virtual_rows = batch.virtual_rows.to(device);
}

// With its base quantised where that is asked for; null: none is.
std::unique_ptr<adapters::LoraAdapter> attach_adapter(const Json& request, models::Model& model) {
  std::unique_ptr<adapters::LoraAdapter> adapter;
  if (request.contains("lora")) {
    adapters::LoraOptions options = lora_options(request.at("lora"));
    options.keeps_base = options.init == "loftq" && request.contains("quantization");
    adapter = adapters::attach_lora(model, options);
  }
  if (request.contains("quantization")) {
    models::quantize_base(model, quantization_options(request.at("quantization")));
  }
  if (adapter) adapter->settle_fixed_tensors(device_under_test());
  return adapter;
}

Json report_of(models::Model& model, const adapters::LoraAdapter* adapter,
               const nn::LossSums& sums) {
  Json report = Json::object();
  report["trainable"] = adapters::trainable_parameters_line(model);
  report["tokens"] = sums.tokens;
  report["correct"] = sums.correct;
  report["entropy"] = sums.entropy;
  Json order = Json::array(), tensors = Json::array();
  for (const nn::Parameter* p : model.parameters()) {
    if (!p->is_buffer()) order.push_back(p->name());
  }
  report["parameters"] = order;
  if (adapter != nullptr) {
    for (const auto& tensor : adapter->tensors()) tensors.push_back(tensor.name);
    report["target_modules"] = adapter->saved_target_modules();
  }
  report["adapter_tensors"] = tensors;
  return report;
}

void run_probe(const Json& request, const std::string& output) {
  const bool half = request.value("dtype", "float32") == "bfloat16";
  const at::ScalarType compute = half ? at::kBFloat16 : at::kFloat;
  const hf::ModelFolder folder(request.at("model").get<std::string>());
  auto model = models::create_model(folder.config(), {.storage = compute});
  model->follow_tie(folder);
  const std::unique_ptr<adapters::LoraAdapter> adapter = attach_adapter(request, *model);
  Store store;
  Writer writer;
  fill_values(*model, adapter.get(), request, compute, store, writer);
  nn::Batch batch = make_batch(request.at("documents"));
  if (const nn::VirtualTokens* tokens = model->virtual_tokens()) {
    batch = nn::with_virtual_tokens(batch, *tokens);
  }
  move_to(device_under_test(), store, batch);
  for (nn::Parameter* p : model->parameters()) {
    // A wrong first write (beta 1) would spread the NaN.
    if (!p->requires_grad()) continue;
    store.gradients[p] = at::full(p->shape(), std::nan(""), store.values.at(p).options());
  }
  int64_t trained = batch.targets.ne(-100).sum().item<int64_t>();
  nn::DocumentTask task;
  if (request.contains("task")) {
    task = document_task(request.at("task"), *model, batch);
    trained = static_cast<int64_t>(task.rows.size());
  }
  nn::LossSums sums;
  nn::ForwardContext context{
      .batch = &batch,
      .training = request.value("training", false),
      .draw = {.seed = 1, .step = 2, .micro_step = 3},
      .embedding_noise = request.value("embedding_noise", 0.0),
      .head = {.loss_scale = 1.0f / static_cast<float>(std::max<int64_t>(1, trained)),
               .label_smoothing = request.value("label_smoothing", 0.0f),
               .sums = &sums,
               .documents = request.contains("task") ? &task : nullptr}};
  writer.add("logits", all_logits(*model, store, context));
  writer.add("embedded", first_output(*model, store, context));
  // As a loss of the mean token loss plus so much of that of the experts.
  nn::ExpertBalance balance(request.value("balance", 0.0));
  context.balance = &balance;
  Probe(*model, store, context, request.value("checkpoint", false)).run();
  writer.add("balance", at::tensor(balance.loss()));
  writer.add("loss", at::tensor(sums.loss / static_cast<double>(std::max<int64_t>(1, trained))));
  for (nn::Parameter* p : model->parameters()) {
    if (p->requires_grad()) writer.add("grad:" + p->name(), store.gradients.at(p));
  }
  writer.write(output);
  const Json report = report_of(*model, adapter.get(), sums);
  std::printf("%s\n", dump_python(report, /*indent=*/-1).c_str());
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  const auto run = [](int count, const std::string& request, const std::string& output) {
    return strata::probe_main(count, 2, "model_probe REQUEST.json OUTPUT.safetensors | --serve",
                              [&] { strata::run_probe(strata::read_json_file(request), output); });
  };
  if (argc == 2 && std::string(argv[1]) == "--serve") {
    return strata::serve_probes([&](const std::string& request, const std::string& output) {
      return run(/*count=*/3, request, output);
    });
  }
  return argc == 3 ? run(argc, argv[1], argv[2]) : run(argc, "", "");
}
