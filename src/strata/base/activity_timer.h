// Where the seconds of a thread go: each is charged to one kind of work. Owns: the sums of the
// threads. Never: prints them, or times work that goes on in other threads.
#pragma once

#include <array>
#include <chrono>

namespace strata {

enum class Activity {
  kMatrixProducts,
  kAttention,
  kElementWise,  // norms, rotary embedding, activation functions, dropout, embeddings
  kLoss,         // of given logits; their products are matrix products
  kCollectives,  // calling and waiting
  kUpdate,       // gradient norm and update rule
  kFiles,        // waiting for what is stored in files
  kData,         // batches from prepared data
};
inline constexpr int kNumActivities = 8;

// "matrix products".
const char* name_of(Activity activity);

using ActivitySeconds = std::array<double, kNumActivities>;

// Of this thread since it started, without what is being timed now.
const ActivitySeconds& activity_seconds();

// Charges the time from here to the end of the scope. An inner timer interrupts the outer one, so
// that no second is counted twice. Costs two readings of the clock.
class ActivityTimer {
 public:
  explicit ActivityTimer(Activity activity);
  ~ActivityTimer();
  ActivityTimer(const ActivityTimer&) = delete;
  ActivityTimer& operator=(const ActivityTimer&) = delete;

 private:
  int outer_;
};

}  // namespace strata
