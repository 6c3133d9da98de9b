#include "strata/data/files/data_sets.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/near_path.h"
#include "strata/data/files/dataset_card.h"
#include "strata/data/files/file_format.h"
#include "strata/data/files/saved_sets.h"
#include "strata/data/files/split_files.h"
#include "strata/data/files/split_spec.h"
#include "strata/data/random.h"
#include "strata/hf/hub/cache.h"
#include "strata/hf/hub/download.h"

namespace strata::data {
namespace {

namespace fs = std::filesystem;

bool is_there(const std::string& name) {
  return fs::exists(name) || name.find_first_of("*?[") != std::string::npos;
}

// A path or a pattern may hold a comma.
bool is_one_name(const std::string& names) {
  return names.find(',') == std::string::npos || fs::exists(names) || has_matches(names);
}

// Whether a name that is nowhere means a file: it ends as files of data do, and its folder is
// there.
bool is_missing_file(const fs::path& name) {
  const fs::path folder = name.parent_path();
  return !file_format(name).extension.empty() && (folder.empty() || fs::is_directory(folder));
}

// A name to a path: what exists, else a data set of the Hub's cache.
fs::path locate(const std::string& name, const DataRequest& request) {
  if (is_there(name) || !hf::is_hub_name(name)) return name;
  const hf::HubRequest wanted{
      .kind = hf::HubKind::kDataset, .name = name, .cache = request.hub_cache};
  if (is_missing_file(name) && !hf::has_snapshot(wanted)) return name;
  try {
    if (hf::is_offline() && !hf::has_snapshot(wanted)) return hf::find_snapshot(wanted);
    return hf::fetch_snapshot(wanted, {.wants =
                                           [](const std::string& file) {
                                             return file == "README.md" ||
                                                    !file_format(file).extension.empty();
                                           },
                                       .progress = request.download_progress});
  } catch (const IoError& error) {
    if (hf::has_snapshot(wanted)) throw;
    const std::string near = did_you_mean(name);
    if (hf::is_offline()) {
      const bool has_advice = std::string_view(error.what()).find("did you mean") != near.npos;
      throw IoError("{}{}", error.what(), has_advice ? "" : near);
    }
    throw IoError(
        "{}: found no such file or folder, and got no data set of that name from the Hub ({}){}",
        name, error.what(), near);
  }
}

std::vector<fs::path> locate_all(const DataRequest& request) {
  if (is_there(request.names) && is_one_name(request.names)) return {request.names};
  std::vector<fs::path> paths;
  for (const std::string& name : split_list(request.names)) paths.push_back(locate(name, request));
  return paths;
}

// One slice of a split of a data set.
struct Piece {
  fs::path path;
  SplitPart part;
  bool is_first = true;  // the first piece of this split: it counts the bad rows
  double bytes = 0;
};

// Reads the pieces of one data set one after the other.
class SetReader {
 public:
  SetReader(const fs::path& path, const DataRequest& request) : request_(request), path_(path) {
    for (SplitPart& part : parse_split(request.split)) {
      Piece piece{.path = path, .part = std::move(part)};
      for (const Piece& other : pieces_) piece.is_first &= other.part.split != piece.part.split;
      std::error_code error;
      for (const fs::path& file :
           find_split_files(path, piece.part.split, request.load.configuration)) {
        const uintmax_t size = fs::file_size(file, error);
        piece.bytes += error ? 0.0 : static_cast<double>(size);
      }
      pieces_.push_back(std::move(piece));
    }
  }

  double bytes() const {
    return std::accumulate(pieces_.begin(), pieces_.end(), 0.0,
                           [](double sum, const Piece& piece) { return sum + piece.bytes; });
  }

  // Hands out at most `limit` rows; parts are those of this set alone.
  ReadResult read(int64_t limit, const TakeRows& take) {
    ReadResult result;
    int64_t given = 0;
    double before = 0;
    bool wants_more = true;
    const double all = std::max(bytes(), 1.0);
    for (const Piece& piece : pieces_) {
      if (given == limit || !wants_more) break;
      const auto [begin, part_end] = range_of(piece.part);
      const int64_t end = std::min(part_end, begin + limit - given);
      int64_t at = begin;
      const auto take_piece = [&](RowBatch batch) {
        const auto wanted = static_cast<size_t>(std::max<int64_t>(end - at, 0));
        if (batch.rows.size() > wanted) batch.rows.resize(wanted);
        at += static_cast<int64_t>(batch.rows.size());
        given += static_cast<int64_t>(batch.rows.size());
        batch.part = (before + batch.part * piece.bytes) / all;
        if (!batch.rows.empty()) wants_more = take(std::move(batch));
        return wants_more && at < end;
      };
      const ReadResult read = read_split(path_, piece.part.split, request_.load, take_piece, begin);
      before += piece.bytes;
      if (!piece.is_first) continue;
      result.bad_rows.add(read.bad_rows);
      for (const auto& [column, rows] : read.left_out) result.left_out[column] += rows;
      result.files.insert(result.files.end(), read.files.begin(), read.files.end());
    }
    if (given == 0) refuse_empty();
    if (limit != kNoLimit && given < limit && wants_more) {
      throw IoError(
          "{}: found {} rows where {} were counted before, expected files that nobody writes to; "
          "start again when they are complete",
          path_.string(), given, limit);
    }
    return result;
  }

  // How many rows read() hands out without a limit.
  int64_t count() {
    int64_t rows = 0;
    for (const Piece& piece : pieces_) {
      const auto [begin, end] = range_of(piece.part);
      rows += std::max<int64_t>(0, num_rows(piece.part.split, end) - begin);
    }
    if (rows == 0) refuse_empty();
    return rows;
  }

  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 2;

 private:
  [[noreturn]] void refuse_empty() const {
    throw ConfigError("splits: found no row in {} of {}, expected a slice with rows",
                      request_.split, path_.string());
  }

  // The number of rows of a split, or `limit` if it has more.
  int64_t num_rows(const std::string& split, int64_t limit) const {
    const auto known = sizes_.find(split);
    if (known != sizes_.end()) return std::min(known->second, limit);
    return count_rows(path_, split, request_.load, limit);
  }

  // Of a part whose bounds are known without the number of rows, the end may lie beyond the last.
  std::pair<int64_t, int64_t> range_of(const SplitPart& part) {
    const bool needs_size = part.is_percent || part.from.value_or(0) < 0 || part.to.value_or(0) < 0;
    if (!needs_size) return part.range(kNoLimit);
    auto known = sizes_.find(part.split);
    if (known == sizes_.end()) {
      const int64_t rows = count_rows(path_, part.split, request_.load, kNoLimit);
      known = sizes_.emplace(part.split, rows).first;
    }
    return part.range(known->second);
  }

  const DataRequest& request_;
  fs::path path_;
  std::vector<Piece> pieces_;
  std::map<std::string, int64_t> sizes_;  // rows of the splits that had to be counted
};

// The places in reading order of the rows of a mixture, and how many rows of each set it takes.
struct Mixture {
  std::vector<int64_t> order, taken;
};

Mixture mix(std::vector<SetReader>& sets, const DataRequest& request) {
  std::vector<int64_t> sizes;
  for (SetReader& set : sets) sizes.push_back(set.count());
  const std::vector<size_t> drawn = interleave(sizes, request.weights, request.seed);
  Mixture mixture;
  mixture.taken.assign(sets.size(), 0);
  for (const size_t set : drawn) ++mixture.taken[set];
  std::vector<int64_t> next(sets.size(), 0);
  std::exclusive_scan(mixture.taken.begin(), mixture.taken.end(), next.begin(), int64_t{0});
  mixture.order.reserve(drawn.size());
  for (const size_t set : drawn) mixture.order.push_back(next[set]++);
  return mixture;
}

// Of a folder of thousands of other files the first ones are enough.
std::string left_out_line(const std::string& subject, const std::vector<fs::path>& files,
                          const fs::path& folder) {
  constexpr size_t kNamed = 5;
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(files.size(), kNamed); ++i) {
    names.push_back(files[i].lexically_relative(folder).string());
  }
  const size_t others = files.size() - names.size();
  return fmt::format(
      "{}: left out {}{}: a data set has one kind of files, the most frequent; name others with "
      "--dataset_name",
      subject, fmt::join(names, ", "), others == 0 ? "" : fmt::format(" and {} more", others));
}

// Other keys of a card's chosen configuration.
std::vector<DatasetConfiguration::OtherKey> other_keys(const fs::path& path,
                                                       const std::string& configuration) {
  if (!fs::is_directory(path)) return {};
  // Their cards are not read.
  if (is_saved_dataset(path) || !saved_splits(path).empty()) return {};
  const std::vector<DatasetConfiguration> all = read_configurations(path);
  if (all.empty()) return {};
  return choose_configuration(all, configuration, path.string()).other_keys;
}

}  // namespace

ReadDataResult read_data(const DataRequest& request, const TakeRows& take) {
  std::vector<SetReader> sets;
  for (const fs::path& path : locate_all(request)) sets.emplace_back(path, request);
  if (sets.empty()) throw ConfigError("dataset_name: found nothing, expected at least one name");
  Mixture mixture;
  if (!request.weights.empty()) mixture = mix(sets, request);
  double all = 0, before = 0;
  for (const SetReader& set : sets) all += set.bytes();
  ReadDataResult result;
  bool wants_more = true;
  for (size_t i = 0; i < sets.size() && wants_more; ++i) {
    const int64_t limit = mixture.taken.empty() ? SetReader::kNoLimit : mixture.taken[i];
    const double bytes = sets[i].bytes();
    if (limit == 0) continue;
    const ReadResult read = sets[i].read(limit, [&](RowBatch batch) {
      batch.part = (before + batch.part * bytes) / std::max(all, 1.0);
      return wants_more = take(std::move(batch));
    });
    before += bytes;
    result.bad_rows.add(read.bad_rows);
    for (const auto& [column, rows] : read.left_out) result.left_out[column] += rows;
    result.files.insert(result.files.end(), read.files.begin(), read.files.end());
  }
  result.order = std::move(mixture.order);
  return result;
}

Split load_data(const DataRequest& request) {
  std::vector<Row> rows;
  ReadDataResult read = read_data(request, [&](RowBatch batch) {
    std::ranges::move(batch.rows, std::back_inserter(rows));
    return true;
  });
  Split result{.rows = {}, .files = std::move(read.files), .bad_rows = std::move(read.bad_rows)};
  if (read.order.empty()) {
    result.rows = std::move(rows);
  } else {
    for (const int64_t i : read.order) result.rows.push_back(std::move(rows[i]));
  }
  return result;
}

std::vector<std::vector<fs::path>> find_data_files(const DataRequest& request) {
  std::vector<std::vector<fs::path>> files;
  for (const fs::path& path : locate_all(request)) {
    for (const SplitPart& part : parse_split(request.split)) {
      files.push_back(find_split_files(path, part.split, request.load.configuration));
    }
  }
  return files;
}

std::vector<std::string> describe_ignored(const DataRequest& request) {
  std::vector<std::string> lines;
  std::set<std::pair<std::string, std::string>> told;  // a split may have several parts
  for (const fs::path& path : locate_all(request)) {
    const std::string& configuration = request.load.configuration;
    std::vector<std::string> keys;
    for (const auto& [key, where] : other_keys(path, configuration)) {
      keys.push_back(fmt::format("\"{}\" ({})", key, where));
    }
    if (!keys.empty()) {
      lines.push_back(fmt::format("found {} in a configuration, which is not supported",
                                  fmt::join(keys, ", ")));
    }
    for (const SplitPart& part : parse_split(request.split)) {
      if (!told.insert({path.string(), part.split}).second) continue;
      const std::vector<fs::path> files = find_left_out_files(path, part.split, configuration);
      const std::string subject = fmt::format("{} split of {}", part.split, request.names);
      if (!files.empty()) lines.push_back(left_out_line(subject, files, path));
    }
  }
  return lines;
}

std::vector<ClassNames> find_card_classes(const DataRequest& request) {
  std::vector<ClassNames> cards;
  for (const fs::path& path : locate_all(request)) {
    cards.push_back(card_classes(path, request.load));
  }
  return cards;
}

bool has_splits(const DataRequest& request, const std::string& specification) {
  const std::vector<SplitPart> parts = parse_split(specification);
  return std::ranges::all_of(locate_all(request), [&](const fs::path& path) {
    return std::ranges::all_of(parts, [&](const SplitPart& part) {
      return has_split(path, part.split, request.load.configuration);
    });
  });
}

std::vector<std::string> list_splits(const DataRequest& request) {
  return list_splits(locate_all(request).front(), request.load.configuration);
}

std::vector<size_t> interleave(const std::vector<int64_t>& sizes,
                               const std::vector<double>& weights, uint64_t seed) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const bool positive = std::ranges::all_of(weights, [](double w) { return w > 0; });
  if (weights.size() != sizes.size() || !positive) {
    throw ConfigError("dataset_weights: found {}, expected {} positive numbers",
                      fmt::join(weights, " "), sizes.size());
  }
  // As numpy's choice: the place of a uniform number in the cumulated probabilities.
  std::vector<double> cumulated;
  double total = 0;
  for (const double weight : weights) cumulated.push_back(total += weight / sum);
  for (double& value : cumulated) value /= total;
  NumpyGenerator generator(seed);
  std::vector<int64_t> drawn(sizes.size(), 0);
  std::vector<size_t> order;
  while (true) {
    const double uniform = generator.uniform();
    const auto place = std::upper_bound(cumulated.begin(), cumulated.end(), uniform);
    const size_t set =
        std::min<size_t>(static_cast<size_t>(place - cumulated.begin()), sizes.size() - 1);
    order.push_back(set);
    if (++drawn[set] >= sizes[set]) return order;
  }
}

}  // namespace strata::data
