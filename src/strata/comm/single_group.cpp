#include "strata/comm/single_group.h"

namespace strata::comm {
namespace {

class CompletedWork final : public Work {
 public:
  void wait() override {}
};

// A plan's tensors (at::kMeta) have no addresses to compare, and nothing to copy.
std::unique_ptr<Work> copy_unless_aliased(const at::Tensor& out, const at::Tensor& in) {
  if (!out.is_meta() && out.data_ptr() != in.data_ptr()) out.copy_(in);
  return completed_work();
}

class SingleGroup final : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Transport transport() const override { return Transport::kSingle; }

 private:
  std::unique_ptr<Work> start_all_gather(at::Tensor out, at::Tensor in) override {
    return copy_unless_aliased(out, in);
  }
  std::unique_ptr<Work> start_reduce_scatter(at::Tensor out, at::Tensor in) override {
    return copy_unless_aliased(out, in);
  }
  std::unique_ptr<Work> start_all_reduce(at::Tensor, Reduction) override {
    return completed_work();
  }
  std::unique_ptr<Work> start_broadcast(at::Tensor, int) override { return completed_work(); }
  std::unique_ptr<Work> start_all_to_all(at::Tensor out, at::Tensor in) override {
    return copy_unless_aliased(out, in);
  }
  std::unique_ptr<Work> start_scatter(at::Tensor out, at::Tensor in, int) override {
    return copy_unless_aliased(out, in);
  }
  void meet() override {}
};

}  // namespace

std::unique_ptr<Work> completed_work() { return std::make_unique<CompletedWork>(); }

std::unique_ptr<Group> make_single_group() { return std::make_unique<SingleGroup>(); }

}  // namespace strata::comm
