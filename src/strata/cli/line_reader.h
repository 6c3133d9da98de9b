// Lines of standard input as a conversation needs them: a signal ends the wait. Never: parsing.
#pragma once

#include <string>

namespace strata::cli {

enum class LineEnd { kLine, kEndOfInput, kInterrupted };

// Requires: nobody else reads standard input.
class LineReader {
 public:
  // The next line without its end ("\n" or "\r\n"). kInterrupted: a signal handler ran; what was
  // typed so far is gone. IoError when reading fails.
  LineEnd read(std::string& line);

 private:
  std::string buffer_;  // read and not yet handed out
};

}  // namespace strata::cli
