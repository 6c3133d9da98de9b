// Oracle: accelerate's static launch (ranks per machine, ports) by hand.
#include "strata/launch/plan.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>

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

TEST(LaunchPlan, WrongNumbersAreErrors) {
  auto error_of = [](const config::LaunchConfig& config) -> std::string {
    try {
      plan_of(config);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of({.num_processes = 4, .num_machines = 2}),
              HasSubstr("main_process_ip: found \"127.0.0.1\" with num_machines 2"));
  EXPECT_THAT(error_of({.num_processes = 3, .main_process_ip = "a", .num_machines = 2}),
              HasSubstr("num_processes: found 3, expected a multiple of num_machines (2)"));
}

TEST(LaunchPlan, APortInUseIsAnError) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(socket, 1), 0);
  socklen_t size = sizeof(address);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  const int port = ntohs(address.sin_port);
  EXPECT_FALSE(is_port_free(port));
  EXPECT_THROW(plan_of({.main_process_port = port}), ConfigError);
  ::close(socket);
  const int found = free_port();
  EXPECT_GT(found, 0);
  EXPECT_TRUE(is_port_free(found));
}

}  // namespace
}  // namespace strata::launch
