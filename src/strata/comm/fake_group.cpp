#include "strata/comm/fake_group.h"

#include "strata/base/error.h"
#include "strata/comm/shm_memory.h"
#include "strata/comm/single_group.h"

namespace strata::comm {

FakeGroup::FakeGroup(int rank, int size, Imitated imitated)
    : rank_(rank), size_(size), imitated_(imitated) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw ConfigError("fake process group: found rank {} of {}, expected 0 <= rank < size", rank,
                      size);
  }
}

namespace {

// Lends until the operation has been waited for.
class LoanWork final : public Work {
 public:
  LoanWork(SpareBuffers& spare, std::vector<at::Tensor> loans)
      : spare_(spare), loans_(std::move(loans)) {}
  void wait() override {
    for (at::Tensor& loan : loans_) spare_.take_back(std::move(loan));
    loans_.clear();
  }

 private:
  SpareBuffers& spare_;
  std::vector<at::Tensor> loans_;
};

// Takes memory until the operation has been waited for.
class TemporaryWork final : public Work {
 public:
  explicit TemporaryWork(const at::Tensor& like) {
    const MemoryScope scope(MemoryKind::kCommunication);
    copy_ = at::empty_like(like);
  }
  void wait() override { copy_ = at::Tensor(); }

 private:
  at::Tensor copy_;
};

}  // namespace

std::unique_ptr<Work> FakeGroup::start_all_gather(at::Tensor out, at::Tensor in) {
  count_all_gather(in);
  if (in.is_meta()) {
    return imitated_ == Imitated::kGloo ? std::make_unique<TemporaryWork>(out) : completed_work();
  }
  const at::Tensor copy = in.clone();
  out.view({size_, -1}).copy_(copy.unsqueeze(0).expand({size_, copy.numel()}));
  return completed_work();
}

std::unique_ptr<Work> FakeGroup::start_reduce_scatter(at::Tensor out, at::Tensor in) {
  count_reduce_scatter(out);
  if (in.is_meta()) {
    if (imitated_ != Imitated::kGloo) return completed_work();
    return std::make_unique<LoanWork>(spare_, std::vector<at::Tensor>{spare_.lend(in)});
  }
  out.copy_(in.view({size_, -1})[rank_] * size_);
  return completed_work();
}

std::unique_ptr<Work> FakeGroup::start_all_reduce(at::Tensor tensor, Reduction op) {
  if (op == Reduction::kSum && !tensor.is_meta()) tensor.mul_(size_);
  count_all_reduce(tensor);
  // As GlooGroup sums 16 bits.
  const bool is_summed_here = op == Reduction::kSum && tensor.element_size() == 2;
  if (!tensor.is_meta() || imitated_ != Imitated::kGloo || !is_summed_here) return completed_work();
  const int64_t numel = size_ * padded_chunk(tensor.numel(), size_);
  at::Tensor padded = spare_.lend(numel, tensor.options());
  return std::make_unique<LoanWork>(
      spare_, std::vector<at::Tensor>{padded, spare_.lend(numel, tensor.options())});
}

int64_t FakeGroup::process_bytes() const {
  // A rank reads the others' memory, so that their pages count as its own.
  return imitated_ == Imitated::kSharedMemory ? size_ * static_cast<int64_t>(kShmBytes) : 0;
}

std::unique_ptr<Work> FakeGroup::start_broadcast(at::Tensor, int) { return completed_work(); }

// Every rank sends what this one does.
std::unique_ptr<Work> FakeGroup::start_all_to_all(at::Tensor out, at::Tensor in) {
  count_all_to_all(in);
  if (in.is_meta()) return completed_work();
  const at::Tensor own = in.view({size_, -1})[rank_];
  out.view({size_, -1}).copy_(own.unsqueeze(0).expand({size_, own.numel()}));
  return completed_work();
}

std::unique_ptr<Work> FakeGroup::start_scatter(at::Tensor out, at::Tensor in, int root) {
  count_scatter(out, root);
  if (!out.is_meta() && rank_ == root) out.copy_(in.view({size_, -1})[rank_]);
  return completed_work();
}

}  // namespace strata::comm
