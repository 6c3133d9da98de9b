// Tokenizes a file and prints megabytes a second: tokenize_bench FOLDER FILE SECONDS [THREADS].
// The file's paragraphs (split at blank lines) are encoded one by one, round after round, until the
// seconds are over. The first round, with a tokenizer that has seen nothing, and the best one
// count. bench/text/run.py runs it beside `tokenizers`.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
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

// Tokens of all texts, `passes` times, which the threads share out among themselves.
size_t encode_all(const strata::text::Tokenizer& tokenizer, const std::vector<std::string>& texts,
                  int threads, size_t passes) {
  constexpr size_t kSome = 16;
  std::atomic<size_t> next = 0, tokens = 0;
  const auto work = [&] {
    size_t mine = 0;
    for (size_t begin = next.fetch_add(kSome); begin < passes * texts.size();
         begin = next.fetch_add(kSome)) {
      const size_t end = std::min(begin + kSome, passes * texts.size());
      for (size_t i = begin; i < end; ++i) {
        mine += tokenizer.encode(texts[i % texts.size()]).size();
      }
    }
    tokens += mine;
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  others.clear();
  return tokens;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const auto tokenizer = strata::text::Tokenizer::load(argv[1]);
  const std::vector<std::string> texts = paragraphs(strata::read_file(argv[2]));
  const int threads = argc > 4 ? std::atoi(argv[4]) : 1;
  size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  // Later rounds are long enough for the start of a thread not to count.
  constexpr size_t kPasses = 16;
  double first = 0, best = 1e9;
  size_t tokens = 0;
  while (std::chrono::duration<double>(Clock::now() - begin).count() < std::atof(argv[3])) {
    const auto start = Clock::now();
    const size_t passes = first == 0 ? 1 : kPasses;
    tokens = encode_all(*tokenizer, texts, threads, passes) / passes;
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (first == 0) first = seconds;
    best = std::min(best, seconds / static_cast<double>(passes));
  }
  const double megabytes = static_cast<double>(bytes) / 1e6;
  std::printf("{\"mb_per_s\": %.3f, \"first_mb_per_s\": %.3f, \"tokens\": %zu}\n", megabytes / best,
              megabytes / first, tokens);
}
