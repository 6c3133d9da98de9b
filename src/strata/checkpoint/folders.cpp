#include "strata/checkpoint/folders.h"

#include <algorithm>
#include <charconv>

#include "strata/base/error.h"
#include "strata/base/file.h"

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

std::vector<fs::path> list(const fs::path& output_dir) {
  std::vector<fs::path> found;
  if (!fs::is_directory(output_dir)) return found;
  for (const auto& entry : fs::directory_iterator(output_dir)) {
    if (step_of(entry.path()) >= 0 && fs::exists(entry.path() / "manifest.json")) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end(),
            [](const fs::path& a, const fs::path& b) { return step_of(a) < step_of(b); });
  return found;
}

namespace {

// The newest checkpoint-N of another program, transformers' Trainer for one; empty: none.
fs::path foreign_checkpoint(const fs::path& output_dir) {
  fs::path newest;
  if (!fs::is_directory(output_dir)) return newest;
  for (const auto& entry : fs::directory_iterator(output_dir)) {
    const bool is_foreign = step_of(entry.path()) >= 0 &&
                            !fs::exists(entry.path() / "manifest.json") &&
                            fs::exists(entry.path() / "trainer_state.json");
    if (is_foreign && step_of(entry.path()) > step_of(newest)) newest = entry.path();
  }
  return newest;
}

}  // namespace

std::vector<fs::path> candidates(const std::string& resume_from, const fs::path& output_dir) {
  if (resume_from != "true" && resume_from != "True") return {resume_from};
  std::vector<fs::path> found = list(output_dir);
  if (found.empty()) {
    const fs::path foreign = foreign_checkpoint(output_dir);
    throw ConfigError(
        "resume_from_checkpoint: no valid checkpoint found in output directory ({}), "
        "expected a checkpoint-N folder; drop the flag to start anew{}",
        output_dir.string(),
        foreign.empty() ? ""
                        : fmt::format(", or make one of {} with strata convert {} OUT --to strata "
                                      "and resume with --output_dir OUT",
                                      foreign.filename().string(), foreign.string()));
  }
  std::reverse(found.begin(), found.end());
  return found;
}

void rotate(const fs::path& output_dir, int64_t limit, const std::vector<fs::path>& keep,
            FileSystem& files) {
  const std::vector<fs::path> found = list(output_dir);
  int64_t surplus = static_cast<int64_t>(found.size()) - std::max<int64_t>(limit, 1);
  for (size_t i = 0; i + 1 < found.size() && surplus > 0; ++i) {
    const bool is_kept = std::any_of(keep.begin(), keep.end(), [&](const fs::path& path) {
      return path.filename() == found[i].filename();
    });
    if (is_kept) continue;
    // Renamed first: a folder that is half removed must not look like a checkpoint.
    const fs::path doomed = found[i].string() + ".tmp-removed";
    files.remove(doomed);  // what a killed removal left
    if (const int error = files.rename(found[i], doomed)) {
      throw IoError("{}: found {} when removing it, expected it to go (save_total_limit)",
                    found[i].string(), errno_text(error));
    }
    fsync_path(output_dir, files);  // before its files go: a crash must not bring a half back
    files.remove(doomed);
    --surplus;
  }
}

}  // namespace strata::checkpoint
