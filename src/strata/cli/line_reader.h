// Lines of standard input as a conversation needs them: a signal ends the wait. Never: parsing.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

namespace strata::cli {

enum class LineEnd { kLine, kEndOfInput, kInterrupted };

// Requires: nobody else reads standard input.
class LineReader {
 public:
  // `interrupted`: set by the handler of SIGINT; must outlive the reader. Null: no handler.
  explicit LineReader(const std::atomic<bool>* interrupted = nullptr) : interrupted_(interrupted) {}

  // The next line without its end ("\n" or "\r\n"). kInterrupted: a signal handler ran; what was
  // typed so far is gone. IoError when reading fails.
  LineEnd read(std::string& line);

 private:
  bool wait_for_input() const;

  const std::atomic<bool>* interrupted_;
  std::string buffer_;  // read and not yet handed out
};

// FormatError "WHERE: found a byte 0xff that is not UTF-8 ..." for other bytes.
void require_utf8(std::string_view line, std::string_view where);

}  // namespace strata::cli
