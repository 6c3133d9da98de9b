#include "strata/data/dataset_stats.h"

#include <algorithm>
#include <utility>

namespace strata::data {
namespace {

using NamedTexts = std::map<std::string, HiddenTexts>;

void note(const std::vector<std::string>& names, const RowPlace& place, NamedTexts& noted) {
  for (const std::string& name : names) {
    const bool is_counted = noted.size() < kCountedNames || noted.contains(name);
    HiddenTexts& texts = noted[is_counted ? name : "texts of further roles"];
    ++texts.count;
    const std::string where = place.text();
    const bool is_named = !texts.first.empty() && texts.first.back() == where;
    if (!is_named && texts.first.size() < kNamedRows) texts.first.push_back(where);
  }
}

Json named_texts_to_json(const NamedTexts& noted) {
  Json json = Json::object();
  for (const auto& [name, texts] : noted) {
    json[name] = {{"count", texts.count}, {"first", texts.first}};
  }
  return json;
}

NamedTexts named_texts_from_json(const Json& json) {
  NamedTexts noted;
  for (const auto& [name, texts] : json.items()) {
    noted[name] = {.count = texts.at("count").get<int64_t>(),
                   .first = texts.at("first").get<std::vector<std::string>>()};
  }
  return noted;
}

}  // namespace

void count_name(const std::string& name, std::map<std::string, int64_t>& counts) {
  ++counts[counts.size() < kCountedNames || counts.contains(name) ? name : kOtherNames];
}

void DatasetStats::rename_files(std::vector<std::string> names) {
  if (names.size() != files.size() || names == files) return;
  const auto rename = [&](std::string& text) {
    for (size_t i = 0; i < files.size(); ++i) {
      if (!text.starts_with(files[i] + ":")) continue;
      text = names[i] + text.substr(files[i].size());
      return;
    }
  };
  rename(bad_rows.first);
  for (LongRow& row : longest_rows) rename(row.where);
  for (SeenLabel& label : labels) rename(label.first);
  for (NamedTexts* noted : {&hidden_texts, &printed_parts, &missing_answers}) {
    for (auto& [name, texts] : *noted) std::ranges::for_each(texts.first, rename);
  }
  files = std::move(names);
}

void DatasetStats::note_length(int64_t tokens, const RowPlace& place) {
  const auto at = std::ranges::find_if(
      longest_rows, [tokens](const LongRow& row) { return row.tokens < tokens; });
  if (at == longest_rows.end() && longest_rows.size() == kNamedRows) return;
  longest_rows.insert(at, {.tokens = tokens, .where = place.text()});
  if (longest_rows.size() > kNamedRows) longest_rows.pop_back();
}

void DatasetStats::note_hidden_texts(const std::vector<std::string>& names, const RowPlace& place) {
  note(names, place, hidden_texts);
}

void DatasetStats::note_printed_parts(const std::vector<std::string>& names,
                                      const RowPlace& place) {
  note(names, place, printed_parts);
}

void DatasetStats::note_missing_answers(const std::vector<std::string>& names,
                                        const RowPlace& place) {
  note(names, place, missing_answers);
}

Json to_json(const DatasetStats& stats) {
  Json longest_rows = Json::array();
  for (const LongRow& row : stats.longest_rows) {
    longest_rows.push_back({{"tokens", row.tokens}, {"where", row.where}});
  }
  Json labels = Json::array();
  for (const SeenLabel& label : stats.labels) {
    labels.push_back({{"name", label.name}, {"count", label.count}, {"first", label.first}});
  }
  return {{"num_sources", stats.num_sources},
          {"num_dropped", stats.num_dropped},
          {"num_long", stats.num_long},
          {"num_bad_rows", stats.bad_rows.count},
          {"first_bad_row", stats.bad_rows.first},
          {"num_tokens", stats.num_tokens},
          {"num_targets", stats.num_targets},
          {"num_split_prompts", stats.num_split_prompts},
          {"num_desirable", stats.num_desirable},
          {"num_undesirable", stats.num_undesirable},
          {"num_cut_sources", stats.num_cut_sources},
          {"num_cut_targets", stats.num_cut_targets},
          {"roles", stats.roles},
          {"num_text_fields", stats.num_text_fields},
          {"unused_columns", stats.unused_columns},
          {"longest_rows", std::move(longest_rows)},
          {"label_kind", static_cast<int>(stats.label_kind)},
          {"labels", std::move(labels)},
          {"class_names", stats.class_names},
          {"hidden_texts", named_texts_to_json(stats.hidden_texts)},
          {"printed_parts", named_texts_to_json(stats.printed_parts)},
          {"missing_answers", named_texts_to_json(stats.missing_answers)},
          {"files", stats.files}};
}

DatasetStats stats_from_json(const Json& json) {
  DatasetStats stats;
  stats.num_sources = json.at("num_sources").get<int64_t>();
  stats.num_dropped = json.at("num_dropped").get<int64_t>();
  stats.num_long = json.at("num_long").get<int64_t>();
  stats.bad_rows = {json.at("num_bad_rows").get<int64_t>(),
                    json.at("first_bad_row").get<std::string>()};
  stats.num_tokens = json.at("num_tokens").get<int64_t>();
  stats.num_targets = json.at("num_targets").get<int64_t>();
  stats.num_split_prompts = json.at("num_split_prompts").get<int64_t>();
  stats.num_desirable = json.at("num_desirable").get<int64_t>();
  stats.num_undesirable = json.at("num_undesirable").get<int64_t>();
  stats.num_cut_sources = json.at("num_cut_sources").get<int64_t>();
  stats.num_cut_targets = json.at("num_cut_targets").get<int64_t>();
  stats.roles = json.at("roles").get<std::map<std::string, int64_t>>();
  stats.num_text_fields = json.at("num_text_fields").get<int64_t>();
  stats.unused_columns = json.at("unused_columns").get<std::map<std::string, int64_t>>();
  stats.files = json.at("files").get<std::vector<std::string>>();
  for (const Json& row : json.at("longest_rows")) {
    stats.longest_rows.push_back(
        {.tokens = row.at("tokens").get<int64_t>(), .where = row.at("where").get<std::string>()});
  }
  stats.label_kind = static_cast<LabelKind>(json.at("label_kind").get<int>());
  for (const Json& label : json.at("labels")) {
    stats.labels.push_back({.name = label.at("name").get<std::string>(),
                            .count = label.at("count").get<int64_t>(),
                            .first = label.at("first").get<std::string>()});
  }
  stats.class_names = json.at("class_names").get<std::vector<std::string>>();
  stats.hidden_texts = named_texts_from_json(json.at("hidden_texts"));
  stats.printed_parts = named_texts_from_json(json.at("printed_parts"));
  stats.missing_answers = named_texts_from_json(json.at("missing_answers"));
  return stats;
}

}  // namespace strata::data
