// Oracle: made-up files of the kernel with known numbers, and findings stated by hand.
#include "strata/launch/machine_report.h"

#include <gtest/gtest.h>

#include "../temporary_folder.h"

namespace strata::launch {
namespace {

class KernelFiles : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) { folder_.put(name, text); }
  SystemRoots roots() const { return {folder_ / "proc", folder_ / "sys"}; }

  testing::TemporaryFolder folder_;
};

TEST_F(KernelFiles, Processor) {
  write("proc/cpuinfo",
        "processor\t: 0\nmodel name\t: A Processor @ 2 GHz\nflags\t\t: fpu avx2 avx512_bf16 ht\n"
        "processor\t: 1\nmodel name\t: other\n");
  write("sys/devices/system/cpu/cpu0/x", "");
  write("sys/devices/system/cpu/cpu1/x", "");
  write("sys/devices/system/cpu/cpufreq/x", "");
  write("sys/devices/system/node/node0/x", "");
  const CpuFacts cpu = read_cpu(roots());
  EXPECT_EQ(cpu.model, "A Processor @ 2 GHz");
  EXPECT_EQ(cpu.features, (std::vector<std::string>{"avx2", "avx512_bf16"}));
  EXPECT_TRUE(cpu.has_bf16);
  EXPECT_EQ(cpu.num_online, 2);
  EXPECT_EQ(cpu.num_memory_nodes, 1);
  EXPECT_GT(cpu.num_usable, 0);
  EXPECT_EQ(cpu.quota_cores, 0);
}

TEST_F(KernelFiles, NothingReadable) {
  EXPECT_EQ(read_cpu(roots()).model, "");
  EXPECT_EQ(read_memory(roots()).total_bytes, 0u);
  EXPECT_TRUE(read_accelerators(roots()).empty());
}

TEST_F(KernelFiles, LimitsOfVersion2AreTheSmallestOnTheWayUp) {
  write("proc/meminfo", "MemTotal:  8 kB\nMemAvailable: 6 kB\nSwapTotal: 0 kB\n");
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/memory.max", "4096\n");
  write("sys/fs/cgroup/a/memory.current", "1024\n");
  write("sys/fs/cgroup/memory.max", "8192\n");
  // The tightest is not the smallest: what files keep in memory can be dropped.
  write("sys/fs/cgroup/a/memory.stat", "anon 24\nfile 1000\ninactive_file 700\nactive_file 300\n");
  write("sys/fs/cgroup/memory.current", "7000\n");
  write("sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/a/cpu.max", "max 100000\n");
  const MemoryFacts memory = read_memory(roots());
  EXPECT_EQ(memory.total_bytes, 8192u);
  EXPECT_EQ(memory.available_bytes, 6144u);
  EXPECT_EQ(memory.limit_bytes, 4096u);
  EXPECT_EQ(memory.limit_used_bytes, 1024u);
  EXPECT_EQ(memory.room_bytes, 8192u - 7000u);
  EXPECT_EQ(memory.room_folder.filename(), "");
  EXPECT_DOUBLE_EQ(read_cpu(roots()).quota_cores, 1.5);
}

// Files that were read twice, such as a model's, are active; shmem is no file's, nor are locked
// pages.
TEST_F(KernelFiles, WhatTheKernelTakesBackIsRoom) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "10000\n");
  write("sys/fs/cgroup/memory.current", "9000\n");
  write("sys/fs/cgroup/memory.stat",
        "anon 1000\nfile 7500\nkernel_stack 16\nshmem 500\nfile_mapped 6000\ninactive_anon 1500\n"
        "active_anon 0\ninactive_file 2000\nactive_file 4000\nunevictable 1000\n"
        "slab_reclaimable 300\nslab_unreclaimable 100\nslab 400\n");
  EXPECT_EQ(read_memory(roots()).room_bytes, 10000u - 9000u + 2000u + 4000u + 300u);
  // More than is in use cannot come back: the two files are not read at one moment.
  write("sys/fs/cgroup/memory.stat", "inactive_file 20000\n");
  EXPECT_EQ(read_memory(roots()).room_bytes, 10000u);
}

TEST_F(KernelFiles, LimitsOfVersion1) {
  write("proc/self/cgroup", "9:name=systemd:/\n4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4096\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "4000\n");
  write("sys/fs/cgroup/memory/job/memory.stat",
        "inactive_file 7\nactive_file 5\ntotal_inactive_file 600\n"
        "total_active_file 400\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "200000\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read_memory(roots()).limit_bytes, 4096u);
  EXPECT_EQ(read_memory(roots()).limit_used_bytes, 4000u);
  EXPECT_EQ(read_memory(roots()).room_bytes, 1096u);
  EXPECT_EQ(read_memory(roots()).room_folder.filename(), "job");
  EXPECT_DOUBLE_EQ(read_cpu(roots()).quota_cores, 2);
}

TEST_F(KernelFiles, Accelerators) {
  write("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t A Device\nIRQ: 5\n");
  EXPECT_EQ(read_accelerators(roots()), std::vector<std::string>{"A Device"});
  EXPECT_EQ(read_accelerator_ids(roots()), std::vector<std::string>{});
  write("proc/driver/nvidia/gpus/0000:01:00.0/information", "GPU UUID: \t GPU-12ab\n");
  EXPECT_EQ(read_accelerator_ids(roots()), std::vector<std::string>{"GPU-12ab"});
  // One that no program has opened yet.
  write("proc/driver/nvidia/gpus/0000:02:00.0/information", "GPU UUID: \t GPU-????????-\?\?\?\?\n");
  EXPECT_EQ(read_accelerator_ids(roots()), std::vector<std::string>{});
}

TEST(Places, ThisMachine) {
  const testing::TemporaryFolder folder;
  const DiskFacts disk = read_disk("x", folder.path() / "not" / "there");
  EXPECT_GT(disk.size_bytes, 0u);
  EXPECT_GE(disk.size_bytes, disk.free_bytes);
  EXPECT_TRUE(disk.is_writable);
  EXPECT_FALSE(disk.file_system.empty());
  EXPECT_FALSE(read_network({}).host_name.empty());
  EXPECT_GE(read_limits().size(), 5u);
}

std::vector<Finding> judge_for_processors(const MachineReport& report) {
  return judge(report, /*uses_accelerators=*/false);
}

// A machine on which nothing is wrong.
MachineReport good_machine() {
  MachineReport report;
  report.system = "Linux 6.1 x86_64";
  report.cpu.num_usable = 8;
  report.cpu.features = {"avx2"};
  report.cpu.has_bf16 = true;
  report.memory = {.total_bytes = 64ull << 30, .available_bytes = 32ull << 30};
  report.limits = {{"open files", "-n", 4096, 4096}, {"file size", "-f"}};
  report.disks = {{"working folder", "/w", "ext4", 1ull << 40, 1ull << 39, true, true},
                  {"shared memory", "/dev/shm", "tmpfs", 1ull << 34, 1ull << 34, true, false}};
  report.network = {"host", {"10.0.0.1"}, {{"eth0", "10.0.0.1", true, false}}, {}};
  return report;
}

TEST(Findings, NoneOnAGoodMachine) { EXPECT_TRUE(judge_for_processors(good_machine()).empty()); }

TEST(Findings, EachOfItsCause) {
  struct Row {
    void (*change)(MachineReport&);
    Severity severity;
    std::string text;
  };
  const Row rows[] = {
      {[](MachineReport& r) { r.cpu.features.clear(); }, Severity::kWarning, "found no avx2"},
      {[](MachineReport& r) { r.cpu.has_bf16 = false; }, Severity::kNote, "found no avx512_bf16"},
      {[](MachineReport& r) { r.cpu.quota_cores = 2.5; }, Severity::kWarning,
       "found 2.5 cores for this container of 8 that it sees"},
      {[](MachineReport& r) { r.environment["OMP_NUM_THREADS"] = "9"; }, Severity::kWarning,
       "found 9 with 8 usable cores"},
      {[](MachineReport& r) { r.memory.limit_bytes = 4ull << 30; }, Severity::kNote,
       "found a limit of 4.0 GiB for this container (host: 64.0 GiB)"},
      {[](MachineReport& r) { r.memory.available_bytes = 512 << 20; }, Severity::kWarning,
       "found 512 MiB free"},
      {[](MachineReport& r) {
         r.accelerators = {"A", "B"};
       },
       Severity::kWarning, "accelerators: found 2, which this build does not use"},
      {[](MachineReport& r) {
         r.limits[0] = {"open files", "-n", 256, 4096};
       },
       Severity::kWarning,
       "found a limit of 256, expected at least 1024 (every rank keeps its model files and "
       "connections open); run ulimit -n 1024 before the start"},
      {[](MachineReport& r) {
         r.limits[1] = {"file size", "-f", 100, 100};
       },
       Severity::kWarning,
       "expected unlimited (checkpoints are large files); ask the administrator"},
      {[](MachineReport& r) { r.disks[0].free_bytes = 1000; }, Severity::kError,
       "working folder (/w): found 0 MiB free"},
      {[](MachineReport& r) { r.disks[0].is_writable = false; }, Severity::kError,
       "found a folder that this user cannot write"},
      {[](MachineReport& r) { r.disks[0].file_system = "tmpfs"; }, Severity::kWarning,
       "found a file system in memory"},
      {[](MachineReport& r) { r.disks[1].size_bytes = 64 << 20; }, Severity::kNote,
       "found 64 MiB, which is small for NCCL"},
      {[](MachineReport& r) { r.network.host_addresses.clear(); }, Severity::kWarning,
       "found a host name (host) that does not resolve"},
      {[](MachineReport& r) { r.network.host_addresses = {"127.0.1.1"}; }, Severity::kNote,
       "host resolves to 127.0.1.1 here"},
      {[](MachineReport& r) { r.network.addresses.clear(); }, Severity::kNote,
       "found no address except loopback"},
      {[](MachineReport& r) { r.environment["GLOO_SOCKET_IFNAME"] = "ib0"; }, Severity::kError,
       "GLOO_SOCKET_IFNAME: found ib0, expected an interface with an address (eth0)"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.text);
    MachineReport report = good_machine();
    row.change(report);
    const std::vector<Finding> findings = judge_for_processors(report);
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_EQ(findings[0].severity, row.severity);
    EXPECT_NE(findings[0].text.find(row.text), std::string::npos) << findings[0].text;
  }
}

TEST(Findings, AcceleratorsOfABuildThatUsesThemAreNone) {
  MachineReport report = good_machine();
  report.accelerators = {"A", "B"};
  EXPECT_TRUE(judge(report, /*uses_accelerators=*/true).empty());
}

TEST(Findings, WorstFirst) {
  MachineReport report = good_machine();
  report.cpu.has_bf16 = false;
  report.disks[0].is_writable = false;
  report.accelerators = {"A"};
  std::vector<Severity> found;
  for (const Finding& finding : judge_for_processors(report)) found.push_back(finding.severity);
  EXPECT_EQ(found, (std::vector{Severity::kError, Severity::kWarning, Severity::kNote}));
}

}  // namespace
}  // namespace strata::launch
