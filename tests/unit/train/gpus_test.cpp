// Oracle: which ranks name which GPU; what CUDA and the kernel say of GPUs that cannot be used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"
#include "strata/train/setup/gpu_sharing.h"
#include "strata/train/setup/unusable_gpus.h"

namespace strata::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(SharedGpus, AreNamedWithTheirRanks) {
  const std::vector<std::string> gpus = {"11111111aa", "22222222bb", "11111111aa", "33333333cc",
                                         "22222222bb"};
  const std::string warning = sharing_warning(gpus).value_or("");
  EXPECT_THAT(warning, HasSubstr("ranks 0, 2 on GPU-11111111; ranks 1, 4 on GPU-22222222, "
                                 "expected a GPU for each of 5 ranks"));
  EXPECT_THAT(warning, AllOf(HasSubstr("there are GPUs (3)"), Not(HasSubstr("33333333"))));
  EXPECT_EQ(count_sharers(gpus, 0), 2);
  EXPECT_EQ(count_sharers(gpus, 3), 1);
}

TEST(SharedGpus, AreNoWordWhereEachRankHasItsOwn) {
  // One visible GPU a rank (srun --gpus-per-task=1) is no sharing: the names differ.
  EXPECT_EQ(sharing_warning({"a", "b", "c"}), std::nullopt);
  EXPECT_EQ(count_sharers({"a", "b", "c"}, 1), 1);
}

std::string refusal_of(const UnusableGpus& gpus) {
  try {
    refuse_unusable(gpus);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(UnusableGpus, AnOldDriverIsNamed) {
  EXPECT_EQ(
      refusal_of({.num_present = 8,
                  .driver = "NVIDIA UNIX x86_64 Kernel Module  570.86.15",
                  .refusal = "CUDA driver version is insufficient for CUDA runtime version",
                  .cuda_of_driver = 12080,
                  .cuda_of_program = 13000}),
      "device: found 8 NVIDIA GPUs, of which CUDA says \"CUDA driver version is insufficient "
      "for CUDA runtime version\" (driver: NVIDIA UNIX x86_64 Kernel Module  570.86.15), "
      "whose driver knows CUDA 12.8, expected one that knows CUDA 13.0; update the driver, or "
      "pass --cpu to compute on the CPU");
}

TEST(UnusableGpus, GpusThatAreKeptFromTheProcessAreNamed) {
  const std::string told = refusal_of({.num_present = 1,
                                       .refusal = "no CUDA-capable device is detected",
                                       .cuda_of_driver = 13000,
                                       .cuda_of_program = 13000});
  EXPECT_THAT(told, AllOf(HasSubstr("found 1 NVIDIA GPU, of which"), HasSubstr("--gpus all"),
                          HasSubstr("--cpu")));
}

TEST(UnusableGpus, ANumberThatNoGpuHasIsNamed) {
  UnusableGpus gpus{.num_present = 2,
                    .refusal = "no CUDA-capable device is detected",
                    .cuda_of_driver = 13000,
                    .cuda_of_program = 13000,
                    .visible = "9,0"};
  EXPECT_EQ(refusal_of(gpus),
            "CUDA_VISIBLE_DEVICES: found \"9,0\", whose 9 is no GPU of this machine, which has 2 "
            "NVIDIA GPUs (0 to 1), expected some of them; correct the variable (--gpu_ids sets "
            "it), unset it to use all, or pass --cpu to compute on the CPU");
  for (const char* numbers : {"1", "0,9", " 1 ,0", "MIG-5"}) {
    gpus.visible = numbers;
    EXPECT_THAT(refusal_of(gpus), HasSubstr("--gpus all")) << numbers;
  }
  gpus.visible = "99999999999999999999";
  EXPECT_THAT(refusal_of(gpus), HasSubstr("whose 99999999999999999999 is no GPU"));
  gpus.visible = "9";
  gpus.cuda_of_driver = 12080;
  EXPECT_THAT(refusal_of(gpus), HasSubstr("update the driver"));
}

TEST(UnusableGpus, ANameThatNoGpuHasIsNamed) {
  UnusableGpus gpus{.num_present = 1, .visible = "GPU-12", .names = {"GPU-1234", "GPU-5678"}};
  EXPECT_THAT(refusal_of(gpus), HasSubstr("--gpus all"));
  gpus.visible = "GPU-9";
  EXPECT_THAT(refusal_of(gpus), HasSubstr("whose GPU-9 is no GPU of this machine, which has 1 "
                                          "NVIDIA GPU (0; GPU-1234, GPU-5678), expected"));
  gpus.names.clear();
  EXPECT_THAT(refusal_of(gpus), HasSubstr("--gpus all"));
}

TEST(UnusableGpus, WhereThereAreNoneTheProcessorsCompute) { EXPECT_EQ(refusal_of({}), ""); }

}  // namespace
}  // namespace strata::train
