// Levelled messages. The library never prints: it hands lines to the sink that its caller gave.
// Never: global state, formatting of progress bars (report/), or the choice of a destination
// (cli/).
#pragma once

#include <functional>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace strata {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// The name in lower case: "debug", "info", "warning", "error".
constexpr const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "unknown";
}

using LogSink = std::function<void(LogLevel, const std::string&)>;

// A cheap value to copy. A default-constructed one is silent.
// Threads: as safe as its sink.
class Logger {
 public:
  Logger() = default;
  explicit Logger(LogSink sink, LogLevel minimum = LogLevel::kInfo)
      : sink_(std::move(sink)), minimum_(minimum) {}

  bool is_enabled(LogLevel level) const { return sink_ && level >= minimum_; }
  void log(LogLevel level, const std::string& message) const {
    if (is_enabled(level)) sink_(level, message);
  }

  template <typename... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kDebug, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kInfo, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kWarning, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kError, format, std::forward<Args>(args)...);
  }

 private:
  template <typename... Args>
  void write(LogLevel level, fmt::format_string<Args...> format, Args&&... args) const {
    if (is_enabled(level)) sink_(level, fmt::format(format, std::forward<Args>(args)...));
  }

  LogSink sink_;
  LogLevel minimum_ = LogLevel::kInfo;
};

}  // namespace strata
