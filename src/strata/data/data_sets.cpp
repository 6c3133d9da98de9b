#include "strata/data/data_sets.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "strata/base/error.h"
#include "strata/data/random.h"
#include "strata/data/split_files.h"
#include "strata/data/split_spec.h"
#include "strata/hf/hub_cache.h"
#include "strata/hf/hub_download.h"

namespace strata::data {
namespace {

namespace fs = std::filesystem;

bool is_there(const std::string& name) {
  return fs::exists(name) || name.find_first_of("*?[") != std::string::npos;
}

// A name to a path: what exists, else a data set of the Hub's cache.
fs::path locate(const std::string& name, const DataRequest& request) {
  if (is_there(name) || !hf::is_hub_name(name)) return name;
  const hf::HubRequest wanted{
      .kind = hf::HubKind::kDataset, .name = name, .cache = request.hub_cache};
  if (hf::is_offline() || hf::has_snapshot(wanted)) return hf::find_snapshot(wanted);
  try {
    return hf::download_snapshot(wanted, {.wants = [](const std::string& file) {
                                   return !file_format(file).extension.empty();
                                 }});
  } catch (const IoError& error) {
    throw IoError("{}: found no such file or folder, and no data set of that name on the Hub ({})",
                  name, error.what());
  }
}

std::vector<fs::path> locate_all(const DataRequest& request) {
  if (is_there(request.names)) return {request.names};  // a path may hold a comma
  std::vector<fs::path> paths;
  for (const std::string& name : split_list(request.names)) paths.push_back(locate(name, request));
  return paths;
}

// The part's rows of one data set, moved to the end of `into`. A split is read once even where two
// parts use it.
void append_part(const SplitPart& part, const fs::path& path, const LoadOptions& options,
                 std::map<std::string, Split>& read, Split& into) {
  const auto known = read.find(part.split);
  const bool is_first = known == read.end();
  Split& split = is_first
                     ? read.emplace(part.split, load_split(path, part.split, options)).first->second
                     : known->second;
  if (is_first) {
    into.bad_rows.add(split.bad_rows);
    into.files.insert(into.files.end(), split.files.begin(), split.files.end());
  }
  const auto [begin, end] = part.range(static_cast<int64_t>(split.rows.size()));
  into.rows.insert(into.rows.end(), split.rows.begin() + begin, split.rows.begin() + end);
}

Split load_one(const fs::path& path, const DataRequest& request) {
  const std::vector<SplitPart> parts = parse_split(request.split);
  if (parts.size() == 1 && parts[0].is_whole()) {
    return load_split(path, parts[0].split, request.load);
  }
  std::map<std::string, Split> read;
  Split result;
  for (const SplitPart& part : parts) append_part(part, path, request.load, read, result);
  if (result.rows.empty()) {
    throw ConfigError("splits: found no row in {} of {}, expected a slice with rows", request.split,
                      path.string());
  }
  return result;
}

std::vector<Row> mix(std::vector<Split>& sets, const DataRequest& request) {
  std::vector<int64_t> sizes;
  for (const Split& set : sets) sizes.push_back(static_cast<int64_t>(set.rows.size()));
  std::vector<size_t> next(sets.size(), 0);
  std::vector<Row> rows;
  for (const size_t i : interleave(sizes, request.weights, request.seed)) {
    rows.push_back(std::move(sets[i].rows[next[i]++]));
  }
  return rows;
}

}  // namespace

Split load_data(const DataRequest& request) {
  std::vector<Split> sets;
  for (const fs::path& path : locate_all(request)) sets.push_back(load_one(path, request));
  if (sets.empty()) throw ConfigError("dataset_name: found nothing, expected at least one name");
  Split result;
  for (Split& set : sets) {
    result.bad_rows.add(set.bad_rows);
    result.files.insert(result.files.end(), set.files.begin(), set.files.end());
  }
  if (!request.weights.empty()) {
    result.rows = mix(sets, request);
    return result;
  }
  for (Split& set : sets) {
    std::move(set.rows.begin(), set.rows.end(), std::back_inserter(result.rows));
  }
  return result;
}

std::vector<fs::path> find_data_files(const DataRequest& request) {
  std::vector<fs::path> files;
  for (const fs::path& path : locate_all(request)) {
    for (const SplitPart& part : parse_split(request.split)) {
      std::vector<fs::path> found = find_split_files(path, part.split);
      files.insert(files.end(), found.begin(), found.end());
    }
  }
  return files;
}

bool has_splits(const DataRequest& request, const std::string& specification) {
  const std::vector<SplitPart> parts = parse_split(specification);
  return std::ranges::all_of(locate_all(request), [&](const fs::path& path) {
    const std::vector<std::string> have = list_splits(path);
    return std::ranges::all_of(parts, [&](const SplitPart& part) {
      return std::ranges::find(have, part.split) != have.end();
    });
  });
}

std::vector<std::string> list_splits(const DataRequest& request) {
  return list_splits(locate_all(request).front());
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
