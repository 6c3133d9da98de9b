// Runs src/strata/data for tests/parity/data_probe.py: a JSON list of requests in (file, argv[1]),
// a JSON list of answers out. Never used by the program itself.
#include <cstdio>
#include <string>

#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/data/collate.h"
#include "strata/data/files/data_sets.h"
#include "strata/data/files/split_files.h"
#include "strata/data/prepare.h"
#include "strata/data/random.h"
#include "strata/data/sampler.h"
#include "strata/data/store/token_store.h"

namespace {

using strata::Json;
using namespace strata::data;

PrepareOptions read_options(const Json& request) {
  PrepareOptions options;
  options.subject = "probe";
  options.threads = 2;
  options.dataset_text_field = request.value("dataset_text_field", options.dataset_text_field);
  options.max_length = request.value("max_length", options.max_length);
  options.packing = request.value("packing", options.packing);
  options.packing_strategy = request.value("packing_strategy", options.packing_strategy);
  if (request.contains("completion_only_loss")) {
    options.completion_only_loss = request["completion_only_loss"].get<bool>();
  }
  options.assistant_only_loss = request.value("assistant_only_loss", options.assistant_only_loss);
  options.shuffle = request.value("shuffle_dataset", options.shuffle);
  options.seed = request.value("seed", options.seed);
  options.long_rows = request.value("long_rows", options.long_rows);
  options.max_rows = request.value("max_rows", options.max_rows);
  options.separate_documents = request.value("separate_documents", options.separate_documents);
  if (request.contains("truncation_mode")) {
    options.preference = PreferenceOptions{.truncation_mode = request["truncation_mode"]};
  }
  if (request.contains("mismatched_rows")) {
    options.rated = RatedOptions{.mismatched_rows = request["mismatched_rows"].get<int64_t>()};
  }
  return options;
}

// The rows of one epoch for each rank: [epoch][rank][index].
Json order(const Json& request) {
  const int world_size = request.at("world_size").get<int>();
  const BatchSampler sampler(request.at("num_rows").get<int64_t>(),
                             {.batch_size = request.at("batch_size").get<int64_t>(),
                              .world_size = world_size,
                              .seed = request.at("seed").get<uint64_t>(),
                              .strategy = request.at("strategy").get<std::string>(),
                              .drop_last = request.at("drop_last").get<bool>()});
  Json epochs = Json::array();
  for (int64_t epoch = 0; epoch < request.at("epochs").get<int64_t>(); ++epoch) {
    Json ranks = Json::array();
    for (int rank = 0; rank < world_size; ++rank) {
      Json batches = Json::array();
      for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
        batches.push_back(sampler.batch(epoch, rank, i));
      }
      ranks.push_back(std::move(batches));
    }
    epochs.push_back(std::move(ranks));
  }
  return epochs;
}

// The rows that a data request gives; with "may_fail" an error is an answer too.
Json load(const Json& request) try {
  DataRequest wanted;
  wanted.names = request.at("names").get<std::string>();
  wanted.split = request.value("split", wanted.split);
  wanted.seed = request.value("seed", wanted.seed);
  wanted.weights = request.value("weights", wanted.weights);
  wanted.hub_cache = request.value("hub_cache", wanted.hub_cache);
  wanted.load.configuration = request.value("config", wanted.load.configuration);
  Json rows = Json::array();
  for (const Row& row : load_data(wanted).rows) rows.push_back(row.fields);
  return rows;
} catch (const strata::Error& error) {
  if (!request.value("may_fail", false)) throw;
  return {{"error", error.what()}};
}

// The columns that no row of a data request holds, with their numbers of rows.
Json left_out(const Json& request) {
  return read_data({.names = request.at("names").get<std::string>()}, [](RowBatch) { return true; })
      .left_out;
}

// What the data sets of a request have beside what is read.
Json ignored(const Json& request) {
  DataRequest wanted{.names = request.at("names").get<std::string>()};
  wanted.load.configuration = request.value("config", wanted.load.configuration);
  return describe_ignored(wanted);
}

Json describe(const MicroBatch& batch) {
  return {{"mismatched", batch.mismatched ? describe(*batch.mismatched) : Json()},
          {"ids", batch.ids},
          {"targets", batch.targets},
          {"positions", batch.positions},
          {"offsets", batch.offsets},
          {"rows", batch.rows},
          {"row_tokens", batch.row_tokens},
          {"num_targets", batch.num_targets}};
}

// The prepared rows and the first epoch's micro-batches on one rank; with "may_fail" an error is an
// answer too.
Json prepare_and_collate(const Json& request) try {
  const auto tokenizer = strata::text::Tokenizer::load(request.at("tokenizer").get<std::string>());
  const strata::text::ChatTemplate tmpl(tokenizer->chat_template());
  const PrepareOptions options = read_options(request);
  DataRequest wanted{.names = request.at("data").get<std::string>()};
  const Json columns = request.value("columns", Json::object());
  for (const auto& [name, column] : columns.items()) {
    wanted.load.columns.emplace_back(name, column.get<std::string>());
  }
  const TokenStore store = TokenStore::scratch([&](TokenWriter& writer) {
    return prepare_data(wanted, *tokenizer, &tmpl, options,
                        [&writer](const ExampleView& row) { writer.add(row); });
  });
  const DatasetStats& dataset = store.stats();
  Json rows = Json::array();
  for (size_t i = 0; i < store.size(); ++i) {
    rows.push_back({{"ids", store[i].ids},
                    {"labels", store[i].labels},
                    {"lengths", store[i].lengths},
                    {"rating", static_cast<int>(store[i].rating)}});
  }
  const BatchSampler sampler(static_cast<int64_t>(store.size()),
                             {.batch_size = request.at("batch_size").get<int64_t>(),
                              .seed = request.value("seed", uint64_t{42}),
                              .strategy = request.value("strategy", std::string("random"))});
  Json batches = Json::array();
  for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
    const std::vector<int64_t> indices = sampler.batch(/*epoch=*/0, /*rank=*/0, i);
    std::vector<ExampleView> examples;
    for (const int64_t index : indices) examples.push_back(store[static_cast<size_t>(index)]);
    batches.push_back(describe(collate(examples, indices)));
  }
  return {{"rows", rows},
          {"batches", batches},
          {"num_dropped", dataset.num_dropped},
          {"stats", to_json(dataset)},
          {"num_split_prompts", dataset.num_split_prompts},
          {"num_tokens", dataset.num_tokens},
          {"num_targets", dataset.num_targets}};
} catch (const strata::Error& error) {
  if (!request.value("may_fail", false)) throw;
  return {{"error", error.what()}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  Json answers = Json::array();
  try {
    for (const Json& request : strata::read_json_file(argv[1])) {
      const std::string op = request.at("op").get<std::string>();
      answers.push_back(
          op == "order"        ? order(request)
          : op == "load"       ? load(request)
          : op == "left_out"   ? left_out(request)
          : op == "ignored"    ? ignored(request)
          : op == "would_read" ? Json(would_read(request.at("names").get<std::string>(), "train",
                                                 "", request.at("file").get<std::string>()))
          : op == "shuffle"    ? Json(NumpyGenerator(request.at("seed").get<uint64_t>())
                                          .permutation(request.at("num_rows").get<int64_t>()))
                               : prepare_and_collate(request));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::printf("%s\n", answers.dump().c_str());
  return 0;
}
