// The error types of the program. The library throws them; only cli/ catches them for good.
// Every message reads: "subject: found X, expected Y; do Z", one line, lower case, with the values.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace strata {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, int exit_code = 1)
      : std::runtime_error(message), exit_code_(exit_code) {}
  // What the process exits with when nothing handles the error.
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// Settings and flags that cannot be used; found before anything is allocated. Exit code 2.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& message) : Error(message, 2) {}
  template <typename... Args>
  explicit ConfigError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...), 2) {}
};

#define STRATA_DEFINE_ERROR(Name)                                     \
  class Name : public Error {                                         \
   public:                                                            \
    explicit Name(const std::string& message) : Error(message) {}     \
    template <typename... Args>                                       \
    explicit Name(fmt::format_string<Args...> format, Args&&... args) \
        : Error(fmt::format(format, std::forward<Args>(args)...)) {}  \
  }

STRATA_DEFINE_ERROR(FormatError);       // a file's content breaks its format
STRATA_DEFINE_ERROR(IoError);           // the operating system refused (missing, full, denied)
STRATA_DEFINE_ERROR(CommError);         // a collective failed or a peer is gone
STRATA_DEFINE_ERROR(OutOfMemoryError);  // the memory does not suffice
STRATA_DEFINE_ERROR(InternalError);     // a bug of this program
#undef STRATA_DEFINE_ERROR

}  // namespace strata
