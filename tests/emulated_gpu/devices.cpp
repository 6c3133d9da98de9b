#include "devices.h"

#include <atomic>
#include <cstdlib>
#include <sstream>
#include <string>

#include "memory.h"

namespace emulated_gpu {
namespace {

int count_of_machine() {
  const char* wanted = std::getenv("EMULATED_GPUS");
  return wanted == nullptr ? 1 : std::atoi(wanted);
}

std::atomic<int> opened{-1};

}  // namespace

const std::vector<int>& devices() {
  static const std::vector<int> seen = [] {
    const int count = count_of_machine();
    std::vector<int> numbers;
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    if (visible == nullptr) {
      for (int i = 0; i < count; ++i) numbers.push_back(i);
      return numbers;
    }
    std::istringstream list(visible);
    for (std::string word; std::getline(list, word, ',');) {
      char* end = nullptr;
      const long number = std::strtol(word.c_str(), &end, 10);
      if (end == word.c_str() || number < 0 || number >= count) break;
      numbers.push_back(static_cast<int>(number));
    }
    return numbers;
  }();
  return seen;
}

bool is_driver_old() {
  static const bool result = count_of_machine() == 0;
  return result;
}

void open_device(int device) {
  int before = -1;
  if (opened.compare_exchange_strong(before, device) || before == device) return;
  fail("a call opens GPU %d in a process that computes on GPU %d", device, before);
}

int opened_device() { return opened; }

}  // namespace emulated_gpu
