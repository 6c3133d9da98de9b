// Whether a sanitizer watches this build. gcc and clang say so by names of their own.
// Owns: STRATA_SANITIZED, 0 or 1. Never: what a sanitizer is told.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STRATA_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define STRATA_SANITIZED 1
#endif
#endif
#ifndef STRATA_SANITIZED
#define STRATA_SANITIZED 0
#endif
