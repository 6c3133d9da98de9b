// Where the time of a step went, as one line and as values. Never: measures a activity itself
// (base/activity_timer.h does).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "strata/base/activity_timer.h"
#include "strata/base/json.h"

namespace strata::report {

// Sums over the steps since it was made.
class StepTime {
 public:
  // From its making on, on this thread.
  class Measure {
   public:
    Measure();
    double seconds() const;
    ActivitySeconds activities() const;

   private:
    std::chrono::steady_clock::time_point start_;
    ActivitySeconds before_;
  };
  // One step, on this thread.
  class Scope {
   public:
    explicit Scope(StepTime& sums) : sums_(sums) {}
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StepTime& sums_;
    Measure measure_;
  };
  // What happens during a step without being part of it, on the step's thread.
  class Pause {
   public:
    explicit Pause(StepTime& sums) : sums_(sums) {}
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    StepTime& sums_;
    Measure measure_;
  };

  void add(double seconds, const ActivitySeconds& activities);
  void leave_out(double seconds, const ActivitySeconds& activities);

  // "0.512 s a step: matrix products 78.1 %, attention 9.9 %, ..., other 1.2 %": most first; what
  // took less than a thousandth is left out. Empty without steps.
  std::string line() const;
  // Seconds of a step by kind, and "total". "other" is what no timer covers.
  Json values() const;

 private:
  int64_t steps_ = 0;
  double seconds_ = 0;
  ActivitySeconds activities_{};
};

}  // namespace strata::report
