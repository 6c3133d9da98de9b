#include "strata/report/live_line.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "strata/base/counted.h"
#include "strata/base/visible_text.h"

namespace strata::report {

LiveLine::LiveLine(Sink sink, std::function<int()> columns, bool shows)
    : sink_(std::move(sink)), columns_(std::move(columns)), shows_(shows) {}

LiveLine::~LiveLine() { clear(); }

void LiveLine::clear() {
  if (!shown_.empty()) sink_("\r\x1b[K");
  shown_.clear();
}

void LiveLine::show(std::string text) {
  if (!shows_ || text.empty()) return;
  text = visible(text);
  text.resize(std::min<size_t>(text.size(), static_cast<size_t>(std::max(columns_(), 2)) - 1));
  if (text == shown_) return;
  const auto now = std::chrono::steady_clock::now();
  if (!shown_.empty() && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  shown_ = std::move(text);
  sink_("\r" + shown_ + "\x1b[K");
}

PeriodicLine::PeriodicLine(Sink sink, std::chrono::seconds period, Clock clock)
    : sink_(std::move(sink)), period_(period), clock_(std::move(clock)), last_(clock_()) {}

void PeriodicLine::show(const std::string& text) {
  const auto now = clock_();
  if (text.empty() || now - last_ < period_) return;
  last_ = now;
  sink_(visible(text) + "\n");
}

void PeriodicLine::restart() { last_ = clock_(); }

std::string download_text(const std::string& name, int64_t done, int64_t all) {
  const auto megabytes = [](int64_t bytes) {
    return fmt::format("{:.1f}", static_cast<double>(bytes) / 1e6);
  };
  if (all == 0) return fmt::format("downloading {}: {} MB", name, megabytes(done));
  return fmt::format("downloading {}: {} of {} MB ({} %)", name, megabytes(done), megabytes(all),
                     100 * done / all);
}

std::string preparation_text(const std::string& subject, int64_t rows, double part, int64_t least) {
  if (rows < least) return "";
  return fmt::format("preparing {}: {} ({:.0f} %)", subject, counted(rows, "row"), 100 * part);
}

}  // namespace strata::report
