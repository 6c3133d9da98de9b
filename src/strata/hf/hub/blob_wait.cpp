#include "strata/hf/hub/blob_wait.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "strata/base/flock_owner.h"

namespace strata::hf {

BlobWait::BlobWait(AwaitedBlob blob, const DownloadProgress& progress, Clock::duration first_word)
    : blob_(std::move(blob)), progress_(progress), next_word_(first_word) {}

void BlobWait::look() {
  std::error_code error;
  const auto size = std::filesystem::file_size(blob_.part, error);
  const int64_t bytes = error ? 0 : static_cast<int64_t>(size);
  // All of it is told only by who knows that it is whole.
  if (progress_.came && bytes > shown_bytes_ && (blob_.size == 0 || bytes < blob_.size)) {
    progress_.came(blob_.name, shown_bytes_ = bytes, blob_.size);
  }
  const Clock::duration waited = Clock::now() - start_;
  if (waited < next_word_) return;
  next_word_ = 2 * waited;
  if (progress_.say) say(std::chrono::duration_cast<std::chrono::seconds>(waited).count(), bytes);
}

void BlobWait::say(int64_t waited_s, int64_t bytes) const {
  const auto owner = flock_owner(blob_.lock);
  const auto megabytes = [](int64_t count) { return static_cast<double>(count) / 1e6; };
  std::string come;
  if (bytes > 0) come = fmt::format(", {:.1f} MB of it so far", megabytes(bytes));
  if (bytes > 0 && blob_.size > 0) {
    come = fmt::format(", {:.1f} of {:.1f} MB so far", megabytes(bytes), megabytes(blob_.size));
  }
  progress_.say(fmt::format("warning: {}: waiting since {} s for {} to download {}{}; it holds {}",
                            blob_.repository, waited_s,
                            owner ? owner->text()
                                  : "another process, which is not visible from "
                                    "here,",
                            blob_.name, come, blob_.lock.string()));
}

}  // namespace strata::hf
