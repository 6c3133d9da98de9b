// A group of ranks and its collectives, over whichever transport. Owns: nothing but the interface.
// Collective: every rank of the group must call the same methods in the same order.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

namespace strata::comm {

// An operation in flight. The tensors passed to the call must stay alive and untouched until
// wait().
class Work {
 public:
  virtual ~Work() = default;
  // Returns when the result is usable (on the current stream for accelerators). Throws CommError.
  virtual void wait() = 0;
};

enum class Reduction { kSum, kMax };

class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string transport() const = 0;  // "gloo", "single", "fake"

  // `out` [size * n] = every rank's `in` [n], in rank order. `in` may be out's own slice.
  virtual std::unique_ptr<Work> all_gather(at::Tensor out, at::Tensor in) = 0;
  // `out` [n] = sum over ranks of their in[rank * n .. (rank + 1) * n). `in` [size * n] may be
  // changed.
  virtual std::unique_ptr<Work> reduce_scatter(at::Tensor out, at::Tensor in) = 0;
  virtual std::unique_ptr<Work> all_reduce(at::Tensor tensor, Reduction op = Reduction::kSum) = 0;
  virtual std::unique_ptr<Work> broadcast(at::Tensor tensor, int root) = 0;
  virtual void barrier() = 0;
};

}  // namespace strata::comm
