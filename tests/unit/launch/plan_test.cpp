// Oracle: accelerate's static launch (ranks per machine, ports) by hand.
#include "strata/launch/plan.h"

#include <sched.h>

#include <cstdlib>
#include <map>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"

namespace strata::launch {
namespace {

using ::testing::HasSubstr;

std::map<std::string, std::string> environment_of(const LaunchPlan& plan) {
  return {plan.environment.begin(), plan.environment.end()};
}

LaunchPlan plan_of(const config::LaunchConfig& config, const MachineFacts& machine = {}) {
  return plan_launch(config, machine, {"true"}, 12.5);
}

TEST(LaunchPlan, OneRankPerDeviceUnlessToldOtherwise) {
  EXPECT_EQ(plan_of({}, {.num_devices = 4}).world_size, 4);
  EXPECT_EQ(plan_of({.cpu = true}, {.num_devices = 4}).world_size, 1);
  EXPECT_EQ(plan_of({.num_processes = 3}).world_size, 3);
  EXPECT_EQ(plan_of({}).world_size, 1);
}

TEST(LaunchPlan, DevicesAreCountedAsCudaReadsTheList) {
  struct Row {
    const char* visible;
    int devices;
  };
  const Row rows[] = {{"0,1", 2},    {"3", 1},     {" 0, 1 ", 2},     {"GPU-8932f937,GPU-1", 2},
                      {"", 0},       {"-1", 0},    {"NoDevFiles", 0}, {"MIG-1/2/3", 1},
                      {"0,-1,1", 1}, {"2,x,3", 1}, {"0,,1", 1},       {" ", 0}};
  const char* before = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::optional<std::string> kept =
      before ? std::optional<std::string>(before) : std::nullopt;
  for (const Row& row : rows) {
    ::setenv("CUDA_VISIBLE_DEVICES", row.visible, /*overwrite=*/1);
    EXPECT_EQ(inspect_machine({}).num_devices, row.devices) << '"' << row.visible << '"';
  }
  EXPECT_EQ(inspect_machine({.gpu_ids = "3,1"}).num_devices, 2) << "the setting is stronger";
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  if (kept) ::setenv("CUDA_VISIBLE_DEVICES", kept->c_str(), /*overwrite=*/1);
}

TEST(LaunchPlan, ThreadsAreSharedAndTheUsersChoiceKept) {
  const config::LaunchConfig two{.num_processes = 2};
  EXPECT_EQ(environment_of(plan_of(two, {.num_cores = 8})).at("OMP_NUM_THREADS"), "4");
  EXPECT_EQ(environment_of(plan_of(two, {.num_cores = 1})).at("OMP_NUM_THREADS"), "1");
  const MachineFacts chosen{.num_cores = 8, .has_omp_num_threads = true};
  EXPECT_FALSE(environment_of(plan_of(two, chosen)).contains("OMP_NUM_THREADS"));
}

TEST(LaunchPlan, SeveralMachinesNumberTheirRanks) {
  const config::LaunchConfig second{
      .num_processes = 8, .main_process_ip = "node1", .num_machines = 2, .machine_rank = 1};
  const LaunchPlan plan = plan_of(second);
  EXPECT_EQ(plan.first_rank, 4);
  EXPECT_EQ(plan.local_world_size, 4);
  EXPECT_EQ(environment_of(plan).at("MASTER_ADDR"), "node1");
  EXPECT_EQ(environment_of(plan).at("MASTER_PORT"), "29500");
  EXPECT_EQ(environment_of(plan).at("STRATA_LAUNCH_TIME"), "12.500");
}

std::string error_of(const config::LaunchConfig& config) {
  try {
    plan_of(config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(LaunchPlan, WrongNumbersAreErrors) {
  EXPECT_THAT(error_of({.num_processes = 4, .num_machines = 2}),
              HasSubstr("main_process_ip: found \"127.0.0.1\", which is each machine itself, with "
                        "num_machines 2"));
  for (const char* none : {"0.0.0.0", "::", "0"}) {
    EXPECT_THAT(error_of({.num_processes = 4, .main_process_ip = none, .num_machines = 2}),
                HasSubstr(fmt::format("main_process_ip: found \"{}\", at which one listens and "
                                      "which leads to no machine, with num_machines 2",
                                      none)));
    EXPECT_EQ(error_of({.num_processes = 4, .main_process_ip = none}), "no error");
  }
  EXPECT_THAT(error_of({.num_processes = 3, .main_process_ip = "a", .num_machines = 2}),
              HasSubstr("num_processes: found 3, expected a multiple of num_machines (2)"));
}

TEST(LaunchPlan, DevicesAreCheckedAndHandedOn) {
  EXPECT_EQ(
      environment_of(plan_of({.num_processes = 2, .gpu_ids = "3,1"})).at("CUDA_VISIBLE_DEVICES"),
      "3,1");
  EXPECT_EQ(error_of({.gpu_ids = "0,x"}),
            "gpu_ids: found \"x\" in \"0,x\", expected numbers of devices, such as 0,1");
  EXPECT_THAT(error_of({.gpu_ids = "0,,1"}), HasSubstr("found \"\" in \"0,,1\""));
  EXPECT_THAT(error_of({.gpu_ids = "1,2,1"}), HasSubstr("gpu_ids: found 1 twice"));
  EXPECT_THAT(error_of({.num_processes = 3, .gpu_ids = "0,1"}),
              HasSubstr("gpu_ids: found 2 devices for 3 ranks of this machine"));
  EXPECT_EQ(error_of({.num_processes = 3, .cpu = true, .gpu_ids = "0,1"}), "no error");
}

TEST(Tee, ReadsTorchrunsForms) {
  EXPECT_EQ(parse_tee("", 2), (std::vector<int>{0, 0}));
  EXPECT_EQ(parse_tee("3", 2), (std::vector<int>{3, 3}));
  EXPECT_EQ(parse_tee("0:1,2:3", 3), (std::vector<int>{1, 0, 3}));
  for (const char* wrong : {"4", "x", "0:", ":1", "1,2", "0:1;1:2", "0:9", "-1:1", "0:1,3"}) {
    EXPECT_THAT(error_of({.num_processes = 2, .log_dir = "x", .tee = wrong}),
                HasSubstr(fmt::format("tee: found \"{}\", expected 0 to 3", wrong)));
  }
  EXPECT_THAT(error_of({.num_processes = 2, .tee = "2:1"}),
              HasSubstr("tee: found \"2:1\" with 2 ranks on this machine, expected"));
}

TEST(LaunchPlan, ARecipesPortIsKeptFromOthers) {
  const LaunchPlan plan = plan_of({});
  ASSERT_TRUE(plan.port);
  EXPECT_EQ(environment_of(plan).at("MASTER_PORT"), std::to_string(plan.port->number));
  EXPECT_TRUE(is_bound_to(plan.port->socket.get(), plan.port->number));
  EXPECT_FALSE(reserve_port(plan.port->number, /*listens=*/true));
  EXPECT_EQ(error_of({.main_process_port = plan.port->number}),
            fmt::format("main_process_port: found {} in use, expected a free port; choose another, "
                        "or 0 for a free one",
                        plan.port->number));
  const config::LaunchConfig second{.num_processes = 2,
                                    .main_process_ip = "a",
                                    .main_process_port = plan.port->number,
                                    .num_machines = 2,
                                    .machine_rank = 1};
  EXPECT_FALSE(plan_of(second).port) << "it is the first machine's";
}

TEST(LaunchPlan, AnOwnProgramMayTakeItsPort) {
  const LaunchPlan plan = plan_of({.no_python = true});
  ASSERT_TRUE(plan.port);
  // Not given away as any free port, but to who asks for it.
  for (int i = 0; i < 50; ++i) EXPECT_NE(reserve_port(0, false)->number, plan.port->number);
  EXPECT_TRUE(reserve_port(plan.port->number, /*listens=*/true));
}

std::vector<std::vector<int>> shares(const std::vector<Core>& cores, int ranks) {
  return share_cores(cores, ranks);
}

TEST(CoreShares, NeighboursStayTogether) {
  // Two memory nodes of two cores with two threads each, numbered as Linux does.
  std::vector<Core> cores;
  for (int cpu = 0; cpu < 8; ++cpu) {
    cores.push_back({.cpu = cpu, .node = cpu % 4 / 2, .package = cpu % 4 / 2, .core = cpu % 2});
  }
  using Shares = std::vector<std::vector<int>>;
  EXPECT_EQ(shares(cores, 1), (Shares{{0, 4, 1, 5, 2, 6, 3, 7}}));
  EXPECT_EQ(shares(cores, 2), (Shares{{0, 4, 1, 5}, {2, 6, 3, 7}}));
  EXPECT_EQ(shares(cores, 4), (Shares{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(shares(cores, 3), (Shares{{0, 4}, {1, 5, 2}, {6, 3, 7}}));
}

TEST(CoreShares, MoreRanksThanCoresShareThem) {
  const std::vector<Core> two = {{.cpu = 3}, {.cpu = 9}};
  EXPECT_EQ(shares(two, 3), (std::vector<std::vector<int>>{{3}, {3}, {9}}));
  EXPECT_EQ(shares({}, 2), (std::vector<std::vector<int>>{{}, {}}));
}

TEST(CoreShares, OfThisMachineAreThoseAllowed) {
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  std::vector<int> expected, found;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) expected.push_back(cpu);
  }
  for (const Core& core : inspect_cores()) found.push_back(core.cpu);
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace strata::launch
