// One function per family of translated settings.
#include "strata/config/translate.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "strata/base/error.h"
#include "strata/config/recipe_defaults.h"
#include "strata/config/translate_kwargs.h"

namespace strata::config {
namespace {

// For a value that stands for another setting's: file lines say which key they have.
Origin origin_of(const Given& given) {
  Origin origin = given.origin;
  const std::string name(given.setting->name);
  if (origin.source.find(name) == std::string::npos) origin.source += " (" + name + ")";
  return origin;
}

void translate_mixed_precision(Merge& merge) {
  const Given* given = merge.find("mixed_precision");
  if (!given) return;
  const std::string type = canonical_text(*given);
  const Origin origin = origin_of(*given);
  merge.add(make_given("bf16", type == "bf16" ? "true" : "false", origin));
  merge.add(make_given("fp16", type == "fp16" ? "true" : "false", origin));
}

// One of bf16 and fp16 at most: the one given in the more important place turns the other off.
void require_one_precision(Merge& merge) {
  if (merge.text("fp16") != "true") return;
  const Given fp16 = *merge.find("fp16");
  const Given* bf16 = merge.find("bf16");
  if (!bf16) return merge.add(make_given("bf16", "false", implied_by(fp16)));
  if (canonical_text(*bf16) != "true") return;
  if (bf16->origin.rank == fp16.origin.rank) {
    throw ConfigError("{}: found with {}, expected one of them; remove one", named_source(fp16),
                      named_source(*bf16));
  }
  const bool fp16_wins = fp16.origin.rank > bf16->origin.rank;
  const Given winner = fp16_wins ? fp16 : *bf16;
  merge.add(make_given(fp16_wins ? "bf16" : "fp16", "false",
                       {winner.origin.rank, "implied by " + winner.origin.source}));
}

void translate_saving(Merge& merge) {
  const Given* given = merge.find("zero3_save_16bit_model");
  if (!given || canonical_text(*given) != "true") return;
  merge.add(make_given("save_dtype", "compute", origin_of(*given)));
}

void translate_zero_stage(Merge& merge) {
  constexpr const char* kStrategies[] = {"NO_SHARD", "ZERO1", "ZERO2", "FULL_SHARD"};
  if (const Given* given = merge.find("zero_stage")) {
    // accelerate does not read the section deepspeed_config of such a file.
    const Given* type = merge.find("distributed_type");
    const bool is_of_fsdp =
        type && canonical_text(*type) == "FSDP" && type->origin.rank == given->origin.rank;
    if (is_of_fsdp && merge.text("use_deepspeed") != "true") {
      throw ConfigError("{}: found with {} FSDP, expected FSDP or DeepSpeed; remove one",
                        named_source(*given), type->origin.source);
    }
    const int stage = canonical_text(*given)[0] - '0';
    merge.add(make_given("fsdp_sharding_strategy", kStrategies[stage], origin_of(*given)));
  }
}

// --multi_gpu and --use_fsdp overrule the file's distributed_type.
void translate_distribution(Merge& merge) {
  const Given* type = merge.find("distributed_type");
  const Given* fsdp = merge.text("use_fsdp") == "true" ? merge.find("use_fsdp") : nullptr;
  const Given* multi_gpu = merge.text("multi_gpu") == "true" ? merge.find("multi_gpu") : nullptr;
  if (fsdp && multi_gpu && fsdp->origin.rank == multi_gpu->origin.rank) {
    throw ConfigError("{}: found with {}, expected one of them; remove one", named_source(*fsdp),
                      named_source(*multi_gpu));
  }
  if (fsdp && !(multi_gpu && multi_gpu->origin.rank > fsdp->origin.rank)) return;
  // DeepSpeed's settings say how to shard (deepspeed/deepspeed.h), whatever started the ranks.
  if (!merge.text("deepspeed").empty() || merge.text("use_deepspeed") == "true") return;
  if (multi_gpu) {
    merge.add(make_given("fsdp_sharding_strategy", "NO_SHARD", origin_of(*multi_gpu)));
  } else if (type && canonical_text(*type) != "FSDP" && canonical_text(*type) != "DEEPSPEED") {
    if (canonical_text(*type) == "MULTI_CPU")
      merge.add(make_given("use_cpu", "true", origin_of(*type)));
    merge.add(make_given("fsdp_sharding_strategy", "NO_SHARD", origin_of(*type)));
  }
}

// Version 2 of FSDP has a boolean or a number of ranks here, version 1 the name of a strategy.
// accelerate ignores the name (its launcher always exports FULL_SHARD); here it counts.
void translate_reshard(Merge& merge) {
  const Given* given = merge.find("fsdp_reshard_after_forward");
  if (!given) return;
  const std::string text = canonical_text(*given);
  const bool is_number = text.find_first_not_of("0123456789") == std::string::npos;
  if (is_number) {
    merge.add(make_given("fsdp_reshard_group_size", text, origin_of(*given)));
    return;
  }
  std::string strategy = text;
  if (text == "true" || text == "false") {
    const bool reshards = text == "true";
    // A hybrid strategy says the same in its own name.
    const std::string known = merge.text("fsdp_sharding_strategy");
    if (known == (reshards ? "HYBRID_SHARD" : "HYBRID_SHARD_ZERO2")) return;
    strategy = reshards ? "FULL_SHARD" : "SHARD_GRAD_OP";
  }
  merge.add(make_given("fsdp_sharding_strategy", strategy, origin_of(*given)));
}

// accelerate's two ways to divide rows; it refuses both at once.
void translate_context_parallelism(Merge& merge) {
  const Given* context = merge.find("parallelism_config_cp_size");
  const Given* sequence = merge.find("parallelism_config_sp_size");
  if (!context || given_sharers(merge) != context) return;
  if (sequence && canonical_text(*sequence) != "1") {
    throw ConfigError("{}: found {} with {} {}, expected one of them; remove one",
                      named_source(*context), canonical_text(*context), named_source(*sequence),
                      canonical_text(*sequence));
  }
  merge.put(
      make_given("parallelism_config_sp_size", canonical_text(*context), origin_of(*context)));
}

void translate_checkpointing(Merge& merge) {
  if (const Given* given = merge.find("activation_checkpointing")) {
    const std::string mode = canonical_text(*given);
    const Origin origin = origin_of(*given);
    const bool is_on = mode != "none" && mode != "false";
    merge.add(make_given("gradient_checkpointing", is_on ? "true" : "false", origin));
    const bool is_mode = is_on && mode != "true";
    if (is_mode) merge.add(make_given("gradient_checkpointing_mode", mode, origin));
  }
  const Given* given = merge.find("fsdp_activation_checkpointing");
  if (!given || canonical_text(*given) != "true") return;
  const Given* mode = merge.find("activation_checkpointing");
  if (mode && canonical_text(*mode) == "none") {
    throw ConfigError("{}: found none and {} true, expected one choice; remove one",
                      named_source(*mode), named_source(*given));
  }
  // Trainer takes FSDP's only where its own, gradient_checkpointing, is false; where ranks are not
  // FSDP's, accelerate does not read the section.
  const std::string type = merge.text("distributed_type", "FSDP");
  const bool is_fsdps = type == "FSDP" || merge.text("use_fsdp") == "true";
  const Given checkpointing = make_given("gradient_checkpointing", "true", origin_of(*given));
  is_fsdps ? merge.put(checkpointing) : merge.add(checkpointing);
}

void translate_sampling(Merge& merge) {
  const Given* given = merge.find("group_by_length");
  if (!given || canonical_text(*given) != "true") return;
  merge.add(make_given("train_sampling_strategy", "group_by_length", origin_of(*given)));
}

// Trainer itself does nothing with it; the scripts evaluate once when training is over.
void translate_evaluation(Merge& merge) {
  const Given* given = merge.find("do_eval");
  if (!given || canonical_text(*given) != "true") return;
  const Given* strategy = merge.find("eval_strategy");
  if (strategy && canonical_text(*strategy) != "no") return;
  // A file of such a script says no to evaluations in between.
  if (strategy && strategy->origin.rank > given->origin.rank) return;
  merge.put(make_given("eval_strategy", "end", origin_of(*given)));
}

// Trainer's ranks have whole models then. Who starts the ranks may still ask for FSDP or DeepSpeed.
void translate_no_fsdp(Merge& merge, const Given& given) {
  const bool is_asked_for = merge.text("use_fsdp") == "true" ||
                            merge.text("distributed_type") == "FSDP" ||
                            merge.find("fsdp_sharding_strategy") != nullptr;
  const bool has_deepspeed = !merge.text("deepspeed").empty() ||
                             merge.text("use_deepspeed") == "true" ||
                             merge.text("distributed_type") == "DEEPSPEED";
  if (is_asked_for || has_deepspeed) return;
  merge.add(make_given("fsdp_sharding_strategy", "NO_SHARD", origin_of(given)));
}

// "full_shard auto_wrap offload", also as "full shard" in a public guide.
void translate_fsdp_words(Merge& merge, std::vector<std::string>& warnings) {
  constexpr std::string_view kStrategies[] = {"full_shard", "shard_grad_op", "no_shard",
                                              "hybrid_shard", "hybrid_shard_zero2"};
  const Given* given = merge.find("fsdp");
  if (!given) return;
  std::string words = canonical_text(*given);
  std::ranges::transform(words, words.begin(), [](unsigned char c) {
    return c == ' ' || c == ',' ? ' ' : static_cast<char>(std::tolower(c));
  });
  if (words == "none") return;
  if (const auto is_on = parse_boolean(words)) {
    if (!*is_on) translate_no_fsdp(merge, Given(*given));
    return;
  }
  for (size_t at; (at = words.find("full shard")) != std::string::npos;) words[at + 4] = '_';
  std::string strategy;
  for (size_t start = 0; start < words.size();) {
    const size_t end = std::min(words.find(' ', start), words.size());
    const std::string word = words.substr(start, end - start);
    start = end + 1;
    if (word.empty() || word == "auto_wrap") continue;
    if (word == "offload") {
      merge.add(make_given("fsdp_offload_params", "true", origin_of(*given)));
      continue;
    }
    if (std::ranges::find(kStrategies, word) == std::end(kStrategies)) {
      throw ConfigError("{}: found \"{}\" in \"{}\", expected {}, auto_wrap or offload; correct it",
                        named_source(*given), word, canonical_text(*given),
                        fmt::join(kStrategies, ", "));
    }
    if (!strategy.empty() && strategy != word) {
      throw ConfigError("{}: found {} and {}, expected one strategy; remove one",
                        named_source(*given), strategy, word);
    }
    strategy = word;
  }
  if (strategy.empty()) return;
  merge.add(make_given("fsdp_sharding_strategy", strategy, origin_of(*given)));
  warnings.push_back(named_source(*given) + ": understood as fsdp_sharding_strategy " +
                     merge.text("fsdp_sharding_strategy"));
}

// run_clm.py's: rows stand one after another and are cut everywhere.
void translate_block_size(Merge& merge) {
  const Given* found = merge.find("block_size");
  if (!found) return;
  const Given given = *found;
  merge.add(make_given("max_length", canonical_text(given), origin_of(given)));
  merge.add(make_given("packing", "true", implied_by(given)));
  merge.add(make_given("packing_strategy", "wrapped", implied_by(given)));
}

void translate_splits(Merge& merge) {
  const Given* train = merge.find("dataset_train_split");
  const Given* test = merge.find("dataset_test_split");
  const Given* first = train ? train : test;
  if (!first) return;
  if (const Given* splits = merge.find("splits")) {
    throw ConfigError(
        "splits: found {} ({}) with {}, expected one way to name the splits; remove one",
        canonical_text(*splits), named_source(*splits), named_source(*first));
  }
  merge.add(make_given(
      "splits",
      merge.text("dataset_train_split", "train") + "," + merge.text("dataset_test_split", "test"),
      first->origin));
}

// The PEFT example's flag brings that script's defaults, TRL's --use_peft its own (RunConfig's).
void translate_lora(Merge& merge) {
  const Given* lora = merge.find("use_peft_lora");
  if (lora && canonical_text(*lora) == "true") {
    const Given* peft = merge.find("use_peft");
    if (peft && canonical_text(*peft) == "true") {
      throw ConfigError(
          "{}: found with {}, expected one of them (their LoRA defaults differ); remove one",
          named_source(*lora), named_source(*peft));
    }
    const Given given = *lora;
    merge.add(make_given("use_peft", "true", origin_of(given)));
    merge.add(make_given("lora_r", "64", implied_by(given)));
    merge.add(make_given("lora_alpha", "16", implied_by(given)));
    merge.add(make_given("lora_dropout", "0.1", implied_by(given)));
    merge.add(make_given("lora_target_modules",
                         "q_proj,k_proj,v_proj,o_proj,down_proj,up_proj,gate_proj",
                         implied_by(given)));
  }
  // VeRA's own defaults in PEFT.
  const Given* method = merge.find("peft_type");
  if (method && canonical_text(*method) == "VERA") {
    const Given given = *method;
    if (!merge.find("lora_r")) merge.add(make_given("lora_r", "256", implied_by(given)));
    if (!merge.find("lora_dropout")) merge.add(make_given("lora_dropout", "0", implied_by(given)));
  }
  const Given* adapter = merge.find("adapter_name_or_path");
  if (adapter && !canonical_text(*adapter).empty()) {
    const Given given = *adapter;
    const Given* peft = merge.find("use_peft");
    if (peft && canonical_text(*peft) == "false") {
      throw ConfigError("{}: found with {} false, expected LoRA to be on; remove one",
                        named_source(given), named_source(*peft));
    }
    merge.add(make_given("use_peft", "true", implied_by(given)));
  }
}

}  // namespace

const Given* given_sharers(const Merge& merge) {
  const Given* context = merge.find("parallelism_config_cp_size");
  const Given* sequence = merge.find("parallelism_config_sp_size");
  if (!context || canonical_text(*context) == "1") return sequence;
  const bool denies =
      sequence && canonical_text(*sequence) == "1" && sequence->origin.rank > context->origin.rank;
  return denies ? sequence : context;
}

void translate_launcher_words(Merge& merge) {
  translate_mixed_precision(merge);
  translate_zero_stage(merge);
  translate_saving(merge);
}

void translate(Merge& merge, std::vector<std::string>& warnings) {
  translate_kwargs(merge, warnings);
  require_one_precision(merge);
  translate_distribution(merge);
  translate_reshard(merge);
  translate_fsdp_words(merge, warnings);
  translate_context_parallelism(merge);
  translate_checkpointing(merge);
  translate_sampling(merge);
  translate_evaluation(merge);
  translate_block_size(merge);
  translate_splits(merge);
  translate_lora(merge);
  imply_recipe_defaults(merge);
}

}  // namespace strata::config
