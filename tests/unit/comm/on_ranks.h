// Ranks as threads of a test, each with its own connection.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "listening_port.h"
#include "strata/comm/rendezvous.h"

namespace strata::comm {

// Runs `body(rendezvous)` on `size` ranks and rethrows what any of them threw. `say`: of rank 0.
inline void on_ranks(int size, bool shared_memory, const std::function<void(Rendezvous&)>& body,
                     std::chrono::seconds timeout = std::chrono::seconds(30),
                     const std::function<void(const std::string&)>& say = nullptr) {
  const ListeningPort port = listening_port();
  std::vector<std::exception_ptr> failures(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Rendezvous rendezvous({.rank = rank,
                               .world_size = size,
                               .port = port.number,
                               .listen_descriptor = rank == 0 ? port.descriptor : -1,
                               .timeout = timeout,
                               .shared_memory = shared_memory,
                               .say = rank == 0 ? say : nullptr});
        body(rendezvous);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

inline void on_ranks(int size, const std::function<void(Rendezvous&)>& body) {
  on_ranks(size, /*shared_memory=*/true, body);
}

}  // namespace strata::comm
