#include "strata/checkpoint/saver.h"

#include <chrono>

#include "strata/checkpoint/folders.h"
#include "strata/comm/agreement.h"

namespace strata::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<LocalPiece> pieces_to_write(shard::UnitStore& store, optim::Optimizer* optimizer) {
  if (!role_of(store.mesh()).writes) return {};
  return local_pieces(store, optimizer);
}

}  // namespace

Saver::Saver(shard::UnitStore& store, optim::Optimizer* optimizer, comm::Group& group,
             const SaverOptions& options)
    : store_(store), optimizer_(optimizer), group_(group), options_(options) {
  if (!options_.in_background) return;
  writer_ = std::thread([this, pieces = own_pieces()] {
    snapshot_ = snapshot_memory(pieces);
    is_finished_ = true;
  });
}

Saver::~Saver() { join(); }

void Saver::join() {
  if (writer_.joinable()) writer_.join();
}

std::vector<LocalPiece> Saver::own_pieces() const { return pieces_to_write(store_, optimizer_); }

uint64_t Saver::snapshot_bytes(shard::UnitStore& store, optim::Optimizer* optimizer) {
  return size_bytes(pieces_to_write(store, optimizer));
}

std::optional<SaveOutcome> Saver::save(SaveRequest request,
                                       std::vector<std::filesystem::path> keep) {
  const Clock::time_point start = Clock::now();
  std::optional<SaveOutcome> before = wait();
  std::vector<LocalPiece> pieces = own_pieces();
  SaveOutcome outcome{.folder = folder_of(request.output_dir, request.step),
                      .failure = "",
                      .size_bytes = size_bytes(pieces)};
  std::vector<LocalPiece> frozen = frozen_pieces(store_, options_.frozen);
  frozen.insert(frozen.end(), request.derived.begin(), request.derived.end());
  outcome.size_bytes += size_bytes(frozen);
  const auto with_frozen = [&](std::vector<LocalPiece> all) {
    all.insert(all.end(), frozen.begin(), frozen.end());
    return all;
  };
  outcome.stall.waiting = seconds_since(start);
  if (options_.in_background) {
    const Clock::time_point copy_start = Clock::now();
    snapshot_ = snapshot(pieces, std::move(snapshot_));
    outcome.stall.copying = seconds_since(copy_start);
    outcome.stall.whole = seconds_since(start);
    outcome_ = std::move(outcome);
    is_finished_ = false;
    writer_ = std::thread(
        [this, request = std::move(request), keep = std::move(keep), all = with_frozen(snapshot_)] {
          write(request, all, keep);
          is_finished_ = true;
        });
  } else {
    outcome_ = std::move(outcome);
    write(request, with_frozen(std::move(pieces)), keep);
    outcome_->stall.whole = seconds_since(start);
  }
  return before;
}

// What was saved is durable whatever comes of this.
void Saver::remove_older(const std::filesystem::path& output_dir,
                         std::vector<std::filesystem::path> keep) {
  // Later steps of an earlier run in the same folder must not push out what was just saved.
  keep.push_back(outcome_->folder);
  try {
    rotate(output_dir, *options_.total_limit, keep);
  } catch (const std::exception& error) {
    outcome_->leftover = error.what();
  }
}

void Saver::write(const SaveRequest& request, const std::vector<LocalPiece>& pieces,
                  const std::vector<std::filesystem::path>& keep) {
  const Clock::time_point start = Clock::now();
  try {
    const auto failure = comm::shared_failure(group_, [&] {
      write_checkpoint(request, pieces, role_of(store_.mesh()), group_);
      if (group_.rank() == 0 && options_.total_limit) remove_older(request.output_dir, keep);
    });
    if (failure) outcome_->failure = *failure;
  } catch (const std::exception& error) {  // a peer is gone
    outcome_->failure = error.what();
  }
  outcome_->seconds = seconds_since(start);
}

std::optional<SaveOutcome> Saver::poll() {
  if (writer_.joinable() && !is_finished_) return std::nullopt;
  return wait();
}

std::optional<SaveOutcome> Saver::wait() {
  join();
  return std::exchange(outcome_, std::nullopt);
}

}  // namespace strata::checkpoint
