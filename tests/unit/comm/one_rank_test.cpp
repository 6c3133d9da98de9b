// Oracle: what a collective of one rank is by its definition, a copy or nothing. Goes over every
// group that the machine can make of one rank: NCCL's where there is a GPU.
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>

#include "strata/comm/nccl_group.h"
#include "strata/comm/rendezvous.h"
#include "strata/comm/single_group.h"
#include "strata/comm/staged_group.h"
#include "strata/libtorch/cuda_build.h"

namespace strata::comm {
namespace {

struct Alone {
  at::Device device;
  std::unique_ptr<Group> group;
};

std::vector<Alone> groups_of_one(Rendezvous& rendezvous) {
  std::vector<Alone> all;
  all.push_back({at::kCPU, make_single_group()});
  all.push_back({at::kCPU, make_staged_group(make_single_group())});
  if constexpr (kHasCuda) {
    const at::Device gpu(at::kCUDA, 0);
    if (at::hasCUDA() && at::accelerator::deviceCount() > 0) {
      at::accelerator::setDeviceIndex(0);
      all.push_back({gpu, make_staged_group(make_single_group())});
      all.push_back({gpu, make_nccl_group(rendezvous, "alone", {0}, gpu)});
    }
  }
  return all;
}

// Many in a row, so that what is under way is handed on by streams alone.
TEST(OneRank, GetsBackWhatItGives) {
  Rendezvous rendezvous(RendezvousOptions{});
  for (const auto& [device, group] : groups_of_one(rendezvous)) {
    ASSERT_EQ(group->size(), 1);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kLong, at::kByte}) {
      const auto options = at::TensorOptions().dtype(type).device(device);
      at::Tensor values = at::arange(100000, options.dtype(at::kLong)).remainder(100).to(type);
      const at::Tensor expected = values.clone();
      for (int round = 0; round < 20; ++round) {
        const at::Tensor gathered = at::empty_like(values), reduced = at::empty_like(values);
        group->all_gather(gathered, values)->wait();
        group->reduce_scatter(reduced, gathered)->wait();
        group->all_reduce(reduced, Reduction::kSum)->wait();
        group->all_reduce(reduced, Reduction::kMax)->wait();
        group->broadcast(reduced, /*root=*/0)->wait();
        const at::Tensor dealt = at::empty_like(values);
        group->scatter(dealt, reduced, /*root=*/0)->wait();
        group->all_to_all(values, dealt)->wait();
      }
      EXPECT_TRUE(at::equal(values, expected))
          << name_of(group->transport()) << " " << device.str();
    }
    group->barrier();
  }
}

// Oracle: UndefinedBehaviorSanitizer (tools/run_sanitized): a place in no memory has no address.
TEST(OneRank, HasNothingToCopyBetweenTensorsOfAPlan) {
  const at::Tensor slot = at::empty({4}, at::kMeta);
  const auto group = make_single_group();
  group->all_gather(slot.slice(0, 2), slot.slice(0, 0, 2))->wait();
}

}  // namespace
}  // namespace strata::comm
