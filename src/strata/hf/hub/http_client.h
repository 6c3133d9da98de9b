// One HTTP request at a time, through libcurl. Never knows what the bytes mean.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "strata/base/error.h"

namespace strata::hf {

// What another try may make good: a connection that was refused or broke, a busy server, bytes that
// came wrong. Any other IoError stays, however often it is tried.
class TransientError : public IoError {
 public:
  explicit TransientError(const std::string& message, std::chrono::seconds wait = {})
      : IoError(message), wait_(wait) {}
  // How long the server wants to be left alone; 0: it did not say.
  std::chrono::seconds wait() const { return wait_; }

 private:
  std::chrono::seconds wait_;
};

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case; of the last answer
  std::chrono::seconds retry_after{};          // its Retry-After, a date or seconds; 0: none
};

struct HttpRequest {
  std::string url;
  std::string token = {};  // sent as bearer, to this host only
  int64_t from = 0;        // bytes to leave out at the beginning (a range request)
  bool follows = true;     // redirections
  bool only_headers = false;
  // Gets the body of a successful answer; `from` and the status say where it belongs.
  std::function<void(const HttpResponse&, std::span<const char>)> body = {};
};

// Threads: one per object.
class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Any status is an answer. Errors: TransientError when none came: no connection, or broken in the
  // middle; IoError when none can come: no such host, no network, no certificate.
  HttpResponse send(const HttpRequest& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata::hf
