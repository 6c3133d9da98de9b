// The public interface: what a training program of one's own uses. Each header says what it owns
// and what it requires; examples/hand_written shows them at work. Never: declarations of its own.
#pragma once

#include "strata/adapters/lora.h"             // LoRA: attach, initialise
#include "strata/base/error.h"                // what is thrown
#include "strata/checkpoint/export.h"         // a model or adapter as other tools read it
#include "strata/checkpoint/import.h"         // and the way back
#include "strata/checkpoint/sharded.h"        // what a run resumes from
#include "strata/comm/mesh.h"                 // shard groups and replicas
#include "strata/comm/rendezvous.h"           // where ranks meet
#include "strata/data/collate.h"              // rows to micro-batches
#include "strata/data/prepare.h"              // files to tokenized rows, as the recipe makes them
#include "strata/data/sampler.h"              // which rows a step sees
#include "strata/generate/generate.h"         // answers of a model
#include "strata/hf/model_folder.h"           // checkpoints of others
#include "strata/launch/environment.h"        // which rank this process is
#include "strata/models/registry.h"           // model families
#include "strata/optim/adamw.h"               // AdamW over shards, clipping
#include "strata/optim/lr_schedule.h"         // learning rates
#include "strata/shard/executor.h"            // forward and backward of a micro-batch
#include "strata/shard/loading.h"             // filling homes
#include "strata/shard/schedule.h"            // the strategy as a list of steps
#include "strata/shard/unit_store.h"          // homes and slots of all parameters
#include "strata/text/tokenizer.h"            // text to ids and back
#include "strata/train/loop/batch_tensors.h"  // a micro-batch as tensors
