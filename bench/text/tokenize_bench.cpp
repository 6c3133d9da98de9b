// Tokenizes a file on one thread and prints megabytes a second: tokenize_bench FOLDER FILE SECONDS.
// The file's paragraphs (split at blank lines) are encoded one by one, round after round, until the
// seconds are over; the best round counts. bench/text/run.py runs it beside `tokenizers`.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "strata/base/file.h"
#include "strata/text/tokenizer.h"

namespace {

std::vector<std::string> paragraphs(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find("\n\n", begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 2;
  }
  return parts;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const auto tokenizer = strata::text::Tokenizer::load(argv[1]);
  const std::vector<std::string> texts = paragraphs(strata::read_file(argv[2]));
  size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  double best = 1e9;
  size_t tokens = 0;
  while (std::chrono::duration<double>(Clock::now() - begin).count() < std::atof(argv[3])) {
    const auto start = Clock::now();
    tokens = 0;
    for (const std::string& text : texts) tokens += tokenizer->encode(text).size();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::printf("{\"mb_per_s\": %.3f, \"tokens\": %zu}\n", static_cast<double>(bytes) / 1e6 / best,
              tokens);
}
