// Drives a fuzz target where libFuzzer is absent: FUZZER CORPUS [SECONDS] [SEED]. Every file of the
// corpus, every truncation of the small ones, then random mutations. Says which input it ran when
// the target crashes. Never: looks at coverage.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "target.h"

namespace {

namespace fs = std::filesystem;
using Input = std::vector<uint8_t>;

Input current;

void run(const Input& input) {
  current = input;
  LLVMFuzzerTestOneInput(current.data(), current.size());
}

void save_current() {
  if (std::FILE* file = std::fopen("crash-input", "wb")) {
    std::fwrite(current.data(), 1, current.size(), file);
    std::fclose(file);
    std::fputs("fuzz: the input is in the file crash-input\n", stderr);
  }
}

Input read_input(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void mutate(Input& input, const std::vector<Input>& corpus, std::mt19937_64& random) {
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % (limit + 1)); };
  constexpr uint8_t kEdges[] = {0, 1, 0x7f, 0x80, 0xff, '"', '{', '[', '.', '('};
  for (size_t i = below(4) + 1; i > 0 && !input.empty(); --i) {
    const size_t at = below(input.size() - 1);
    switch (random() % 6) {
      case 0:
        input[at] ^= static_cast<uint8_t>(1U << (random() % 8));
        break;
      case 1:
        input[at] = kEdges[random() % std::size(kEdges)];
        break;
      case 2:  // a number that is far off
        for (size_t k = at; k < std::min(input.size(), at + 8); ++k) {
          input[k] = random() % 2 ? 0xff : 0;
        }
        break;
      case 3:
        input.erase(
            input.begin() + static_cast<std::ptrdiff_t>(at),
            input.begin() + static_cast<std::ptrdiff_t>(std::min(input.size(), at + below(16))));
        break;
      case 4: {  // a part of itself once more
        const Input part(
            input.begin() + static_cast<std::ptrdiff_t>(at),
            input.begin() + static_cast<std::ptrdiff_t>(std::min(input.size(), at + below(64))));
        const auto place = static_cast<std::ptrdiff_t>(below(input.size()));
        input.insert(input.begin() + place, part.begin(), part.end());
        break;
      }
      default: {  // a part of another
        const Input& other = corpus[random() % corpus.size()];
        if (other.empty()) break;
        const size_t from = below(other.size() - 1);
        const size_t count = std::min({below(32), other.size() - from, input.size() - at});
        std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(from), count,
                    input.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
  }
}

}  // namespace

extern "C" void __asan_on_error();
extern "C" void __asan_on_error() { save_current(); }

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: FUZZER CORPUS [SECONDS] [SEED]\n", stderr);
    return 2;
  }
  for (int number : {SIGILL, SIGTRAP, SIGABRT}) {
    ::signal(number, [](int caught) {
      save_current();
      std::_Exit(128 + caught);
    });
  }
  std::vector<Input> corpus;
  for (const auto& entry : fs::directory_iterator(argv[1])) {
    if (entry.is_regular_file()) corpus.push_back(read_input(entry.path()));
  }
  if (corpus.empty()) {
    std::fputs("fuzz: found no corpus, expected files to start from\n", stderr);
    return 1;
  }
  size_t runs = 0;
  for (const Input& input : corpus) {
    run(input);
    for (size_t size = 0; size < std::min<size_t>(input.size(), 2048); ++size, ++runs) {
      run({input.begin(), input.begin() + static_cast<std::ptrdiff_t>(size)});
    }
  }
  std::mt19937_64 random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
  const double seconds = argc > 2 ? std::strtod(argv[2], nullptr) : 10;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (; std::chrono::steady_clock::now() < end; ++runs) {
    Input input = corpus[random() % corpus.size()];
    mutate(input, corpus, random);
    run(input);
  }
  std::printf("%zu inputs from a corpus of %zu, no crash\n", runs, corpus.size());
  return 0;
}
