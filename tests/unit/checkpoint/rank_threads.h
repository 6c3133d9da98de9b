// Ranks of one job as threads of a test: each with homes, an optimizer and its end of real groups.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "../comm/listening_port.h"
#include "strata/comm/rendezvous.h"
#include "tiny_rank.h"

namespace strata::checkpoint {

class RankThreads {
 public:
  // `shard_size` 0: one shard group of all ranks. `timeout`: of the collectives.
  explicit RankThreads(int size, bool shared_memory = true, int shard_size = 0,
                       std::chrono::seconds timeout = std::chrono::seconds(60))
      : ranks_(static_cast<size_t>(size)) {
    if (size == 1) {
      ranks_[0].rank = std::make_unique<Rank>(0, 1);
      return;
    }
    const comm::ListeningPort port = comm::listening_port();
    on_all([&](int rank) {
      One& one = ranks_[static_cast<size_t>(rank)];
      one.rendezvous = std::make_unique<comm::Rendezvous>(
          comm::RendezvousOptions{.rank = rank,
                                  .world_size = size,
                                  .port = port.number,
                                  .listen_descriptor = rank == 0 ? port.descriptor : -1,
                                  .timeout = timeout,
                                  .shared_memory = shared_memory});
      one.rank = std::make_unique<Rank>(
          comm::make_mesh(*one.rendezvous, {.shard_size = shard_size > 0 ? shard_size : size}));
    });
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Rank& operator[](int rank) { return *ranks_[static_cast<size_t>(rank)].rank; }

  // One more group of all ranks, which waits that long. Collective.
  std::unique_ptr<comm::Group> make_group(int rank, std::chrono::seconds timeout) {
    return ranks_[static_cast<size_t>(rank)].rendezvous->make_group("more", {},
                                                                    {.timeout = timeout});
  }

  // Runs `work` on every rank and rethrows what a rank threw for itself, rather than what another
  // one heard of it.
  template <typename OwnError>
  void run(const std::function<void(Rank&)>& work) {
    std::exception_ptr heard;
    for (const std::exception_ptr& failure :
         on_all([&](int rank) { work((*this)[rank]); }, /*rethrows=*/false)) {
      if (!failure) continue;
      try {
        std::rethrow_exception(failure);
      } catch (const OwnError&) {
        throw;
      } catch (...) {
        heard = failure;
      }
    }
    if (heard) std::rethrow_exception(heard);
  }

 private:
  struct One {
    std::unique_ptr<comm::Rendezvous> rendezvous;  // outlives the groups
    std::unique_ptr<Rank> rank;
  };

  std::vector<std::exception_ptr> on_all(const std::function<void(int)>& work,
                                         bool rethrows = true) {
    std::vector<std::exception_ptr> failures(ranks_.size());
    const auto run = [&](int rank) {
      try {
        work(rank);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    };
    std::vector<std::thread> threads;
    for (int rank = 1; rank < size(); ++rank) threads.emplace_back(run, rank);
    run(0);
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& failure : failures) {
      if (failure && rethrows) std::rethrow_exception(failure);
    }
    return failures;
  }

  std::vector<One> ranks_;
};

}  // namespace strata::checkpoint
