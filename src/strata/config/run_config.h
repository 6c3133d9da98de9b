// Every setting of a run, under the names of TrainingArguments, SFTConfig, LoraConfig and
// accelerate. Defaults are those of the reference's SFT command. Filled by config/ from files,
// environment and flags; read everywhere below config/ in the folder order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/config/choices.h"

namespace strata::config {

struct ModelConfig {
  std::string model_name_or_path;
  std::string model_revision = "main";  // of a name on the Hub
  std::string config_name;           // train from scratch: a config.json or a folder that holds one
  std::string tokenizer_name;        // default: the model's folder
  std::string dtype = "float32";     // of frozen weights at rest: auto, float32, bfloat16, float16
  std::string adapter_name_or_path;  // continue this adapter
  std::string cache_dir;             // of the Hub; default: HF_HUB_CACHE or HF_HOME/hub
  bool mean_resizing = true;         // how rows of new tokens start
  std::optional<int64_t> resize_to_multiple_of;  // of the rows; default: what adds tokens decides
  std::optional<double> router_aux_loss_coef;    // of mixtures; default: config.json's
};

struct DataConfig {
  std::string dataset_name;        // file, folder, pattern or Hub name; several with commas between
  std::string dataset_config;      // a configuration of the data set; empty: its default
  bool dataset_streaming = false;  // rows in the files' order, and no more than are used
  std::vector<std::string> dataset_weights;  // of several data sets: how often each is drawn
  std::vector<std::string> dataset_columns;  // "messages=dialog": the column and its name in files
  std::string splits = "train,test";         // each may have a slice: train[:10%]
  OnBadRow on_bad_row = OnBadRow::kError;
  std::string long_rows = "truncate";  // truncate, drop, split
  std::string dataset_text_field = "text";
  std::optional<int64_t> max_length = 1024;  // none: rows stay whole
  bool packing = false;
  std::string packing_strategy = "bfd";  // bfd, bfd_split, wrapped
  std::optional<bool> eval_packing;
  std::optional<bool> completion_only_loss;
  bool assistant_only_loss = false;
  bool shuffle_dataset = false;
  std::string chat_template_path;
  std::string chat_template_format = "none";  // or a built-in template's name
  std::optional<bool> add_special_tokens;     // default: for text, not for conversations
  bool append_concat_token = false;
  std::string eos_token;
  std::string pad_token;
  // Of the recipe seq2seq, under the names of the reference's run_summarization.py and
  // run_translation.py.
  std::string train_file, validation_file;  // in place of dataset_name
  std::string text_column, summary_column;  // source and target; empty: the first two columns
  std::string source_lang, target_lang;     // of a column "translation", and to the tokenizer
  std::string lang;                         // to the tokenizer, of sources and targets
  std::string forced_bos_token;             // the language that answers begin with
  std::string source_prefix;                // before every source, such as "summarize: "
  int64_t max_source_length = 1024;
  int64_t max_target_length = 128;
  bool dataset_cache = true;                // keep tokenized rows in HF_HOME/strata
  std::optional<int64_t> dataset_num_proc;  // threads; default: all cores of this rank
};

// The frozen base as codes. Names and meaning of BitsAndBytesConfig and Mxfp4Config; the defaults
// of TRL's ModelConfig.
struct QuantizationConfig {
  bool load_in_4bit = false;
  bool load_in_8bit = false;
  std::string bnb_4bit_quant_type = "nf4";  // nf4, fp4
  int64_t bnb_4bit_blocksize = 64;
  bool bnb_4bit_use_double_quant = false;
  std::string bnb_4bit_compute_dtype = "auto";  // auto (of the activations) or a type
  double llm_int8_threshold = 6.0;
  std::vector<std::string> llm_int8_skip_modules;
  bool mxfp4_dequantize = false;  // decode what the checkpoint holds in MXFP4 while it is read
  bool fp8_dequantize = false;    // the same of fp8
  bool int_dequantize = false;    // and of whole numbers (GPTQ, AWQ, compressed-tensors)
};

struct LoraConfig {
  bool use_peft = false;
  PeftType peft_type = PeftType::kLora;
  std::vector<std::string> feedforward_modules;  // of IA3; one entry may be a regex
  int64_t r = 16;
  double alpha = 32;
  double dropout = 0.05;
  std::vector<std::string> target_modules;  // empty: the family's default; one entry may be a regex
  std::vector<std::string> target_parameters;
  std::vector<std::string> exclude_modules;
  std::vector<std::string> layers_to_transform;  // whole numbers
  std::vector<std::string> layers_pattern;
  std::string rank_pattern;   // JSON object, empty: none
  std::string alpha_pattern;  // JSON object, empty: none
  std::vector<std::string> modules_to_save;
  std::string trainable_token_indices;  // JSON list, or object of lists by module; empty: none
  bool ensure_weight_tying = false;
  bool use_rslora = false;
  bool use_dora = false;
  bool lora_bias = false;
  std::string bias = "none";  // none, all, lora_only
  std::string init_lora_weights = "true";
  int64_t loftq_bits = 4;  // of init_lora_weights loftq: 4 or 8
  int64_t loftq_iter = 1;
  // VERA.
  double d_initial = 0.1;
  int64_t projection_prng_key = 0;
  bool save_projection = true;
  std::string init_weights = "true";  // of VERA true or false, of PREFIX_TUNING true or zero
  // PROMPT_TUNING and PREFIX_TUNING.
  int64_t num_virtual_tokens = 0;             // must be given
  std::string prompt_tuning_init = "RANDOM";  // RANDOM, TEXT, SAMPLE_VOCAB
  std::string prompt_tuning_init_text;
  bool prefix_projection = false;   // of PREFIX_TUNING
  int64_t encoder_hidden_size = 0;  // of prefix_projection; 0: the width of a layer's keys
};

struct OptimConfig {
  std::string optim = "adamw_torch_fused";
  std::string optim_args;  // of sgd: "momentum=0.9,nesterov=true"
  double learning_rate = 2e-5;
  double weight_decay = 0.0;
  bool decay_norms_and_biases = false;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;
  std::string lr_scheduler_type = "linear";
  std::string lr_scheduler_kwargs;  // JSON object, empty: none
  double warmup_steps = 0;          // >= 1: steps; < 1: fraction of max_steps
  double warmup_ratio = 0;
};

// Of the recipes dpo, orpo, cpo, kto and reward. Names and meaning of TRL's DPOConfig, ORPOConfig,
// CPOConfig, KTOConfig and RewardConfig.
struct PreferenceConfig {
  double beta = 0.1;
  std::vector<std::string> loss_type;     // empty: sigmoid of dpo and cpo, kto of kto
  std::vector<std::string> loss_weights;  // of several; empty: 1
  double label_smoothing = 0;             // of robust, exo_pair, aot (dpo), sigmoid, simpo (cpo)
  std::string f_divergence_type = "reverse_kl";
  double f_alpha_divergence_coef = 0.5;
  double discopop_tau = 0.05;
  std::optional<double> ld_alpha;  // what tokens beyond the shorter answer's length count
  bool use_weighting = false;      // pairs count by how likely the model finds them (WPO)
  // The reference takes that share of the model's weights after so many steps (TR-DPO).
  bool sync_ref_model = false;
  double ref_model_mixup_alpha = 0.6;
  int64_t ref_model_sync_steps = 512;
  bool disable_dropout = true;
  std::string truncation_mode = "keep_start";           // keep_start, keep_end
  std::optional<int64_t> precompute_ref_batch_size;     // default: that of training
  double desirable_weight = 1, undesirable_weight = 1;  // of kto
  double center_rewards_coefficient = 0;                // of reward
  double cpo_alpha = 1, simpo_gamma = 0.5, alpha = 0;   // of cpo
};

// What the labels of a set are to the recipe classify.
enum class LabelProblem : uint8_t {
  kClasses,  // one of several
  kLabels,   // any of several
  kNumbers,  // a number
};

// Of the recipe classify. Names and meaning of transformers' run_classification.py and run_glue.py.
struct ClassifyConfig {
  std::string task_name;  // of GLUE (glue_tasks.h); empty: none
  // Joined; empty: the first of "sentence", "text", or a pair's columns that run_glue.py knows.
  std::vector<std::string> text_column_names;
  std::vector<std::string> text_pair_column_names;  // joined to the second of two texts
  std::string text_column_delimiter = " ";
  std::string label_column_name;      // empty: the first of "label", "labels"
  std::optional<bool> do_regression;  // default: where the first label is no whole number
  std::optional<int64_t> num_labels;  // default: as many as the data have
  bool ignore_mismatched_sizes = false;
  // What the data say of them (train/labels.h); empty where nobody has read any. No settings.
  std::vector<std::string> label_names;
  LabelProblem problem = LabelProblem::kClasses;
};

struct TrainConfig {
  std::string output_dir = "trainer_output";
  int64_t per_device_train_batch_size = 8;
  bool auto_find_batch_size = false;  // as many rows as fit, at most those
  int64_t per_device_eval_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;
  double num_train_epochs = 3.0;
  int64_t max_steps = -1;
  bool dataloader_drop_last = false;
  Sampling train_sampling_strategy = Sampling::kRandom;
  uint64_t seed = 42;
  std::optional<uint64_t> data_seed;
  double label_smoothing_factor = 0;
  std::optional<double> neftune_noise_alpha;  // none: no noise on embedded tokens
  Interval logging_strategy = Interval::kSteps;
  double logging_steps = 10;  // < 1: fraction of max_steps
  bool logging_first_step = false;
  std::vector<std::string> report_to;  // none, all, tensorboard, or what has no effect here
  std::string logging_dir;             // of event files; empty: in output_dir
  bool wall_clock_breakdown = false;
  Interval eval_strategy = Interval::kNo;
  std::optional<double> eval_steps;
  bool eval_on_start = false;
  double eval_delay = 0;                         // steps or epochs, as eval_strategy counts
  bool predict_with_generate = false;            // seq2seq: evaluations write answers too
  std::optional<int64_t> generation_max_length;  // of an answer; default: max_target_length
  std::optional<int64_t> generation_num_beams;   // of an answer; default: the model's files'
  Interval save_strategy = Interval::kSteps;
  double save_steps = 500;
  std::optional<int64_t> save_total_limit;
  bool load_best_model_at_end = false;
  std::string metric_for_best_model;      // see best_metric() in derived.h
  std::optional<bool> greater_is_better;  // default: unless the name ends in "loss" or "mse"
  std::optional<int64_t> early_stopping_patience;  // evaluations; none or 0: no early stopping
  double early_stopping_threshold = 0;             // what an evaluation must be better by
  bool save_only_model = false;
  bool async_save = true;
  std::string resume_from_checkpoint;  // empty, "true" or a path
  bool full_determinism = false;       // on a GPU too the same bits every time
  bool tf32 = false;                   // fp32 products of a GPU
  OnNan on_nan = OnNan::kStop;
  double max_loss_spike = 0;                // times the running mean of the loss; 0: no bound
  std::string max_shard_size = "50GB";      // of the exported model
  std::string save_dtype = "auto";          // of its weights, or the adapter's
  AutoSwitch rehearse = AutoSwitch::kAuto;  // auto: when more than an hour of work is planned
  int64_t profile_step = 0;                 // the step whose trace is written; 0: none
  bool disable_tqdm = false;
};

struct ShardConfig {
  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  int64_t dp_shard_size = 0;           // ranks that share the shards; 0: by strategy
  int64_t dp_replicate_size = 0;       // copies of the shards; 0: by strategy
  int64_t sequence_parallel_size = 1;  // ranks that share a micro-batch's tokens
  int64_t reshard_group_size = 0;      // between forward and backward; 0: all of them
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  bool forward_prefetch = true;
  std::string limit_all_gathers = "true";  // units whole at a time: true: 2; false: 4; a number
  bool sync_each_batch = true;             // false: gradients stay whole until the last micro-batch
  WrapPolicy auto_wrap_policy = WrapPolicy::kTransformer;
  std::vector<std::string> layer_classes;  // empty: every layer of the model
  int64_t min_num_params = 100000000;      // of SIZE_BASED_WRAP
  bool gradient_checkpointing = true;
  Checkpointing checkpointing_mode = Checkpointing::kFull;  // never none
  int64_t checkpointing_layers = 0;                         // of so many layers, the first; 0: all
  Checkpointing checkpointing_rest = Checkpointing::kNone;  // of the layers after
  std::string memory_budget;  // that a rank may hold; empty: what is free
  ActivationOffloading activation_offloading = ActivationOffloading::kFalse;
  std::string activation_offloading_path;  // of disk
  bool bf16 = true;                        // compute type; CPUs without native bf16 compute in fp32
  bool fp16 = false;
  std::string param_dtype = "auto";      // of gathered trained weights; auto: as bf16 and fp16 say
  std::string reduce_dtype = "float32";  // of gradients while they are summed over ranks
  std::string buffer_dtype = "float32";  // of what a model keeps beside weights: rotary frequencies
  double loss_scale = 0;                 // of fp16; 0: dynamic, by the following
  double initial_loss_scale = 65536;
  int64_t loss_scale_window = 2000;   // steps without overflow before it doubles
  int64_t loss_scale_hysteresis = 1;  // overflows before it is halved
  double min_loss_scale = 0;          // the run ends when it would fall below
  int64_t ddp_timeout_s = 1800;
  bool offload_params = false;  // FSDP's: parameters, gradients, optimizer state to host memory
  // DeepSpeed's: none, cpu (host memory), nvme (files below the path of the next line).
  OffloadDevice offload_param_device = OffloadDevice::kNone;
  std::string offload_param_nvme_path;
  OffloadDevice offload_optimizer_device = OffloadDevice::kNone;
  std::string offload_optimizer_nvme_path;
  int64_t sub_group_size = 16777216;  // elements that a step of offloaded state updates at once
  int64_t aio_block_size = 1048576;   // bytes of one request to the file system
  int64_t aio_queue_depth = 8;        // requests into which a transfer is cut at most
  StateDictType state_dict_type = StateDictType::kSharded;  // of checkpoints
  bool cpu_ram_efficient_loading = false;  // rank 0 alone reads the weights and sends them
};

struct LaunchConfig {
  int num_processes = 0;  // 0: one per device, on CPUs one
  bool cpu = false;
  std::string main_process_ip = "127.0.0.1";
  int main_process_port = 0;  // 0: a free one
  int num_machines = 1;
  int machine_rank = 0;
  std::string gpu_ids = {};             // "0,1": the devices that the ranks see; empty: all
  int num_cpu_threads_per_process = 0;  // 0: cores / local ranks, unless OMP_NUM_THREADS is set
  std::string log_dir = {};             // every rank's output goes to a file here
  std::string tee = {};                 // of it what is shown too: "3", "0:1,2:3"
  bool no_python = false;               // start the named program itself instead of the recipe
  bool enable_cpu_affinity = false;     // every rank has cores of its own
  int max_restarts = 0;                 // of all ranks, after one failed
  RendezvousBackend rdzv_backend = RendezvousBackend::kStatic;
  std::string rdzv_conf = {};  // "timeout=300,..."
  int64_t hang_timeout_s = 0;  // of a rank's wait for others; 0: 9/10 of ddp_timeout
  bool dry_run = false;        // settings, mesh, units, schedule and plan; no training
};

// Of `strata chat` alone. What is not set is taken from the model's generation_config.json, then
// from the reference's defaults.
struct ChatConfig {
  std::string model_name_or_path;
  std::string adapter_name_or_path;
  std::string cache_dir;
  std::string dtype = "auto";  // auto, float32, bfloat16, float16
  std::string system;
  int64_t max_new_tokens = 256;
  std::optional<bool> do_sample;  // default false
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<uint64_t> seed;  // default: another one every time
};

// Of `strata slurm` alone: what sbatch is asked for.
struct SlurmConfig {
  std::string job_name = "strata";
  int nodes = 0;          // 0: num_machines
  int gpus_per_node = 0;  // 0: num_processes / nodes
  int cpus_per_task = 0;  // 0: SLURM's choice
  std::string mem;        // empty: SLURM's choice
  std::string time;       // empty: the partition's
  std::string partition, account, qos, constraint;
  bool exclusive = false;
  std::string log = "%x-%j.out";
  std::string sbatch_options;
  bool requeue = true;
  int stop_seconds = 300;
  std::string container_image;
  std::string container_mounts;
  ContainerRuntime container_runtime = ContainerRuntime::kAuto;
  std::string setup;    // shell commands
  std::string program;  // empty: this one
  std::string script;   // empty: standard output
  bool submit = false;
};

// Of `strata plan` alone.
struct PlanConfig {
  int world_size = 0;  // 0: num_processes, or 1
  int nodes = 0;       // 0: num_machines
  PlanDevice device = PlanDevice::kAuto;
  std::string device_memory;  // "80GB": what one rank may use; empty: not judged
  bool show_schedule = false;
  bool deepspeed_estimate = false;
  std::vector<std::string> dtypes;  // of accelerate's table; empty: it is not printed
  std::string library_name = "transformers";
};

// Of `strata tokenize` alone.
struct TokenizeConfig {
  std::string model_name_or_path;
  LineKind input = LineKind::kAuto;
  bool decode = false;
  bool file_lengths = false;  // truncate and pad as tokenizer.json says
  std::string cache_dir;
  std::optional<bool> add_special_tokens;  // default: for text, not for conversations
  bool add_generation_prompt = false;
  bool skip_special_tokens = false;
  std::string chat_template_path;
  std::string chat_template_format = "none";
};

// Of `strata preview`, beside the settings of the run that it shows.
struct PreviewConfig {
  int64_t num_examples = 3;
  Split split = Split::kTrain;
  std::string output_html;  // empty: no page
};

struct RunConfig {
  // What is trained how: a row of the table in recipes.h.
  std::string recipe = "sft";
  ModelConfig model;
  DataConfig data;
  QuantizationConfig quantization;
  LoraConfig lora;
  OptimConfig optim;
  PreferenceConfig preference;
  ClassifyConfig classify;
  TrainConfig train;
  ShardConfig shard;
  LaunchConfig launch;
  ChatConfig chat;          // filled from chat_settings_table()
  SlurmConfig slurm;        // filled from slurm_settings_table()
  PlanConfig plan;          // filled from plan_settings_table()
  TokenizeConfig tokenize;  // filled from tokenize_settings_table()
  PreviewConfig preview;    // filled from preview_settings_table()
};

}  // namespace strata::config
