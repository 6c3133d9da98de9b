// One function per block of the file.
#include "strata/config/deepspeed/deepspeed.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/config/deepspeed/autos.h"
#include "strata/config/deepspeed/batch.h"
#include "strata/config/deepspeed/file.h"
#include "strata/config/deepspeed/file_value.h"
#include "strata/config/deepspeed/optimizer.h"
#include "strata/config/deepspeed/precision.h"
#include "strata/config/deepspeed/scheduler.h"
#include "strata/config/deepspeed/warnings.h"
#include "strata/config/field_text.h"
#include "strata/config/translate.h"

namespace strata::config {
namespace {

// By ZeRO stage.
constexpr const char* kStrategies[] = {"NO_SHARD", "ZERO1", "ZERO2", "FULL_SHARD"};

class Translation {
 public:
  Translation(const DsFile& file, Merge& merge, int world_size, std::vector<std::string>& warnings)
      : file_(file), merge_(merge), world_size_(world_size), warnings_(warnings) {}

  void translate() {
    refuse_unsupported();
    require_one_precision(file_, merge_);
    translate_plain();
    translate_zero();
    translate_saving();
    translate_loss_scale(file_, merge_);
    translate_optimizer(file_, merge_);
    translate_scheduler(file_, merge_);
    translate_batch();
    warn_of_ineffective(file_, uses_files_, warnings_);
  }

 private:
  void set(const DsEntry& entry, const std::string& name, const std::string& text) {
    take_value(entry, name, text, merge_);
  }
  void set(const DsEntry& entry, const std::string& name) {
    set(entry, name, ds_text(entry.value));
  }

  void refuse_unsupported() {
    for (const DsEntry& entry : file_.entries) {
      if (entry.key->use != DsUse::kOnly || is_harmless(entry)) continue;
      const auto& accepted = entry.key->accepted;
      throw ConfigError("{}: found {}, expected {}; not supported in this version ({})",
                        entry.source(), entry.value.dump(),
                        accepted.empty() ? "\"enabled\": false" : fmt::format("{}", accepted[0]),
                        entry.key->text);
    }
  }

  static bool is_harmless(const DsEntry& entry) {
    if (entry.value.is_null()) return true;
    if (entry.key->type == DsType::kBlock) {
      const bool is_off = entry.value.value("enabled", Json()) == Json(false) ||
                          entry.value.value("autotp_size", Json()) == Json(0);
      return entry.value.empty() || is_off;
    }
    return std::ranges::any_of(entry.key->accepted, [&](std::string_view text) {
      return entry.value == Json::parse(text);  // 1 equals 1.0
    });
  }

  // Keys that are one setting each.
  void translate_plain() {
    for (const DsEntry& entry : file_.entries) {
      if (entry.key->use != DsUse::kSetting || entry.is_auto || entry.value.is_null()) continue;
      set(entry, std::string(entry.key->text));
    }
  }

  int stage() {
    if (const DsEntry* old = file_.find("zero_optimization")) return old->value.get<bool>() ? 1 : 0;
    const DsEntry* entry = file_.find("zero_optimization.stage");
    if (!entry) return 0;
    if (entry->is_auto) return automatic_stage();
    const int64_t stage = entry->value.get<int64_t>();
    if (stage > 3) {
      throw ConfigError("{}: found {}, expected a stage from 0 to 3", entry->source(), stage);
    }
    return static_cast<int>(stage);
  }

  // That of zero_stage or of the strategy that a flag names; accelerate's default is 2.
  int automatic_stage() {
    const std::string strategy = merge_.text("fsdp_sharding_strategy", kStrategies[2]);
    if (strategy == "SHARD_GRAD_OP") return 2;
    const auto found = std::ranges::find(kStrategies, strategy);
    return found == std::end(kStrategies) ? 3 : static_cast<int>(found - kStrategies);
  }

  // The key that decides the stage, or one that stands for the whole file.
  DsEntry stage_entry() {
    for (const char* path : {"zero_optimization.stage", "zero_optimization"}) {
      if (const DsEntry* entry = file_.find(path)) return *entry;
    }
    return {nullptr, "zero_optimization.stage", 0, file_.name};
  }

  void translate_zero() {
    const int zero = stage();
    const DsEntry entry = stage_entry();
    const std::string parameters = translate_offload("offload_param", "cpu_offload_param", zero);
    const std::string optimizer = translate_offload("offload_optimizer", "cpu_offload", zero);
    const bool is_given = entry.is_auto && merge_.find("fsdp_sharding_strategy");
    if (!is_given) set(entry, "fsdp_sharding_strategy", kStrategies[zero]);
    translate_partition(zero);
    uses_files_ = parameters == "nvme" || optimizer == "nvme";
    if (!uses_files_) return;
    for (const auto& [path, name] :
         {std::pair{"zero_optimization.sub_group_size", "sub_group_size"},
          {"aio.block_size", "aio_block_size"},
          {"aio.queue_depth", "aio_queue_depth"}}) {
      if (const DsEntry* given = file_.find(path)) set(*given, name);
    }
  }

  // Without it DeepSpeed writes no whole model at stage 3; here it says in which type.
  void translate_saving() {
    const DsEntry* entry =
        file_.find("zero_optimization.stage3_gather_16bit_weights_on_model_save");
    if (entry && entry->is_auto) return;  // the flag counts
    const bool wants_16_bits = entry && entry->value == Json(true);
    const Given* flag = merge_.find("zero3_save_16bit_model");
    if (entry && flag && flag->origin.rank >= Rank::kEnvironment &&
        (canonical_text(*flag) == "true") != wants_16_bits) {
      throw ConfigError("{}: found {} with {} {}, expected the same; correct one", entry->source(),
                        ds_text(entry->value), flag->origin.source, canonical_text(*flag));
    }
    if (wants_16_bits && !merge_.find("save_dtype")) set(*entry, "save_dtype", "compute");
  }

  // ZeRO++'s hpZ: the backward pass gathers among so many neighbours.
  void translate_partition(int zero) {
    const DsEntry* entry = file_.find("zero_optimization.zero_hpz_partition_size");
    if (!entry || entry->value.is_null() || entry->value.get<double>() <= 1) return;
    if (zero < 3) {
      throw ConfigError(
          "{}: found {} with ZeRO stage {}, expected stage 3, the only one that shards parameters "
          "(DeepSpeed ignores it); set stage 3 or remove it",
          entry->source(), ds_text(entry->value), zero);
    }
    set(*entry, "fsdp_reshard_group_size");
  }

  // Returns the device. `older`: the boolean of old files.
  std::string translate_offload(const std::string& kind, const std::string& older, int zero) {
    const std::string block = "zero_optimization." + kind;
    const DsEntry* device = file_.find(block + ".device");
    const DsEntry* old = file_.find("zero_optimization." + older);
    if (device && old) {
      throw ConfigError("{}: found with {}, expected one of them; remove the older one",
                        old->source(), device->source());
    }
    if (!device && !old) return "none";
    const DsEntry& entry = device ? *device : *old;
    const bool is_auto = entry.is_auto;
    const std::string text = is_auto              ? merge_.text(kind + "_device", "none")
                             : device             ? ds_text(device->value)
                             : old->value == true ? "cpu"
                                                  : "none";
    if (kind == "offload_param" && text != "none" && zero < 3) {
      throw ConfigError(
          "{}: found {} with ZeRO stage {}, expected stage 3, the only one that shards parameters "
          "(DeepSpeed ignores it); set stage 3 or remove the block",
          entry.source(), text, zero);
    }
    if (text == "nvme" && zero < 3) {
      throw ConfigError(
          "{}: found nvme with ZeRO stage {}, expected stage 3 (DeepSpeed would use host memory); "
          "set stage 3 or device cpu",
          entry.source(), zero);
    }
    if (text != "none" && zero == 0) {
      throw ConfigError("{}: found {} with ZeRO stage 0, expected stage 1, 2 or 3; set the stage",
                        entry.source(), text);
    }
    if (!is_auto) set(entry, kind + "_device", text);
    const DsEntry* path = file_.find(block + ".nvme_path");
    if (path && !path->is_auto && text == "nvme") set(*path, kind + "_nvme_path");
    return text;
  }

  // The size as the file or a flag gives it; an "auto" takes the flag's default.
  std::optional<int64_t> known_size(const char* path, const char* setting) {
    const DsEntry* entry = file_.find(path);
    if (entry && !entry->is_auto) {
      set(*entry, setting);
      return static_cast<int64_t>(entry->value.get<double>());
    }
    const Given* given = merge_.find(setting);
    if (!given && !entry) return std::nullopt;
    const RunConfig defaults;
    return std::stoll(given ? canonical_text(*given) : field_text(get_setting(setting), defaults));
  }

  // Fewer rows would contradict what the file says.
  void refuse_to_find_rows() {
    const Given* finds = merge_.find("auto_find_batch_size");
    if (!finds || canonical_text(*finds) != "true") return;
    for (const char* path : {"train_batch_size", "train_micro_batch_size_per_gpu"}) {
      const DsEntry* entry = file_.find(path);
      if (!entry || entry->is_auto) continue;
      throw ConfigError(
          "{}: found {} with auto_find_batch_size true ({}), expected \"auto\"; remove one",
          entry->source(), ds_text(entry->value), named_source(*finds));
    }
  }

  int64_t num_sharers() {
    const Given* given = given_sharers(merge_);
    return given ? std::stoll(canonical_text(*given)) : 1;
  }

  // Groups of ranks that share rows; nothing while the ranks are unknown, or where they do not
  // divide, which meshes refuse.
  std::optional<int64_t> data_parallel_size() {
    const int64_t sharers = num_sharers();
    if (world_size_ == 0 || world_size_ % sharers != 0) return std::nullopt;
    const int64_t size = world_size_ / sharers;
    const DsEntry* said = file_.find("data_parallel_size");
    if (said && !said->is_auto && !said->value.is_null() && said->value != Json(size)) {
      throw ConfigError("{}: found {} for {} ranks of which {} share rows, expected {}; remove it",
                        said->source(), ds_text(said->value), world_size_, sharers, size);
    }
    return size;
  }

  void translate_batch() {
    constexpr const char* kMicro = "per_device_train_batch_size";
    constexpr const char* kAccumulation = "gradient_accumulation_steps";
    refuse_to_find_rows();
    BatchSizes sizes;
    sizes.micro = known_size("train_micro_batch_size_per_gpu", kMicro);
    sizes.accumulation = known_size("gradient_accumulation_steps", kAccumulation);
    const DsEntry* train = file_.find("train_batch_size");
    const std::optional<int64_t> parallel = data_parallel_size();
    if (!train || train->is_auto) return;  // the flags and their defaults decide
    sizes.train = static_cast<int64_t>(train->value.get<double>());
    if (!parallel) return;
    const BatchSizes solved = solve_batch(sizes, {*parallel, num_sharers()}, train->source());
    if (!sizes.micro) set(*train, kMicro, std::to_string(*solved.micro));
    if (!sizes.accumulation) set(*train, kAccumulation, std::to_string(*solved.accumulation));
  }

  const DsFile& file_;
  Merge& merge_;
  int world_size_;
  std::vector<std::string>& warnings_;
  bool uses_files_ = false;
};

// --use_deepspeed, or distributed_type DEEPSPEED in accelerate's file.
const Given* deepspeed_launch(const Merge& merge) {
  if (merge.text("use_deepspeed") == "true") return merge.find("use_deepspeed");
  if (merge.text("distributed_type") == "DEEPSPEED") return merge.find("distributed_type");
  return nullptr;
}

}  // namespace

std::vector<DsAuto> translate_deepspeed(Merge& merge, int world_size,
                                        std::vector<std::string>& warnings) {
  const std::string text = merge.text("deepspeed");
  const Given* launch = deepspeed_launch(merge);
  if (text.empty() || text == "none") {
    if (launch && !merge.find("zero_stage")) {
      merge.add(
          make_given("fsdp_sharding_strategy", kStrategies[2],
                     {Rank::kImplied, "accelerate's zero_stage 2, by " + launch->origin.source}));
    }
    if (launch && merge.text("fp16") == "true") add_scale_defaults(launch->origin.source, merge);
    return {};
  }
  const Given given = *merge.find("deepspeed");
  const Given* type = merge.find("distributed_type");
  if (type && type->origin.rank >= Rank::kFile && canonical_text(*type) == "FSDP") {
    throw ConfigError("{}: found with {} FSDP, expected FSDP or DeepSpeed; remove one",
                      given.origin.source, type->origin.source);
  }
  const DsFile file = read_deepspeed(text, given.origin.source);
  Translation(file, merge, world_size, warnings).translate();
  return autos_of(file);
}

}  // namespace strata::config
