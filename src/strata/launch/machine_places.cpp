// Limits, file systems and network addresses, by system calls.
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <map>
#include <memory>

#include <fmt/format.h>

#include "strata/base/descriptor.h"
#include "strata/launch/machine_report.h"

namespace strata::launch {
namespace {

namespace fs = std::filesystem;

std::string file_system_name(uint64_t type) {
  // Magic numbers of linux/magic.h and of file systems outside the kernel.
  static const std::map<uint64_t, std::string> kNames = {
      {0x01021994, "tmpfs"},    {0xEF53, "ext4"},        {0x58465342, "xfs"},
      {0x794C7630, "overlay"},  {0x6969, "nfs"},         {0x0BD00BD0, "lustre"},
      {0x65735546, "fuse"},     {0x9123683E, "btrfs"},   {0x01021997, "9p"},
      {0x2FC12FC1, "zfs"},      {0x47504653, "gpfs"},    {0x19830326, "beegfs"},
      {0xFF534D42, "cifs"},     {0xFE534D42, "smb2"},    {0x00C36400, "ceph"},
      {0x858458F6, "ramfs"},    {0xF2F52010, "f2fs"},    {0x2011BAB0, "exfat"},
      {0x73717368, "squashfs"}, {0x6A656A63, "virtiofs"}};
  auto found = kNames.find(type);
  return found == kNames.end() ? fmt::format("type {:#x}", type) : found->second;
}

// The folder itself, or what exists of the way to it.
fs::path nearest_existing(fs::path path) {
  std::error_code error;
  while (!path.empty() && !fs::exists(path, error) && path != path.parent_path()) {
    path = path.parent_path();
  }
  return path.empty() ? "." : path;
}

std::string address_text(const sockaddr* address) {
  char text[NI_MAXHOST];
  const socklen_t size =
      address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  const int code = ::getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? text : "";
}

bool is_internet(const sockaddr* address) {
  return address && (address->sa_family == AF_INET || address->sa_family == AF_INET6);
}

std::vector<std::string> resolve_host(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(list, ::freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* entry = list; entry; entry = entry->ai_next) {
    const std::string text = is_internet(entry->ai_addr) ? address_text(entry->ai_addr) : "";
    if (!text.empty() && std::ranges::find(addresses, text) == addresses.end()) {
      addresses.push_back(text);
    }
  }
  return addresses;
}

}  // namespace

std::vector<Limit> read_limits() {
  struct Known {
    const char *name, *flag;
    int resource;
  };
  constexpr Known kKnown[] = {
      {"open files", "-n", RLIMIT_NOFILE},     {"processes", "-u", RLIMIT_NPROC},
      {"locked memory", "-l", RLIMIT_MEMLOCK}, {"address space", "-v", RLIMIT_AS},
      {"file size", "-f", RLIMIT_FSIZE},       {"stack size", "-s", RLIMIT_STACK},
      {"core file", "-c", RLIMIT_CORE},        {"processor time", "-t", RLIMIT_CPU}};
  std::vector<Limit> limits;
  for (const Known& known : kKnown) {
    rlimit values{};
    if (::getrlimit(static_cast<__rlimit_resource>(known.resource), &values) != 0) continue;
    auto number = [](rlim_t value) {
      return value == RLIM_INFINITY ? Limit::kUnlimited : static_cast<uint64_t>(value);
    };
    limits.push_back({known.name, known.flag, number(values.rlim_cur), number(values.rlim_max)});
  }
  return limits;
}

DiskFacts read_disk(const std::string& purpose, const fs::path& path) {
  DiskFacts disk{.purpose = purpose, .path = path};
  const fs::path place = nearest_existing(path);
  struct statfs facts {};
  if (::statfs(place.c_str(), &facts) != 0) return disk;
  disk.file_system = file_system_name(static_cast<uint32_t>(facts.f_type));
  disk.size_bytes = static_cast<uint64_t>(facts.f_blocks) * facts.f_bsize;
  disk.free_bytes = static_cast<uint64_t>(facts.f_bavail) * facts.f_bsize;
  disk.is_writable = ::access(place.c_str(), W_OK) == 0;
  // A file without a name: it leaves nothing behind.
  const Descriptor file(
      ::open(place.c_str(), O_TMPFILE | O_DIRECT | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  disk.has_direct_io = file.get() >= 0;
  return disk;
}

NetworkFacts read_network(const SystemRoots& roots) {
  NetworkFacts network;
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, HOST_NAME_MAX) == 0) network.host_name = name;
  network.host_addresses = resolve_host(network.host_name);
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) == 0) {
    const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(list, ::freeifaddrs);
    for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
      if (!is_internet(entry->ifa_addr)) continue;
      network.addresses.push_back({entry->ifa_name, address_text(entry->ifa_addr),
                                   (entry->ifa_flags & IFF_UP) != 0,
                                   (entry->ifa_flags & IFF_LOOPBACK) != 0});
    }
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(roots.sys / "class" / "infiniband", error)) {
    network.infiniband.push_back(entry.path().filename());
  }
  std::ranges::sort(network.infiniband);
  return network;
}

}  // namespace strata::launch
