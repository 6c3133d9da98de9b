#include "strata/checkpoint/folders.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <tuple>
#include <utility>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"

namespace strata::checkpoint {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& output_dir, int64_t step) {
  return output_dir / fmt::format("checkpoint-{}", step);
}

int64_t step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  constexpr std::string_view kPrefix = "checkpoint-";
  if (!name.starts_with(kPrefix)) return -1;
  int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc() && stop == end ? step : -1;
}

namespace {

// By their names alone, in no order; none where there is no such folder.
std::vector<fs::path> named_checkpoints(const fs::path& output_dir) {
  std::vector<fs::path> found;
  std::error_code error;
  if (!fs::is_directory(output_dir, error)) return found;
  fs::directory_iterator entries(output_dir, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (step_of(entries->path()) >= 0) found.push_back(entries->path());
  }
  if (!error) return found;
  throw IoError("{}: found {} when listing it, expected a readable folder; check its permissions",
                output_dir.string(), errno_text(error.value()));
}

// What others left in the folder, and what a file server has lost sight of, stops no run.
bool holds(const fs::path& folder, const char* name) {
  std::error_code unseen;
  return fs::exists(folder / name, unseen);
}

// The reason for a folder that list() leaves out.
std::string why_passed_over(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return "it is no folder";
  const bool is_empty = fs::is_empty(path, error);
  if (!error) std::ignore = fs::exists(path / "manifest.json", error);
  if (error) return "it cannot be looked into: " + errno_text(error.value());
  if (is_empty) return "it is empty";
  if (!holds(path, "trainer_state.json")) {
    return "it has no manifest.json, without which a checkpoint is not whole";
  }
  return fmt::format(
      "it has no manifest.json: another program saved it, or the file was removed; strata "
      "convert {} OUT --to strata makes one of it, to resume with --output_dir OUT",
      path.string());
}

}  // namespace

std::vector<fs::path> list(const fs::path& output_dir) {
  std::vector<fs::path> found = named_checkpoints(output_dir);
  std::erase_if(found, [](const fs::path& path) { return !holds(path, "manifest.json"); });
  std::sort(found.begin(), found.end(),
            [](const fs::path& a, const fs::path& b) { return step_of(a) < step_of(b); });
  return found;
}

std::vector<PassedOver> passed_over(const fs::path& output_dir) {
  std::vector<PassedOver> found;
  for (fs::path& path : named_checkpoints(output_dir)) {
    if (holds(path, "manifest.json")) continue;
    std::string reason = why_passed_over(path);
    found.push_back({std::move(path), std::move(reason)});
  }
  std::ranges::sort(found, {}, [](const PassedOver& one) { return step_of(one.folder); });
  return found;
}

namespace {

// When the file got to where it is; unlike the time of its content, a copy does not keep it.
std::pair<int64_t, int64_t> time_of_arrival(const fs::path& file) {
  struct stat found {};
  if (::stat(file.c_str(), &found) != 0) return {0, 0};
  return {found.st_ctim.tv_sec, found.st_ctim.tv_nsec};
}

// When its content was written, in seconds after 1970; 0 where there is no such file.
double time_of_content(const fs::path& file) {
  struct stat found {};
  if (::stat(file.c_str(), &found) != 0) return 0;
  return static_cast<double>(found.st_mtim.tv_sec) +
         static_cast<double>(found.st_mtim.tv_nsec) * 1e-9;
}

std::string name_in(const fs::path& latest) {
  std::string name = read_file(latest);
  while (!name.empty() && std::isspace(static_cast<unsigned char>(name.back()))) name.pop_back();
  return name;
}

}  // namespace

std::string saved_since(const fs::path& output_dir, double time) {
  if (time_of_content(output_dir / "latest") > time) return "true";
  const std::vector<fs::path> found = list(output_dir);
  const auto own = std::find_if(found.rbegin(), found.rend(), [&](const fs::path& path) {
    return time_of_content(path / "manifest.json") > time;
  });
  if (own == found.rend()) return "";
  return own == found.rbegin() ? "true" : own->string();
}

std::vector<fs::path> set_aside(const fs::path& output_dir) {
  const fs::path latest = output_dir / "latest";
  if (!fs::is_regular_file(latest)) return {};
  const int64_t step = step_of(name_in(latest));
  if (step < 0) return {};
  const auto written = time_of_arrival(latest);
  std::vector<fs::path> found = list(output_dir);
  std::erase_if(found, [&](const fs::path& folder) {
    return step_of(folder) <= step || time_of_arrival(folder / "manifest.json") >= written;
  });
  return found;
}

namespace {

std::vector<fs::path> without(std::vector<fs::path> paths, const std::vector<fs::path>& left_out) {
  std::erase_if(paths,
                [&](const fs::path& path) { return std::ranges::count(left_out, path) > 0; });
  return paths;
}

// "checkpoint-12/", as shells complete it, has a name, too.
fs::path without_slash(const std::string& text) {
  const fs::path path = fs::path(text).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

bool means_newest(const std::string& resume_from) {
  return resume_from == "true" || resume_from == "True";
}

// What is not there, but is when it is said otherwise: "checkpoint-9" in the run's folder, and a
// word of other programs for the newest.
static void require_meant_folder(const std::string& resume_from, const fs::path& output_dir) {
  if (fs::exists(resume_from)) return;
  if (const fs::path inside = output_dir / resume_from; fs::is_directory(inside)) {
    throw ConfigError(
        "resume_from_checkpoint: found no folder {}, expected one from the current folder on; name "
        "{}",
        resume_from, inside.string());
  }
  for (const char* word : {"latest", "last", "newest", "auto"}) {
    if (resume_from != word) continue;
    throw ConfigError(
        "resume_from_checkpoint: found \"{}\", expected true or a folder; true takes the newest "
        "checkpoint",
        word);
  }
  const fs::path named = fs::path(resume_from).parent_path();
  const std::vector<fs::path> there = list(named.empty() ? output_dir : named);
  if (there.empty()) return;
  std::vector<std::string> names;
  for (const fs::path& folder : there) names.push_back(folder.filename().string());
  throw ConfigError("resume_from_checkpoint: found no folder {}, expected one of {} in {}; name it",
                    resume_from, fmt::join(names, ", "), there.front().parent_path().string());
}

std::string saved_by_launch(const fs::path& output_dir, double launch_time) {
  const auto is_own = [&](const fs::path& folder) {
    try {
      return read_json_file(folder / "progress.json").value(kLaunchKey, 0.0) == launch_time;
    } catch (const std::exception&) {  // damaged: one before it may do
      return false;
    }
  };
  const std::vector<fs::path> found = list(output_dir);
  if (found.empty()) return "";
  if (is_own(candidates("true", output_dir).front())) return "true";
  const auto own = std::find_if(found.rbegin(), found.rend(), is_own);
  return own == found.rend() ? "" : own->string();
}

std::vector<fs::path> candidates(const std::string& resume_from, const fs::path& output_dir) {
  if (!means_newest(resume_from)) {
    const std::vector<fs::path> inside = list(resume_from);
    if (!inside.empty() && !fs::exists(fs::path(resume_from) / "manifest.json")) {
      throw ConfigError(
          "resume_from_checkpoint: found {}, the folder of a run, expected one checkpoint; name "
          "{}, or pass true with this folder as output_dir",
          resume_from, inside.back().string());
    }
    require_meant_folder(resume_from, output_dir);
    return {without_slash(resume_from)};
  }
  std::vector<fs::path> found = list(output_dir);
  if (found.empty()) {
    std::string others;
    for (const PassedOver& one : passed_over(output_dir)) {
      others += fmt::format("; {} cannot be resumed from: {}", one.folder.filename().string(),
                            one.reason);
    }
    throw ConfigError(
        "resume_from_checkpoint: no valid checkpoint found in output directory ({}), expected a "
        "checkpoint-N folder; drop the flag to start from the beginning{}",
        output_dir.string(), others);
  }
  const std::vector<fs::path> aside = set_aside(output_dir);
  if (aside.size() < found.size()) found = without(std::move(found), aside);
  std::reverse(found.begin(), found.end());
  return found;
}

namespace {

// Renamed first: a folder that is half removed must not look like a checkpoint.
void remove_checkpoint(const fs::path& folder, FileSystem& files) {
  const fs::path doomed = folder.string() + ".tmp-removed";
  int error = files.remove(doomed);  // what a killed removal left
  if (error == 0) error = files.rename(folder, doomed);
  if (error == 0) {
    // Before its files go: a crash must not bring a half back.
    fsync_path(folder.parent_path(), files);
    error = files.remove(doomed);
  }
  if (error == 0) return;
  throw IoError("{}: found {} when removing it, expected it to go (save_total_limit)",
                folder.string(), errno_text(error));
}

}  // namespace

std::vector<fs::path> surplus(const fs::path& output_dir, int64_t limit,
                              const std::vector<fs::path>& keep) {
  const std::vector<fs::path> found = without(list(output_dir), set_aside(output_dir));
  int64_t too_many = static_cast<int64_t>(found.size()) - std::max<int64_t>(limit, 1);
  std::vector<fs::path> goes;
  for (size_t i = 0; i + 1 < found.size() && too_many > 0; ++i) {
    // A path may end in a slash, or be a link's.
    const bool is_kept = std::any_of(keep.begin(), keep.end(), [&](const fs::path& path) {
      std::error_code missing;
      return fs::equivalent(path, found[i], missing);
    });
    if (is_kept) continue;
    goes.push_back(found[i]);
    --too_many;
  }
  return goes;
}

void rotate(const fs::path& output_dir, int64_t limit, const std::vector<fs::path>& keep,
            FileSystem& files) {
  for (const fs::path& folder : surplus(output_dir, limit, keep)) remove_checkpoint(folder, files);
}

namespace {

void point_latest_at(const fs::path& folder, FileSystem& files) {
  write_file_atomically(folder.parent_path() / "latest", folder.filename().string() + "\n", files);
}

}  // namespace

void finish_save(const fs::path& newest, const std::vector<fs::path>& surplus, FileSystem& files) {
  const fs::path latest = newest.parent_path() / "latest";
  // Its own name may not have been brought to the disk either.
  fsync_path(newest.parent_path(), files);
  if (!fs::is_regular_file(latest) || name_in(latest) != newest.filename().string()) {
    point_latest_at(newest, files);
  }
  for (const fs::path& folder : surplus) remove_checkpoint(folder, files);
}

void keep_only(const fs::path& folder, FileSystem& files) {
  for (const fs::path& found : list(folder.parent_path())) {
    if (found.filename() != folder.filename()) remove_checkpoint(found, files);
  }
  point_latest_at(folder, files);
}

}  // namespace strata::checkpoint
