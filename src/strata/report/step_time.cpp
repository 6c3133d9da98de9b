#include "strata/report/step_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace strata::report {
namespace {

using Share = std::pair<std::string, double>;

// Every activity and what is left, in seconds.
std::vector<Share> shares_of(double seconds, const ActivitySeconds& activities) {
  std::vector<Share> shares;
  for (int w = 0; w < kNumActivities; ++w) {
    shares.emplace_back(name_of(static_cast<Activity>(w)), activities[static_cast<size_t>(w)]);
  }
  const double known = std::accumulate(activities.begin(), activities.end(), 0.0);
  shares.emplace_back("other", std::max(seconds - known, 0.0));
  return shares;
}

}  // namespace

StepTime::Measure::Measure()
    : start_(std::chrono::steady_clock::now()), before_(activity_seconds()) {}

double StepTime::Measure::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

ActivitySeconds StepTime::Measure::activities() const {
  ActivitySeconds activities = activity_seconds();
  for (size_t w = 0; w < activities.size(); ++w) activities[w] -= before_[w];
  return activities;
}

StepTime::Scope::~Scope() { sums_.add(measure_.seconds(), measure_.activities()); }

StepTime::Pause::~Pause() { sums_.leave_out(measure_.seconds(), measure_.activities()); }

void StepTime::add(double seconds, const ActivitySeconds& activities) {
  ++steps_;
  seconds_ += seconds;
  for (size_t w = 0; w < activities.size(); ++w) activities_[w] += activities[w];
}

void StepTime::leave_out(double seconds, const ActivitySeconds& activities) {
  seconds_ -= seconds;
  for (size_t w = 0; w < activities.size(); ++w) activities_[w] -= activities[w];
}

std::string StepTime::line() const {
  if (steps_ == 0) return "";
  std::vector<Share> shares = shares_of(seconds_, activities_);
  std::ranges::stable_sort(shares, std::greater{}, &Share::second);
  std::string text;
  for (const auto& [name, seconds] : shares) {
    if (seconds <= 0.001 * seconds_) continue;  // nor of no time at all
    text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", name, 100 * seconds / seconds_);
  }
  return fmt::format("{:.3g} s a step: {}", seconds_ / static_cast<double>(steps_), text);
}

Json StepTime::values() const {
  Json values = Json::object();
  const double steps = static_cast<double>(std::max<int64_t>(steps_, 1));
  values["total"] = seconds_ / steps;
  for (const auto& [name, seconds] : shares_of(seconds_, activities_))
    values[name] = seconds / steps;
  return values;
}

}  // namespace strata::report
