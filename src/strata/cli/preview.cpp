// `strata preview`: what the model will see of the data, before any training.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/labels.h"
#include "strata/base/visible_text.h"
#include "strata/cli/command.h"
#include "strata/cli/preview_page.h"
#include "strata/cli/run_sources.h"
#include "strata/cli/standard_streams.h"
#include "strata/cli/waiting_line.h"
#include "strata/comm/mesh.h"
#include "strata/config/describe.h"
#include "strata/config/recipes.h"
#include "strata/data/inspect.h"
#include "strata/data/sampler.h"
#include "strata/report/progress.h"
#include "strata/train/data_warnings.h"
#include "strata/train/datasets.h"
#include "strata/train/loop/step_plan.h"

namespace strata::cli {
namespace {

int data_parallel_size(const config::RunConfig& config) {
  const int ranks = std::max(1, config.launch.num_processes);
  const int sharers = static_cast<int>(config.shard.sequence_parallel_size);
  comm::check_mesh_shape(ranks, {.sequence_size = sharers});
  return ranks / sharers;
}

constexpr const char* kUsage =
    "usage: strata preview [RECIPE] [flags of preview] [flags of the recipe]\n\n"
    "Prepares the data as a run with the same flags would, shows examples token by token (trained "
    "or\nnot), and says what is probably wrong. Trains nothing and needs no weights.\n";

// The arguments that belong to preview's own table; the others stay in `arguments`.
std::vector<std::string> take_own_flags(std::vector<std::string>& arguments) {
  std::vector<std::string> own, others;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string name = arguments[i].substr(0, arguments[i].find('='));
    const bool is_own =
        name.starts_with("--") && config::find_setting(config::preview_settings_table(),
                                                       config::normalized_name(name.substr(2)));
    std::vector<std::string>& into = is_own ? own : others;
    into.push_back(arguments[i]);
    if (is_own && name == arguments[i] && i + 1 < arguments.size()) own.push_back(arguments[++i]);
  }
  arguments = std::move(others);
  return own;
}

std::string percent(double part) { return fmt::format("{:.1f} %", 100 * part); }

PreviewDocument show_document(std::span<const int32_t> ids, std::span<const int32_t> labels,
                              const text::Tokenizer& tokenizer) {
  PreviewDocument document;
  text::StreamDecoder decoder(tokenizer, /*skip_special_tokens=*/false);
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool known = ids[i] < tokenizer.vocab_size();
    document.tokens.push_back({.text = decoder.push(ids[i]),
                               .id = ids[i],
                               .is_trained = labels[i] != kNotTrained,
                               .is_special = known && tokenizer.is_special(ids[i])});
  }
  if (!document.tokens.empty()) document.tokens.back().text += decoder.finish();
  return document;
}

// "label: positive", "labels: a, b", "number: 0.5".
std::string labels_of(const data::ExampleView& row, const data::DatasetStats& stats) {
  if (stats.label_kind == data::LabelKind::kNumber) {
    return fmt::format("number: {}", row.row_targets[0]);
  }
  std::vector<std::string> names;
  for (const float number : row.row_targets) {
    names.push_back(stats.labels[static_cast<size_t>(number)].name);
  }
  return fmt::format("{}: {}", stats.label_kind == data::LabelKind::kLabels ? "labels" : "label",
                     fmt::join(names, ", "));
}

PreviewRow show_row(const data::ExampleView& row, int64_t index, const text::Tokenizer& tokenizer,
                    data::RowsOf kind, const data::DatasetStats& stats) {
  PreviewRow shown{.index = index, .documents = {}};
  size_t begin = 0;
  for (const int32_t length : row.lengths) {
    const auto size = static_cast<size_t>(length);
    shown.documents.push_back(
        show_document(row.ids.subspan(begin, size), row.labels.subspan(begin, size), tokenizer));
    begin += size;
    const size_t number = shown.documents.size();
    std::string& name = shown.documents.back().name;
    if (kind == data::RowsOf::kPreferences) name = number == 1 ? "chosen" : "rejected";
    if (kind == data::RowsOf::kPairs) name = number == 1 ? "source" : "target";
    if (kind == data::RowsOf::kRated) {
      const bool is_desirable = row.rating == data::Rating::kDesirable;
      name = number > 1     ? "another row's answer, looked at for kl and not trained"
             : is_desirable ? "desirable"
                            : "undesirable";
    }
    if (kind == data::RowsOf::kLabelled) name = labels_of(row, stats);
    if (name.empty() && row.lengths.size() > 1) {
      name = fmt::format("document {} of {}", number, row.lengths.size());
    }
  }
  return shown;
}

class PreviewMaker {
 public:
  PreviewMaker(const config::RunConfig& config, const train::Datasets& sets)
      : config_(config),
        sets_(sets),
        is_train_(config.preview.split == config::Split::kTrain),
        store_(is_train_ ? sets.train : *sets.eval) {}

  Preview make() {
    const data::RowsOf kind = kind_of_rows();
    const data::Inspection inspection = data::inspect(store_, *sets_.tokenizer, kind);
    Preview preview;
    preview.title = fmt::format("{} split of {}", config_.preview.split, shown_data());
    preview.bar_tokens = inspection.bar_tokens;
    preview.bars = inspection.bars;
    add_facts(inspection, preview);
    preview.warnings = sets_.notes;
    preview.warnings.insert(preview.warnings.end(), sets_.warnings.begin(), sets_.warnings.end());
    for (std::string& line : train::describe_losses(store_.stats(), config_, sets_.max_length)) {
      preview.warnings.push_back(std::move(line));
    }
    for (std::string& line :
         data::find_mistakes(inspection, store_.stats().roles,
                             store_.stats().roles.empty() ? "" : sets_.chat_template_source)) {
      preview.warnings.push_back(std::move(line));
    }
    const auto count = std::min<int64_t>(config_.preview.num_examples, inspection.rows);
    for (int64_t i = 0; i < count; ++i) {
      preview.rows.push_back(
          show_row(store_[static_cast<size_t>(i)], i, *sets_.tokenizer, kind, store_.stats()));
    }
    return preview;
  }

 private:
  data::RowsOf kind_of_rows() const {
    const config::RecipeRow& recipe = config::recipe_of(config_);
    if (recipe.has_encoder) return data::RowsOf::kPairs;
    if (recipe.reads_pairs) return data::RowsOf::kPreferences;
    if (recipe.reads_labels) return data::RowsOf::kLabelled;
    return recipe.reads_ratings ? data::RowsOf::kRated : data::RowsOf::kDocuments;
  }

  const std::string& shown_data() const {
    const bool is_other = !is_train_ && !config_.data.validation_file.empty();
    return is_other ? config_.data.validation_file : train::data_name(config_.data);
  }

  void add_facts(const data::Inspection& seen, Preview& preview) const {
    const auto add = [&](const std::string& name, const std::string& value) {
      preview.facts.emplace_back(name, value);
    };
    const data::DatasetStats& stats = store_.stats();
    add("rows read", fmt::format("{}", stats.num_sources));
    add("rows to train on",
        fmt::format("{} with {}", seen.rows, counted(seen.documents, "document")));
    // A pair is two rated answers, which are left out or cut each by itself.
    const bool are_rated = config::recipe_of(config_).reads_ratings;
    const auto number = [&](int64_t count) {
      return are_rated ? counted(count, "answer") : std::to_string(count);
    };
    add("left out", fmt::format("{} without a trained token, {} bad", number(stats.num_dropped),
                                stats.bad_rows.count));
    const int64_t length = sets_.max_length;
    if (config::recipe_of(config_).has_encoder) {
      add("cut",
          fmt::format("{} to {} tokens, {} to {}", counted(stats.num_cut_sources, "source"),
                      config_.data.max_source_length, counted(stats.num_cut_targets, "target"),
                      config_.data.max_target_length));
    } else if (length > 0) {
      add(fmt::format("longer than {}", length),
          fmt::format("{} (long_rows: {})", number(stats.num_long), config_.data.long_rows));
    }
    add("tokens per epoch",
        fmt::format("{}, of which {} ({}) are trained", seen.tokens, seen.trained_tokens,
                    percent(static_cast<double>(seen.trained_tokens) /
                            static_cast<double>(std::max<int64_t>(seen.tokens, 1)))));
    add("tokens of a row", fmt::format("{} to {}, {:.0f} on average", seen.shortest, seen.longest,
                                       static_cast<double>(seen.tokens) /
                                           static_cast<double>(std::max<int64_t>(seen.rows, 1))));
    if (config_.data.packing) {
      add("packed rows are full to",
          percent(static_cast<double>(seen.tokens) /
                  static_cast<double>(std::max<int64_t>(seen.rows, 1) * length)));
    }
    if (is_train_) add_steps(preview);
  }

  void add_steps(Preview& preview) const {
    const config::TrainConfig& train = config_.train;
    const int ranks = std::max(1, config_.launch.num_processes);
    const int world = data_parallel_size(config_);
    const data::BatchSampler sampler = train::training_sampler(config_, store_, world);
    std::vector<std::vector<int64_t>> batches;
    for (int rank = 0; rank < world; ++rank) {
      for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
        batches.push_back(sampler.batch(/*epoch=*/0, rank, i));
      }
    }
    const train::StepPlan plan = train::plan_steps(train, sampler.batches_per_rank());
    preview.facts.emplace_back(
        "steps",
        fmt::format(
            "{} on {}, {} each{}", plan.max_steps, counted(ranks, "rank"),
            counted(train.per_device_train_batch_size * train.gradient_accumulation_steps * world,
                    "row"),
            train.auto_find_batch_size ? "; more of fewer rows where these do not fit "
                                         "(auto_find_batch_size)"
                                       : ""));
    preview.facts.emplace_back(
        "padding", fmt::format("none here; {} of a padded batch's tokens",
                               percent(data::padding_part(store_, batches, kind_of_rows()))));
  }

  const config::RunConfig& config_;
  const train::Datasets& sets_;
  const bool is_train_;
  const data::TokenStore& store_;
};

// How tokens look on a terminal; without colours, trained text stands between markers.
class TokenPrinter {
 public:
  explicit TokenPrinter(bool colours) : colours_(colours) {}

  void print(const PreviewDocument& document) const {
    bool in_trained = false;
    for (const PreviewToken& token : document.tokens) {
      if (colours_) {
        const char* style = token.is_trained ? "\x1b[30;42m" : "\x1b[2m";
        fmt::print("{}{}{}\x1b[0m", style, token.is_special ? "\x1b[1;4m" : "", shown(token.text));
        if (token.text.ends_with('\n')) fmt::print("\n");
        continue;
      }
      if (token.is_trained != in_trained) fmt::print("{}", token.is_trained ? "[[" : "]]");
      in_trained = token.is_trained;
      fmt::print("{}", visible(token.text));
    }
    fmt::print("{}\n", in_trained ? "]]" : "");
  }

 private:
  // A coloured line end would colour the rest of the line; its sign stands for it.
  static std::string shown(const std::string& text) {
    std::string out;
    for (const char c : visible(text)) {
      if (c == '\n') {
        out += "\u21b5";
      } else {
        out += c;
      }
    }
    return out;
  }

  bool colours_;
};

void print_histogram(const Preview& preview) {
  const int64_t highest =
      preview.bars.empty() ? 1 : std::max<int64_t>(1, *std::ranges::max_element(preview.bars));
  fmt::print("\ntokens of a row\n");
  for (const LengthBar& bar : length_bars(preview)) {
    const auto width = static_cast<size_t>((bar.rows * 40 + highest - 1) / highest);
    fmt::print("  {:>13} {} {}\n", bar.lengths, std::string(width, '#'), bar.rows);
  }
}

void print_preview(const Preview& preview, bool colours) {
  fmt::print("{}\n", visible(preview.title));
  for (const auto& [name, value] : preview.facts) {
    fmt::print("  {:<24} {}\n", name, visible(value));
  }
  print_histogram(preview);
  fmt::print("\n{}\n", colours ? "examples (green: trained, dim: not trained, underlined: special)"
                               : "examples (trained text stands between [[ and ]])");
  const TokenPrinter printer(colours);
  for (const PreviewRow& row : preview.rows) {
    fmt::print("---- row {} ----\n", row.index);
    for (size_t i = 0; i < row.documents.size(); ++i) {
      if (!row.documents[i].name.empty()) {
        fmt::print("-- {}, {}\n", row.documents[i].name,
                   counted(row.documents[i].tokens.size(), "token"));
      }
      printer.print(row.documents[i]);
    }
  }
  for (const std::string& warning : preview.warnings) {
    fmt::print("warning: {}\n", visible(warning));
  }
}

bool wants_colours() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0') &&
         term != nullptr && std::string_view(term) != "dumb";
}

}  // namespace

int run_preview(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}{}\n{}", kUsage,
               config::flags_help(config::preview_settings_table(), help_columns()),
               config::flags_help(config::Scope::kRun, help_columns()));
    return 0;
  }
  std::vector<std::string> run_flags = arguments;
  std::string recipe;
  if (!run_flags.empty() && is_recipe(run_flags[0])) {
    recipe = recipe_of(run_flags[0]);
    run_flags.erase(run_flags.begin());
  }
  const std::vector<std::string> own = take_own_flags(run_flags);
  config::Sources sources{
      .recipe = recipe, .flags = run_flags, .environment = process_environment()};
  sources.flags_are_mixed = true;  // num_processes tells the number of steps
  config::Settings settings = config::resolve(sources);
  for (const config::Given& given :
       read_command_flags(config::preview_settings_table(), "preview", own)) {
    config::assign(given, settings.config);
  }
  config::require_runnable(settings);
  config::RunConfig& config = settings.config;
  if (config.preview.split == config::Split::kTest) {
    config.train.eval_strategy = config::Interval::kSteps;  // so that it is read
    std::erase_if(settings.warnings, [](const std::string& line) {
      return line.ends_with("has no effect; eval_strategy is no");
    });
  }
  print_warnings(settings.warnings);
  const hf::DownloadProgress show_download = shown_downloads();
  train::fetch_tokenizer(config.model, show_download);
  const train::Datasets sets = with_sources(settings, [&] {
    return train::load_datasets(config, train::read_model_limits(config.model),
                                {.progress = shown_preparation(),
                                 .download_progress = show_download,
                                 .say = [](const std::string& line) { tell("{}\n", line); },
                                 .data_parallel_size = data_parallel_size(config)});
  });
  const Preview preview = PreviewMaker(config, sets).make();
  print_preview(preview, wants_colours());
  if (!config.preview.output_html.empty()) {
    write_file_atomically(config.preview.output_html, preview_page(preview));
    tell("page: {}\n", config.preview.output_html);
  }
  return 0;
}

}  // namespace strata::cli
