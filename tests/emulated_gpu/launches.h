// Libraries that run on the host up to the kernels that they launch. Owns: whether those are left
// out. Threads: of the thread that made it alone.
#pragma once

namespace emulated_gpu {

// While it lives, kernels that libraries launch are left out, and what they would have written may
// be read.
class LaunchesLeftOut {
 public:
  LaunchesLeftOut();
  ~LaunchesLeftOut();
  LaunchesLeftOut(const LaunchesLeftOut&) = delete;
  LaunchesLeftOut& operator=(const LaunchesLeftOut&) = delete;

  int count() const { return count_; }

  static bool is_active();
  // One more; false where it may not be left out.
  static bool leave_out();

 private:
  LaunchesLeftOut* outer_;
  int count_ = 0;
};

}  // namespace emulated_gpu
