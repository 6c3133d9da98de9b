// Oracle: the variables as torchrun, SLURM and Open MPI document them.
#include "strata/launch/environment.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"

namespace strata::launch {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

RankEnvironment detect(const Variables& variables) {
  return detect_rank_environment([&](const char* name) -> std::optional<std::string> {
    auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string error_of(const Variables& variables) {
  try {
    detect(variables);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(RankEnvironment, OneProcessWithoutALauncher) {
  const RankEnvironment found = detect({});
  EXPECT_EQ(found.rank, 0);
  EXPECT_EQ(found.world_size, 1);
}

TEST(RankEnvironment, Torchrun) {
  const RankEnvironment found = detect({{"RANK", "5"},
                                        {"LOCAL_RANK", "1"},
                                        {"WORLD_SIZE", "8"},
                                        {"LOCAL_WORLD_SIZE", "4"},
                                        {"MASTER_ADDR", "node1"},
                                        {"MASTER_PORT", "1234"}});
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.world_size, 8);
  EXPECT_EQ(found.local_world_size, 4);
  EXPECT_EQ(found.master_addr, "node1");
  EXPECT_EQ(found.master_port, 1234);
}

TEST(RankEnvironment, SlurmStep) {
  Variables variables = {{"SLURM_PROCID", "3"},
                         {"SLURM_NTASKS", "5"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_TASKS_PER_NODE", "2(x2),1"},
                         {"SLURM_NODELIST", "gpu[07-08,11]"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_JOB_ID", "12345"}};
  const RankEnvironment found = detect(variables);
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.world_size, 5);
  EXPECT_EQ(found.local_world_size, 2);
  EXPECT_EQ(found.master_addr, "gpu07");
  EXPECT_EQ(found.master_port, 17345);
  variables["MASTER_ADDR"] = "other";
  variables["MASTER_PORT"] = "77";
  EXPECT_EQ(detect(variables).master_addr, "other");
  EXPECT_EQ(detect(variables).master_port, 77);
  // A batch script is one process, whatever its job's tasks.
  variables.erase("SLURM_STEP_ID");
  EXPECT_EQ(detect(variables).world_size, 1);
}

TEST(RankEnvironment, OpenMpi) {
  Variables variables = {{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(detect(variables).rank, 1);
  EXPECT_EQ(detect(variables).world_size, 2);
  variables["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_THAT(error_of(variables), HasSubstr("MASTER_ADDR: found nothing under mpirun"));
}

TEST(RankEnvironment, InconsistentVariablesAreErrors) {
  EXPECT_THAT(error_of({{"RANK", "1"}}), HasSubstr("WORLD_SIZE: found nothing beside RANK"));
  EXPECT_THAT(error_of({{"WORLD_SIZE", "2"}}), HasSubstr("RANK: found nothing beside WORLD_SIZE"));
  EXPECT_THAT(error_of({{"RANK", "x"}, {"WORLD_SIZE", "2"}}),
              HasSubstr("RANK: found \"x\", expected a whole number"));
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_ADDR: "));
  const Variables meeting = {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}, {"WORLD_SIZE", "2"}};
  Variables variables = meeting;
  variables["RANK"] = "2";
  EXPECT_THAT(error_of(variables), HasSubstr("rank: found 2, expected less than the world size"));
}

TEST(SlurmHosts, FirstOfEveryForm) {
  EXPECT_EQ(first_slurm_host("a"), "a");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("n[1-3]"), "n1");
  EXPECT_EQ(first_slurm_host("n[007,9]"), "n007");
  EXPECT_EQ(first_slurm_host("x1,n[1-3]"), "x1");
}

}  // namespace
}  // namespace strata::launch
