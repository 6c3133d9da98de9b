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

// Rank 1 of 2 on one machine, and of 2 machines with a rank each.
TEST(RankEnvironment, EveryKindOfMpi) {
  struct Names {
    const char *rank, *size, *local_rank, *local_size;
  };
  const Names kinds[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                          "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                         {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
                          "MV2_COMM_WORLD_LOCAL_SIZE"},
                         {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}};
  for (const Names& names : kinds) {
    SCOPED_TRACE(names.rank);
    Variables variables = {
        {names.rank, "1"}, {names.size, "2"}, {names.local_rank, "1"}, {names.local_size, "2"}};
    RankEnvironment found = detect(variables);
    EXPECT_EQ(found.rank, 1);
    EXPECT_EQ(found.world_size, 2);
    EXPECT_EQ(found.local_rank, 1);
    EXPECT_EQ(found.local_world_size, 2);
    EXPECT_EQ(found.master_addr, "127.0.0.1");
    variables[names.local_rank] = "0";
    variables[names.local_size] = "1";
    EXPECT_THAT(error_of(variables), HasSubstr("MASTER_ADDR: found nothing under mpirun"));
    variables["MASTER_ADDR"] = "first";
    EXPECT_EQ(detect(variables).master_addr, "first");
    variables.erase(names.size);
    EXPECT_EQ(
        error_of(variables),
        fmt::format(
            "{}: found nothing although {} is set, expected a whole number; set it, or unset {}",
            names.size, names.rank, names.rank));
  }
}

// torchrun or this launcher under a batch system or mpirun: the inner one decides.
TEST(RankEnvironment, TheInnermostLauncherDecides) {
  EXPECT_EQ(detect({{"RANK", "1"},
                    {"WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "a"},
                    {"MASTER_PORT", "5"},
                    {"SLURM_PROCID", "0"},
                    {"SLURM_NTASKS", "1"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURM_STEP_ID", "0"},
                    {"PMI_RANK", "7"},
                    {"PMI_SIZE", "8"}})
                .rank,
            1);
  // srun --mpi=pmi2 sets both.
  EXPECT_EQ(detect({{"SLURM_PROCID", "2"},
                    {"SLURM_NTASKS", "4"},
                    {"SLURM_LOCALID", "2"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_STEP_NODELIST", "n1"},
                    {"PMI_RANK", "2"},
                    {"PMI_SIZE", "4"}})
                .master_addr,
            "n1");
}

TEST(RankEnvironment, WrongSlurmVariablesAreErrors) {
  const Variables step = {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "3"}};
  EXPECT_THAT(error_of(step),
              HasSubstr("SLURM_LOCALID: found nothing although SLURM_PROCID is set"));
  Variables outside = step;
  outside["SLURM_LOCALID"] = "1";
  outside["SLURM_PROCID"] = "2";
  EXPECT_THAT(error_of(outside), HasSubstr("rank: found 2, expected less than the world size (2)"));
  outside["SLURM_PROCID"] = "x";
  EXPECT_THAT(error_of(outside), HasSubstr("SLURM_PROCID: found \"x\", expected a whole number"));
}

// What is no number was read as 0 tasks, and the ranks of a machine were guessed.
TEST(RankEnvironment, WrongSlurmLayoutsAreErrors) {
  Variables step = {{"SLURM_PROCID", "1"},
                    {"SLURM_NTASKS", "2"},
                    {"SLURM_LOCALID", "1"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_NNODES", "1"}};
  EXPECT_EQ(detect(step).local_world_size, 2);
  for (const char* text : {"two", "2(x3", "2(xy)", "x(x2)", "2,", ",2", "2x", "-1", "2(x3),one"}) {
    SCOPED_TRACE(text);
    step["SLURM_TASKS_PER_NODE"] = text;
    EXPECT_EQ(error_of(step), fmt::format("SLURM_TASKS_PER_NODE: found \"{}\", expected numbers of "
                                          "tasks, such as 2(x3),1",
                                          text));
  }
  step["SLURM_STEP_TASKS_PER_NODE"] = "2";  // of the step itself, so that the job's is not read
  EXPECT_EQ(detect(step).local_world_size, 2);
  step["SLURM_STEP_TASKS_PER_NODE"] = "4";
  EXPECT_THAT(error_of(step),
              HasSubstr("ranks of this machine: found 4, expected at most the world size (2)"));
}

// The first six of its 32 bits are the number of the cluster.
TEST(RankEnvironment, NumbersOfJobsInAFederation) {
  EXPECT_EQ(detect({{"SLURM_PROCID", "0"},
                    {"SLURM_NTASKS", "1"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_JOB_ID", "4026531841"}})
                .master_port,
            16841);
}

TEST(RankEnvironment, InconsistentVariablesAreErrors) {
  EXPECT_THAT(error_of({{"RANK", "1"}}),
              HasSubstr("WORLD_SIZE: found nothing although RANK is set"));
  EXPECT_THAT(error_of({{"WORLD_SIZE", "2"}}),
              HasSubstr("RANK: found nothing although WORLD_SIZE is set"));
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
  EXPECT_EQ(first_slurm_host("n[1-3]-ib,x1"), "n1-ib");
  EXPECT_EQ(first_slurm_host("r[2,4]n[03-05],x1"), "r2n03");
}

}  // namespace
}  // namespace strata::launch
