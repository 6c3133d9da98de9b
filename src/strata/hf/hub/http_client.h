// One HTTP request at a time, through libcurl. Never knows what the bytes mean.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

namespace strata::hf {

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case; of the last answer
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

  // Any status is an answer. Errors: IoError when none came: no connection, or broken in the
  // middle.
  HttpResponse send(const HttpRequest& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata::hf
