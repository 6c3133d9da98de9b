// The order: base, codes, rows of new tokens, adapter. Never: how a tensor is read or sent.
#include "strata/train/setup/initial_values.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "strata/adapters/lora_init.h"
#include "strata/base/error.h"
#include "strata/checkpoint/import.h"
#include "strata/comm/agreement.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_form.h"
#include "strata/libtorch/planned_device.h"
#include "strata/models/quantization.h"
#include "strata/ops/quant/range_quantizer.h"
#include "strata/shard/decoding.h"
#include "strata/shard/loading.h"
#include "strata/shard/mxfp4_loading.h"
#include "strata/shard/quantized_loading.h"
#include "strata/shard/rounded_source.h"
#include "strata/shard/storage_type.h"
#include "strata/train/setup/base_quantization.h"
#include "strata/train/setup/vocabulary.h"

namespace strata::train {
namespace {

void initialize_from_scratch(const models::Model& model, uint64_t seed, shard::UnitStore& store) {
  // Every rank draws every tensor in the same order and keeps its piece, so that the start does not
  // depend on the world size. One whole tensor at a time.
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (nn::Parameter* parameter : store.model().parameters()) {
    at::Tensor full = at::empty(parameter->shape(), at::kFloat);
    model.init_weight(*parameter, full, generator);
    shard::place_tensor(store, *parameter, full);
  }
}

// As the reference draws it: in the type in which the model is loaded, before anything else, so
// that an adapter that is continued brings its own. Every rank draws the whole layer.
void draw_document_head(const config::RunConfig& config, Trainee& trainee) {
  const at::Generator generator = at::detail::createCPUGenerator(config.train.seed);
  for (const nn::Parameter* parameter : trainee.model->parameters()) {
    if (!trainee.model->is_of_document_head(parameter->name())) continue;
    const at::Tensor full = at::empty(
        parameter->shape(), shard::storage_type_of(config.model.dtype, trainee.model_config));
    trainee.model->init_weight(*parameter, full, generator);
    shard::place_tensor(*trainee.store, *parameter, full.to(at::kFloat));
  }
}

// Whether a weight of the file is rounded to the run's type before it comes into a wider home:
// transformers loads weights so, and what widens those beside codes comes later; what is decoded is
// of no type before.
bool is_rounded_first(const hf::ModelFolder& folder, const std::string& name, bool is_beside_codes,
                      at::ScalarType type) {
  if (!is_beside_codes && !hf::find_fp8_weight(folder, name)) return false;
  return shard::rounds_before_quantizing(shard::type_of_values(folder, name), type);
}

shard::Source base_values(const config::RunConfig& config, const BaseFiles& base,
                          const Trainee& trainee) {
  shard::Source source = checkpoint::base_source(*base.folder, base.sources);
  const at::ScalarType type = shard::storage_type_of(config.model.dtype, trainee.model_config);
  const bool has_codes = has_bitsandbytes_codes(*trainee.model);
  if (!has_codes && !hf::announces_fp8(trainee.model_config)) return source;
  return [&base, type, source, has_codes, rounding = shard::rounded_source(type, source)](
             const nn::Parameter& parameter, int64_t begin, const at::Tensor& out) {
    const auto name = base.sources.find(parameter.name());
    const bool is_rounded = name != base.sources.end() && !parameter.keeps_type() &&
                            is_rounded_first(*base.folder, name->second, has_codes, type);
    return is_rounded ? rounding(parameter, begin, out) : source(parameter, begin, out);
  };
}

void fill_values(const config::RunConfig& config, const BaseFiles& base, bool sends,
                 Trainee& trainee) {
  const auto source = [&] { return base_values(config, base, trainee); };
  if (sends) {
    shard::send_homes(*trainee.store, shard::HomeKind::kValues, source);
  } else if (base.folder) {
    shard::fill_homes(*trainee.store, source());
  } else {
    initialize_from_scratch(*trainee.model, config.train.seed, *trainee.store);
  }
  const bool has_files = !config.model.model_name_or_path.empty();
  if (has_files && trainee.has_new_head) draw_document_head(config, trainee);
  // What starts from the base's values waits until those are there.
  if (!trainee.adapter || adapters::starts_from_base(trainee.adapter->options())) return;
  if (trainee.continued_adapter) {
    checkpoint::load_adapter(config.model.adapter_name_or_path, *trainee.adapter, *trainee.store,
                             sends);
    return;
  }
  adapters::initialize(*trainee.adapter, config.train.seed,
                       [&](nn::Parameter& parameter, const at::Tensor& value) {
                         shard::place_tensor(*trainee.store, parameter, value);
                       });
}

// Collective.
void start_from_base(const config::RunConfig& config, const BaseFiles& base, bool sends,
                     Trainee& trainee) {
  if (!trainee.adapter || !adapters::starts_from_base(trainee.adapter->options())) return;
  const bool is_continued = trainee.continued_adapter.has_value();
  if (!is_continued || adapters::changes_base(trainee.adapter->options())) {
    checkpoint::PlainBase plain{.read = {}, .is_on_rank_0_alone = sends};
    if (!models::stored_quantization(trainee.model_config)) {
      const at::ScalarType type = shard::storage_type_of(config.model.dtype, trainee.model_config);
      plain.read = [&base, type](const nn::Parameter& parameter) {
        const std::string& name = base.sources.at(parameter.name());
        const at::Tensor values = checkpoint::read_plain(*base.folder, name);
        // What is decoded is of no type before; codes were made of the run's.
        return hf::find_fp8_weight(*base.folder, name) ? values.to(type).to(at::kFloat) : values;
      };
    }
    checkpoint::initialize_from_base(*trainee.adapter, *trainee.store, config.train.seed,
                                     /*only_base=*/is_continued, plain);
  }
  if (!is_continued) return;
  comm::all_or_nothing(*trainee.store->mesh().world, "loading the adapter", [&] {
    checkpoint::load_adapter(config.model.adapter_name_or_path, *trainee.adapter, *trainee.store,
                             sends);
  });
}

// Rows of single tokens start as the base's. Collective.
void start_token_rows(Trainee& trainee) {
  if (!trainee.adapter || trainee.continued_adapter) return;
  const auto& tokens = trainee.adapter->trained_tokens();
  if (!tokens) return;
  if (tokens->weight->quantization()) {
    throw ConfigError(
        "trainable_token_indices: found the quantised \"{}\", expected plain rows to begin with; "
        "name the layer in llm_int8_skip_modules",
        tokens->weight->name());
  }
  shard::place_tensor(*trainee.store, tokens->rows->rows(),
                      shard::read_rows(*trainee.store, *tokens->weight, tokens->rows->ids()));
}

// Collective: with a folder on rank 0 alone when it sends.
void fill_quantized(const BaseFiles& base, bool sends, at::ScalarType type,
                    shard::UnitStore& store) {
  const hf::ModelFolder* folder = base.folder ? &*base.folder : nullptr;
  if (sends) {
    shard::send_quantized_homes(store, folder, base.sources, type);
  } else {
    shard::fill_quantized_homes(store, *folder, base.sources, type);
  }
}

// By what config.json says of matrices.
bool is_in_fp8(const Json& model_config, const nn::Parameter& parameter) {
  return parameter.shape().size() > 1 && !parameter.is_embedding_table() &&
         hf::announces_fp8(model_config);
}
bool is_in_integers(const Json& model_config, const nn::Parameter& parameter) {
  return parameter.shape().size() == 2 && !parameter.is_embedding_table() &&
         hf::announces_ints(model_config);
}

// A weight that is quantised on the way in: what a range of it is rounded to, and, where they do
// not go to their place at once, its codes and those that another rank sends. The pages of the file
// that hold the range are no tensor's.
void imagine_quantizing(const nn::Parameter& parameter, at::ScalarType in_file, at::ScalarType type,
                        bool is_in_place, Trainee& trainee) {
  const int64_t range = std::min(parameter.matrix_rows() * parameter.matrix_columns(),
                                 ops::quant::RangeQuantizer::at_once(
                                     parameter.quantization()->format, parameter.matrix_columns()));
  const at::TensorOptions on_meta(at::kMeta);
  const bool is_in_ints = is_in_integers(trainee.model_config, parameter);
  const bool is_decoded = is_in_fp8(trainee.model_config, parameter);
  const int64_t num_decoded = is_decoded || is_in_ints ? range : 0;
  const at::Tensor decoded =
      at::empty({num_decoded}, on_meta.dtype(is_in_ints ? in_file : at::kFloat));
  if (is_in_ints) (void)at::empty({shard::decoding_buffer_numel(decoded)}, on_meta);
  // The words of integers are there as a whole, of 4 bits mostly.
  const auto element = static_cast<int64_t>(is_decoded ? 1 : at::elementSize(in_file));
  const int64_t mapped = is_in_ints ? parameter.numel() / 2 : range * element;
  trainee.largest_mapped = std::max(trainee.largest_mapped, mapped);
  const int64_t bytes = is_in_place ? 0 : parameter.stored_numel();
  const at::Tensor codes = at::empty({bytes}, on_meta.dtype(at::kByte));
  if (shard::rounds_before_quantizing(is_decoded ? at::kFloat : in_file, type)) {
    (void)at::empty({range}, on_meta.dtype(type));
  }
  const at::Tensor received = at::empty_like(codes);
}

// Codes that the checkpoint holds go to their place as they are.
bool is_quantized_on_the_way(const nn::Parameter& parameter, const Json& model_config) {
  return ops::quant::is_of_bitsandbytes(parameter.quantization()->format) &&
         !models::stored_quantization(model_config);
}

// Whole numbers of a file lie in another order there: all of a weight's words are mapped.
void imagine_keeping(const nn::Parameter& parameter, Trainee& trainee) {
  const ops::quant::Format& format = parameter.quantization()->format;
  if (format.kind != ops::quant::Kind::kInts) return;
  trainee.largest_mapped =
      std::max(trainee.largest_mapped, parameter.numel() * format.ints.bits / 8);
}

// A weight that the file holds in MXFP4 and a home does not.
void imagine_decoding(const at::Tensor& out, int64_t columns) {
  const int64_t numel = shard::mxfp4_buffer_numel(out, columns);
  if (out.scalar_type() != at::kBFloat16) {
    (void)at::empty({numel}, out.options().dtype(at::kBFloat16));
  }
}

// Decoded into fp32, rounded to the run's type, and then what a home holds.
void imagine_decoding_fp8(const at::Tensor& out, at::ScalarType type) {
  const at::Tensor rounded = out.scalar_type() == type ? out
                                                       : at::empty({shard::rounded_at_once(out)},
                                                                   out.options().dtype(type));
  (void)at::empty({shard::decoding_buffer_numel(rounded)}, at::TensorOptions(at::kMeta));
}

// The temporaries of loading, without data: a tensor of the file is converted piece by piece, and
// one that is drawn is drawn whole.
void imagine_values(const config::RunConfig& config, Trainee& trainee) {
  const bool is_drawn = config.model.model_name_or_path.empty();
  const at::ScalarType in_file =
      is_drawn ? at::kFloat : shard::storage_type_of("auto", trainee.model_config);
  const shard::Source source = [&](const nn::Parameter& parameter, int64_t, const at::Tensor& out) {
    if (parameter.quantization()) {
      if (!is_quantized_on_the_way(parameter, trainee.model_config)) {  // to their place
        imagine_keeping(parameter, trainee);
        return true;
      }
      // Homes and segments in host memory that hold the weight whole.
      const bool is_in_place = !is_for_cuda(trainee.store->options().device) &&
                               (out.defined() || trainee.store->mesh().shard->size() == 1);
      imagine_quantizing(parameter, in_file,
                         shard::storage_type_of(config.model.dtype, trainee.model_config),
                         is_in_place, trainee);
      return true;
    }
    const int64_t numel = is_drawn ? parameter.numel() : out.numel();
    if (!is_drawn && models::is_in_mxfp4(trainee.model_config, parameter)) {
      imagine_decoding(out, parameter.shape().back());
    } else if (!is_drawn && is_in_fp8(trainee.model_config, parameter)) {
      imagine_decoding_fp8(out, shard::storage_type_of(config.model.dtype, trainee.model_config));
    } else if (!is_drawn && is_in_integers(trainee.model_config, parameter)) {
      (void)at::empty({shard::decoding_buffer_numel(out)}, at::TensorOptions(at::kMeta));
    } else if (is_drawn || out.scalar_type() != in_file) {
      const int64_t at_once = is_drawn ? numel : std::min(numel, shard::kReadAtOnce);
      (void)at::empty({at_once}, out.options().dtype(in_file));
    }
    return true;
  };
  if (is_drawn || !rank_0_reads(config, trainee.store->mesh())) {
    shard::fill_homes(*trainee.store, source);
    if (is_drawn) return;
    for (const nn::Parameter* parameter : trainee.model->parameters()) {
      if (parameter->quantization()) (void)source(*parameter, 0, {});
    }
    return;
  }
  for (const auto kind : {shard::HomeKind::kValues, shard::HomeKind::kCodes}) {
    shard::send_homes(*trainee.store, kind, [&] { return source; });
  }
}

}  // namespace

bool rank_0_reads(const config::RunConfig& config, const comm::Mesh& mesh) {
  return config.shard.cpu_ram_efficient_loading && mesh.world->size() > 1;
}

void set_initial_values(const config::RunConfig& config, const BaseFiles& base, Trainee& trainee) {
  const bool has_files = !config.model.model_name_or_path.empty();
  const bool sends = has_files && rank_0_reads(config, trainee.store->mesh());
  // On its own: ranks that wait for weights must not wait for one that failed before.
  comm::all_or_nothing(*trainee.store->mesh().world, "loading the weights",
                       [&] { fill_values(config, base, sends, trainee); });
  if (has_files) {
    const auto type = shard::storage_type_of(config.model.dtype, trainee.model_config);
    fill_quantized(base, sends, type, *trainee.store);
  }
  // An adapter that is continued brings its rows along.
  if (has_files && !trainee.continued_adapter) {
    fill_new_rows(config, trainee.model_config, base.folder ? &*base.folder : nullptr, base.sources,
                  *trainee.model, *trainee.store);
  }
  start_from_base(config, base, sends, trainee);
  start_token_rows(trainee);
}

void imagine_initial_values(const config::RunConfig& config, Trainee& trainee) {
  comm::all_or_nothing(*trainee.store->mesh().world, "loading the weights",
                       [&] { imagine_values(config, trainee); });
}

}  // namespace strata::train
