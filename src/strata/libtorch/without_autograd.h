// Scopes of arithmetic that autograd does not follow, nor keep book of: a view costs a third of
// what it costs where gradients are only off. A step of a small model is made of thousands.
// Never: arithmetic.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace strata {

// Until the end of the scope nothing is recorded. What autograd checks on the way is not checked
// either: a tensor that a graph keeps may be written here and the graph does not notice, and a
// view is to it a tensor of its own.
class WithoutAutograd {
 public:
  WithoutAutograd() : mode_(false) {}
  WithoutAutograd(const WithoutAutograd&) = delete;
  WithoutAutograd& operator=(const WithoutAutograd&) = delete;

 private:
  at::AutoGradMode mode_;
  at::AutoDispatchBelowADInplaceOrView below_;
};

// Autograd all the same, inside such a scope: for derivatives that a function takes by itself.
class WithAutograd {
 public:
  WithAutograd() : mode_(true), before_(c10::impl::tls_local_dispatch_key_set()) {
    c10::impl::LocalDispatchKeySet keys = before_;
    keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    c10::impl::_force_tls_local_dispatch_key_set(keys);
  }
  ~WithAutograd() { c10::impl::_force_tls_local_dispatch_key_set(before_); }
  WithAutograd(const WithAutograd&) = delete;
  WithAutograd& operator=(const WithAutograd&) = delete;

 private:
  at::AutoGradMode mode_;
  c10::impl::LocalDispatchKeySet before_;
};

}  // namespace strata
