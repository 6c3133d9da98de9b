// A handler that reads /proc/self/maps. It may call only what is async-signal-safe.
#include "strata/cli/bus_error.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace strata::cli {
namespace {

// A handler reaches nothing but static storage.
std::string prefix;

void write_text(std::string_view text) {
  // Nothing can be done about a message that finds no reader.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

uint64_t take_hex(std::string_view& text) {
  uint64_t value = 0;
  while (!text.empty()) {
    const char c = text.front();
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) break;
    value = value * 16 + static_cast<uint64_t>(digit);
    text.remove_prefix(1);
  }
  return value;
}

// Of "7f00-7f10 r--s 00000000 08:01 42   /path" where the range has the address: the path; else
// nothing.
std::string_view path_of(std::string_view line, uint64_t address) {
  const uint64_t begin = take_hex(line);
  if (line.empty()) return {};
  line.remove_prefix(1);  // the dash
  const uint64_t end = take_hex(line);
  if (address < begin || address >= end) return {};
  const size_t at = line.find('/');
  return at == line.npos ? std::string_view("memory") : line.substr(at);
}

// One reader at a time: the first one ends the program.
std::array<char, 8192> line_buffer;

std::string_view find_path(uint64_t address) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  size_t size = 0;
  while (maps >= 0) {
    const ssize_t got = ::read(maps, line_buffer.data() + size, line_buffer.size() - size);
    if (got <= 0) break;
    size += static_cast<size_t>(got);
    std::string_view rest(line_buffer.data(), size);
    for (size_t end; (end = rest.find('\n')) != rest.npos; rest.remove_prefix(end + 1)) {
      const std::string_view path = path_of(rest.substr(0, end), address);
      if (!path.empty()) return path;  // the descriptor ends with the program
    }
    if (rest.size() == line_buffer.size()) break;  // no path is that long
    std::char_traits<char>::move(line_buffer.data(), rest.data(), rest.size());
    size = rest.size();
  }
  return "a mapped file";
}

// Its action is the default one again: the same access then ends the program.
void tell_file(int, siginfo_t* info, void*) {
  write_text(prefix);
  write_text(find_path(reinterpret_cast<uint64_t>(info->si_addr)));
  write_text(
      ": found that it can no longer be read, expected it to stay as it was while it is in use; it "
      "was truncated or its disk failed: check it, then continue from the newest checkpoint\n");
}

}  // namespace

void name_file_of_bus_error(std::string label) {
  prefix = std::move(label) + "error: ";
  struct sigaction action = {};
  action.sa_sigaction = tell_file;
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace strata::cli
