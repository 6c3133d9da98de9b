#include "strata/hf/hub/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <mutex>

namespace strata::hf {
namespace {

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin));
}

// What the callbacks of one transfer share.
struct Transfer {
  const HttpRequest* request;
  HttpResponse response;
  std::exception_ptr error;  // of the receiver; must not pass through C
};

// What a callback of curl answers: all of `size`, or nothing, which ends the transfer.
template <typename Take>
size_t taken(Transfer& transfer, size_t size, const Take& take) {
  try {
    take();
    return size;
  } catch (...) {
    transfer.error = std::current_exception();
    return 0;
  }
}

void read_header(std::string_view line, HttpResponse& response) {
  if (line.starts_with("HTTP/")) {
    response.headers.clear();
    const size_t space = line.find(' ');
    response.status =
        space == std::string_view::npos ? 0 : std::atoi(std::string(line.substr(space)).c_str());
    return;
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  std::string name(line.substr(0, colon));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  response.headers[name] = trimmed(line.substr(colon + 1));
}

size_t take_header(char* data, size_t, size_t size, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  return taken(transfer, size, [&] { read_header({data, size}, transfer.response); });
}

size_t take_body(char* data, size_t, size_t size, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const int status = transfer.response.status;
  if (!transfer.request->body || (status != 200 && status != 206)) return size;
  return taken(transfer, size, [&] { transfer.request->body(transfer.response, {data, size}); });
}

bool may_get_better(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return true;
    default:
      return false;
  }
}

[[noreturn]] void throw_no_answer(const std::string& url, CURLcode code, const char* message) {
  if (code == CURLE_OUT_OF_MEMORY) throw OutOfMemoryError("curl: found no memory");
  std::string text = *message != '\0' ? message : curl_easy_strerror(code);
  if (!text.empty()) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  text = fmt::format("{}: {}", url, text);
  if (may_get_better(code)) throw TransientError(text);
  throw IoError(text);
}

}  // namespace

struct HttpClient::Impl {
  CURL* curl = nullptr;
};

HttpClient::HttpClient() : impl_(std::make_unique<Impl>()) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  impl_->curl = curl_easy_init();
  if (impl_->curl == nullptr) throw OutOfMemoryError("curl: found no memory");
}

HttpClient::~HttpClient() { curl_easy_cleanup(impl_->curl); }

HttpResponse HttpClient::send(const HttpRequest& request) {
  CURL* curl = impl_->curl;
  curl_easy_reset(curl);
  Transfer transfer{.request = &request, .response = {}, .error = nullptr};
  curl_slist* headers = nullptr;
  if (!request.token.empty()) {
    headers = curl_slist_append(headers, ("Authorization: Bearer " + request.token).c_str());
    if (headers == nullptr) throw OutOfMemoryError("curl: found no memory");
  }
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> owner(headers, curl_slist_free_all);
  const std::string range = fmt::format("{}-", request.from);
  char message[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "strata");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, request.follows ? 1L : 0L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 10L);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_NOBODY, request.only_headers ? 1L : 0L);
  if (request.from > 0) curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 10L);
  // A connection that gives nothing for half a minute is dead.
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, 30L);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, message);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  const CURLcode code = curl_easy_perform(curl);
  if (transfer.error) std::rethrow_exception(transfer.error);
  if (code != CURLE_OK) throw_no_answer(request.url, code, message);
  curl_off_t seconds = 0;
  if (curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &seconds) == CURLE_OK) {
    transfer.response.retry_after = std::chrono::seconds(seconds);
  }
  return std::move(transfer.response);
}

}  // namespace strata::hf
