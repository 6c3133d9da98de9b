#include "strata/checkpoint/saver.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include "strata/base/error.h"
#include "strata/base/seconds_since.h"
#include "strata/checkpoint/folders.h"
#include "strata/comm/agreement.h"
#include "strata/comm/liveness.h"

namespace strata::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<LocalPiece> pieces_to_write(shard::UnitStore& store, optim::Optimizer* optimizer) {
  if (!role_of(store.mesh()).writes) return {};
  return local_pieces(store, optimizer);
}

void add(std::string& told, const std::string& more) {
  if (!told.empty() && !more.empty()) told += "; ";
  told += more;
}

}  // namespace

Saver::Saver(shard::UnitStore& store, optim::Optimizer* optimizer, comm::Group& group,
             const SaverOptions& options)
    : store_(store), optimizer_(optimizer), group_(group), options_(options) {
  if (!options_.in_background) return;
  std::vector<LocalPiece> own;
  try {
    own = own_pieces();
  } catch (const std::exception&) {
    return;  // the first save asks again, and says so
  }
  start([this, pieces = std::move(own)] {
    try {
      snapshot_ = options_.take_memory(pieces);
    } catch (const std::exception&) {
      snapshot_.clear();  // the first save asks again, and says so
    }
    is_finished_ = true;
  });
}

void Saver::start(const std::function<void()>& work) {
  is_finished_ = false;
  try {
    writer_ = std::thread([this, work] {
      use_device();
      work();
    });
  } catch (const std::system_error&) {  // no more threads: the caller's does it
    work();
  }
}

// A new thread's device is the first one, on which memory that it locks would open a context: half
// a gigabyte of the GPU of another rank.
void Saver::use_device() const {
  const at::Device device = store_.options().device;
  if (!device.is_cuda()) return;
  try {
    at::accelerator::setDeviceIndex(device.index());
  } catch (const std::exception&) {
    // Of the device itself: the thread that computes meets it too.
  }
}

void Saver::require_sound_state() const {
  const at::Device device = store_.options().device;
  if (device.is_cuda()) at::accelerator::synchronizeDevice(device.index());
  comm::require_alive(store_.mesh());
}

Saver::~Saver() { join(); }

void Saver::join() {
  if (writer_.joinable()) writer_.join();
}

std::vector<LocalPiece> Saver::own_pieces() const { return pieces_to_write(store_, optimizer_); }

uint64_t Saver::snapshot_bytes(shard::UnitStore& store, optim::Optimizer* optimizer) {
  return size_bytes(pieces_to_write(store, optimizer));
}

void Saver::collect(Job& job, const CompleteRequest& complete) const {
  try {
    if (complete) complete(job.request);
    job.pieces = own_pieces();
    job.fixed = frozen_pieces(store_, options_.frozen);
    job.fixed.insert(job.fixed.end(), job.request.derived.begin(), job.request.derived.end());
  } catch (...) {
    job.unready = std::current_exception();
    job.pieces.clear();
    job.fixed.clear();
  }
}

std::optional<SaveOutcome> Saver::save(SaveRequest request, Removal removal,
                                       const CompleteRequest& complete) {
  const Clock::time_point start = Clock::now();
  std::optional<SaveOutcome> before = wait();
  Job job{.request = std::move(request), .removal = std::move(removal)};
  collect(job, complete);
  SaveOutcome outcome{.folder = folder_of(job.request.output_dir, job.request.step),
                      .failure = "",
                      .size_bytes = size_bytes(job.pieces) + size_bytes(job.fixed)};
  outcome.stall.waiting = seconds_since(start);
  const bool is_copied = options_.in_background && !has_lost_group_ && copy(job, outcome);
  require_sound_state();
  outcome.stall.whole = seconds_since(start);
  outcome_ = std::move(outcome);
  after_ = {};
  job.request.after = &after_;
  if (is_copied) {
    this->start([this, job = std::move(job)] {
      write(job);
      is_finished_ = true;
    });
  } else {
    // A rank that has no memory for a copy writes what rests, while the others train on: they wait
    // for it at the next step.
    write(job);
    outcome_->stall.whole = seconds_since(start);
  }
  return before;
}

bool Saver::copy(Job& job, SaveOutcome& outcome) {
  if (job.unready) return true;
  const Clock::time_point start = Clock::now();
  try {
    snapshot_ = options_.copy(job.pieces, std::move(snapshot_));
    job.pieces = snapshot_;
  } catch (const std::exception& error) {
    snapshot_.clear();
    const std::string text = error.what();
    outcome.leftover = fmt::format(
        "async_save: found no memory for the copy of the state ({}); saving while training waited",
        text.substr(0, text.find('\n')));
    return false;
  }
  outcome.stall.copying = seconds_since(start);
  return true;
}

// What was saved is durable whatever comes of this.
void Saver::remove_older(const Job& job) {
  std::vector<std::filesystem::path> keep = job.removal.kept;
  // Whatever the order of the steps in the folder is.
  keep.push_back(outcome_->folder);
  try {
    rotate(job.request.output_dir, *options_.total_limit, keep, *options_.files);
  } catch (const std::exception& error) {
    add(outcome_->leftover, error.what());
  }
}

namespace {

// A rank that cannot look (memory) must still take part in what follows: then nothing is removed.
bool is_known_finite(const std::vector<LocalPiece>& pieces) {
  try {
    return not_finite(pieces).empty();
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

void Saver::write(const Job& job) {
  const Clock::time_point start = Clock::now();
  comm::Group& group = has_lost_group_ ? *store_.mesh().world : group_;
  try {
    const auto failure = comm::shared_failure(group, [&] {
      comm::all_or_nothing(group, "saving " + outcome_->folder.filename().string(), [&] {
        if (job.unready) std::rethrow_exception(job.unready);
      });
      std::vector<LocalPiece> all = job.pieces;
      all.insert(all.end(), job.fixed.begin(), job.fixed.end());
      write_checkpoint(job.request, all, role_of(store_.mesh()), group, *options_.files);
      at::Tensor is_bad = at::full({1}, is_known_finite(job.pieces) ? 0 : 1, at::kInt);
      group.all_reduce(is_bad, comm::Reduction::kMax)->wait();
      const bool removes =
          options_.total_limit && job.removal.is_allowed && after_.replaces_older();
      if (group.rank() != 0) return;
      if (is_bad.item<int>() != 0) {
        add(outcome_->leftover,
            fmt::format("{} holds weights that are not known to be finite{}",
                        outcome_->folder.filename().string(), removes ? "; older ones stay" : ""));
      } else if (removes) {
        remove_older(job);
      }
    });
    if (failure) outcome_->failure = *failure;
  } catch (const std::exception& error) {  // a peer is gone, or late
    outcome_->failure = error.what();
    is_group_broken_ = true;
  }
  add(outcome_->leftover, after_.trouble);
  outcome_->seconds = seconds_since(start);
}

void Saver::agree() {
  comm::Group& world = *store_.mesh().world;
  const auto failure = comm::shared_failure(world, [&] {
    if (!outcome_->failure.empty()) throw CommError(outcome_->failure);
  });
  if (!failure) return;
  at::Tensor flags = at::zeros({2}, at::kInt);
  flags[0] = is_group_broken_ ? 1 : 0;
  flags[1] = after_.is_in_place ? 1 : 0;  // rank 0's
  world.all_reduce(flags, comm::Reduction::kMax)->wait();
  SaveOutcome& outcome = *outcome_;
  if (outcome.failure.empty() || flags[1].item<int>() != 0) outcome.is_told = false;
  if (outcome.failure.empty()) outcome.failure = *failure;
  if (flags[1].item<int>() != 0) {  // which it is after all ranks have written
    add(outcome.leftover, fmt::format("{} is saved, but not every rank heard of it: {}",
                                      outcome.folder.filename().string(), outcome.failure));
    outcome.failure.clear();
  }
  if (flags[0].item<int>() == 0 || has_lost_group_) return;
  has_lost_group_ = true;
  outcome.is_told = false;
  add(outcome.leftover,
      "async_save: the ranks lost each other while saving; from now on training waits for saves");
}

std::optional<SaveOutcome> Saver::poll() {
  if (writer_.joinable() && !is_finished_) return std::nullopt;
  join();
  if (!outcome_ || outcome_->is_told) return std::nullopt;
  outcome_->is_told = true;
  return outcome_;
}

std::optional<SaveOutcome> Saver::wait() {
  join();
  if (outcome_) agree();
  return std::exchange(outcome_, std::nullopt);
}

}  // namespace strata::checkpoint
