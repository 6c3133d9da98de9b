#include "strata/checkpoint/saver.h"

#include <chrono>

#include "strata/checkpoint/folders.h"
#include "strata/comm/agreement.h"

namespace strata::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Saver::Saver(shard::UnitStore& store, optim::Optimizer* optimizer, comm::Group& group,
             const SaverOptions& options)
    : store_(store), optimizer_(optimizer), group_(group), options_(options) {}

Saver::~Saver() {
  if (writer_.joinable()) writer_.join();
}

uint64_t Saver::snapshot_bytes() const { return size_bytes(local_pieces(store_, optimizer_)); }

double Saver::save(SaveRequest request, std::vector<std::filesystem::path> keep) {
  const Clock::time_point start = Clock::now();
  wait();
  std::vector<LocalPiece> pieces = local_pieces(store_, optimizer_);
  if (options_.in_background) {
    snapshot_ = snapshot(pieces, std::move(snapshot_));
    is_finished_ = false;
    writer_ = std::thread([this, request = std::move(request), keep = std::move(keep)] {
      write(request, snapshot_, keep);
      is_finished_ = true;
    });
  } else {
    write(request, pieces, keep);
  }
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void Saver::write(const SaveRequest& request, const std::vector<LocalPiece>& pieces,
                  const std::vector<std::filesystem::path>& keep) {
  outcome_ = SaveOutcome{folder_of(request.output_dir, request.step), ""};
  try {
    const auto failure = comm::shared_failure(group_, [&] {
      write_checkpoint(request, pieces, role_of(store_.mesh()), group_);
      if (group_.rank() == 0 && options_.total_limit) {
        // Later steps of an earlier run in the same folder must not push out what was just saved.
        std::vector<std::filesystem::path> kept = keep;
        kept.push_back(outcome_->folder);
        rotate(request.output_dir, *options_.total_limit, kept);
      }
    });
    if (failure) outcome_->failure = *failure;
  } catch (const std::exception& error) {  // a peer is gone
    outcome_->failure = error.what();
  }
}

std::optional<SaveOutcome> Saver::poll() {
  if (writer_.joinable() && !is_finished_) return std::nullopt;
  return wait();
}

std::optional<SaveOutcome> Saver::wait() {
  if (writer_.joinable()) writer_.join();
  return std::exchange(outcome_, std::nullopt);
}

}  // namespace strata::checkpoint
