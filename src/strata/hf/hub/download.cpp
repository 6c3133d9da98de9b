#include "strata/hf/hub/download.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/file_lock.h"
#include "strata/base/json.h"
#include "strata/hf/hub/blob.h"
#include "strata/hf/hub/blob_wait.h"
#include "strata/hf/hub/http_client.h"

namespace strata::hf {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string endpoint() {
  std::string text = variable("HF_ENDPOINT");
  if (text.empty()) text = "https://huggingface.co";
  while (text.ends_with('/')) text.pop_back();
  return text;
}

std::string read_token() {
  std::string token = variable("HF_TOKEN");
  if (token.empty() && fs::exists(hf_home() / "token")) token = read_file(hf_home() / "token");
  while (!token.empty() && std::isspace(static_cast<unsigned char>(token.back()))) token.pop_back();
  return token;
}

// Percent-encodes a path, except for its slashes.
std::string encode_path(const std::string& path) {
  std::string out;
  for (const char c : path) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                       c == '.' || c == '~' || c == '/';
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

// A name that stays inside the folder it is put into.
bool is_safe_path(const std::string& path) {
  if (path.empty() || path.front() == '/') return false;
  for (const fs::path& part : fs::path(path)) {
    if (part == ".." || part == ".") return false;
  }
  return true;
}

// A server that wants to be left alone for longer is not waited for; the Hub counts requests over
// five minutes.
constexpr std::chrono::seconds kLongestWait{300};

struct RemoteFile {
  std::string etag;
  int64_t size = 0;  // 0: not said
};

class Downloader {
 public:
  Downloader(const HubRequest& request, const DownloadOptions& options)
      : request_(request),
        options_(options),
        kind_(request.kind == HubKind::kModel ? "" : "datasets/"),
        endpoint_(endpoint()),
        token_(read_token()),
        folder_(repository_folder(request)) {}

  fs::path run() {
    const Json info = read_info();
    const std::string commit = info.at("sha").get<std::string>();
    const fs::path snapshot = folder_ / "snapshots" / commit;
    fs::create_directories(snapshot);
    fs::create_directories(folder_ / "blobs");
    std::vector<std::string> names;
    for (const Json& sibling : info.at("siblings")) {
      const std::string name = sibling.at("rfilename").get<std::string>();
      names.push_back(name);
      if (options_.wants && !options_.wants(name)) continue;
      if (!is_safe_path(name)) {
        throw FormatError("{}: found a file \"{}\", expected a name inside the repository",
                          request_.name, name);
      }
      fetch(commit, name, snapshot / name);
    }
    if (commit != request_.revision) {
      const fs::path reference = folder_ / "refs" / request_.revision;
      fs::create_directories(reference.parent_path());
      write_file_atomically(reference, commit);
    }
    remember_listing(request_, commit, names);
    return snapshot;
  }

 private:
  // Repeats `attempt` while it throws TransientError.
  void retry(const std::string& url, const std::function<void()>& attempt) const {
    std::string cause;
    std::chrono::milliseconds pause(400);
    int tried = 0;
    while (true) {
      std::chrono::seconds wait{};
      try {
        return attempt();
      } catch (const TransientError& error) {
        cause = error.what();
        wait = error.wait();
      }
      if (++tried >= options_.tries || wait > kLongestWait) break;
      std::this_thread::sleep_for(std::max<std::chrono::milliseconds>(pause, wait));
      pause *= 2;
    }
    throw IoError(
        "{}: found no complete answer in {} (the last: {}), expected the file; try again later, "
        "what was downloaded is kept",
        url, counted(tried, "try", "tries"), cause);
  }

  // A server that is busy is asked again, when it says so.
  static void require_answer(const HttpResponse& answer) {
    if (answer.status != 429 && answer.status < 500) return;
    const int64_t seconds = answer.retry_after.count();
    throw TransientError(fmt::format("the server is busy: status {}{}", answer.status,
                                     seconds > 0 ? fmt::format(", retry in {} s", seconds) : ""),
                         answer.retry_after);
  }

  [[noreturn]] void refuse(const std::string& url, int status) const {
    const bool is_denied = status == 401 || status == 403;
    throw IoError("{}: found status {}, expected the file; {}", url, status,
                  is_denied       ? "set HF_TOKEN to a token that may read it"
                  : status == 404 ? "check the name and the revision"
                                  : "try again later");
  }

  static std::string header_of(const HttpResponse& answer, const std::string& name) {
    const auto it = answer.headers.find(name);
    return it == answer.headers.end() ? std::string() : it->second;
  }

  Json read_info() const {
    const std::string url =
        fmt::format("{}/api/{}{}/revision/{}", endpoint_, kind_.empty() ? "models/" : kind_,
                    request_.name, encode_path(request_.revision));
    std::string text;
    int status = 0;
    retry(url, [&] {
      text.clear();
      HttpClient client;
      const HttpResponse answer =
          client.send({.url = url,
                       .token = token_,
                       .body = [&](const HttpResponse&, std::span<const char> bytes) {
                         text.append(bytes.data(), bytes.size());
                       }});
      require_answer(answer);
      status = answer.status;
    });
    if (status != 200) refuse(url, status);
    const Json info = parse_json(text, url);
    const bool fits = info.is_object() && info.contains("sha") && info["sha"].is_string() &&
                      is_safe_path(info["sha"].get<std::string>()) && info.contains("siblings") &&
                      info["siblings"].is_array();
    if (fits) return info;
    throw FormatError("{}: found no \"sha\" and \"siblings\", expected the Hub's answer", url);
  }

  // The answer about a file. A renamed repository, or one whose files lie elsewhere on the Hub,
  // answers with another path of the same host, which is asked in its place; the address of the
  // bytes on another host ends it, whose headers do not speak of the Hub's file.
  HttpResponse ask_for_headers(std::string url) const {
    constexpr int kMostMoves = 10;
    const std::string host = url.substr(0, url.find('/', url.find("//") + 2));
    HttpResponse answer;
    for (int i = 0; i < kMostMoves; ++i) {
      HttpClient client;
      answer = client.send({.url = url, .token = token_, .follows = false, .only_headers = true});
      const std::string path = header_of(answer, "location");
      const bool moves =
          answer.status / 100 == 3 && path.starts_with('/') && !path.starts_with("//");
      if (!moves) break;
      url = host + path;
    }
    return answer;
  }

  RemoteFile read_head(const std::string& url) const {
    RemoteFile remote;
    int status = 0;
    retry(url, [&] {
      const HttpResponse answer = ask_for_headers(url);
      require_answer(answer);
      status = answer.status;
      remote.etag = header_of(answer, "x-linked-etag");
      if (remote.etag.empty()) remote.etag = header_of(answer, "etag");
      if (remote.etag.starts_with("W/")) remote.etag.erase(0, 2);
      std::erase(remote.etag, '"');
      std::string size = header_of(answer, "x-linked-size");
      if (size.empty() && status == 200) size = header_of(answer, "content-length");
      remote.size = std::strtoll(size.c_str(), nullptr, 10);
    });
    if (status != 200 && status / 100 != 3) refuse(url, status);
    if (is_safe_path(remote.etag) && remote.etag.find('/') == std::string::npos) return remote;
    throw FormatError("{}: found no usable ETag, expected the Hub's headers", url);
  }

  void fetch(const std::string& commit, const std::string& name, const fs::path& link) const {
    if (fs::exists(link)) return;
    const std::string url = fmt::format("{}/{}{}/resolve/{}/{}", endpoint_, kind_, request_.name,
                                        commit, encode_path(name));
    const RemoteFile remote = read_head(url);
    const fs::path blob = folder_ / "blobs" / remote.etag;
    // huggingface_hub locks the same file in the same way.
    const fs::path locks = folder_.parent_path() / ".locks" / folder_.filename();
    fs::create_directories(locks);
    const fs::path path = locks / (remote.etag + ".lock");
    BlobWait wait({.repository = request_.name,
                   .name = name,
                   .size = remote.size,
                   .lock = path,
                   .part = part_of(blob)},
                  options_.progress);
    const auto lock = FileLock::wait_for(path, [&](const std::string&) {
      wait.look();
      return true;
    });
    if (!fs::exists(blob)) download(url, name, remote, blob);
    link_blob(blob, link);
  }

  // The name that huggingface_hub gives it.
  static fs::path part_of(const fs::path& blob) { return blob.string() + ".incomplete"; }

  void download(const std::string& url, const std::string& name, const RemoteFile& remote,
                const fs::path& blob) const {
    const fs::path part = part_of(blob);
    retry(url, [&] { transfer(url, name, remote, part); });
    fsync_path(part);
    fs::rename(part, blob);
  }

  // One attempt. A file with other bytes than announced is thrown away.
  void transfer(const std::string& url, const std::string& name, const RemoteFile& remote,
                const fs::path& part) const {
    IncompleteFile file(part);
    if (remote.size > 0 && file.size() > remote.size) file.clear();
    if (remote.size == 0 || file.size() < remote.size) {
      bool is_first = true;
      HttpClient client;
      const HttpResponse response =
          client.send({.url = url,
                       .token = token_,
                       .from = file.size(),
                       .body = [&](const HttpResponse& answer, std::span<const char> bytes) {
                         // A server without ranges sends everything again.
                         if (is_first && answer.status == 200) file.clear();
                         is_first = false;
                         file.append(bytes);
                         if (options_.progress.came) {
                           options_.progress.came(name, file.size(), remote.size);
                         }
                       }});
      require_answer(response);
      if (response.status == 416) {
        file.clear();
        throw TransientError(url + ": found a range that the server does not have");
      }
      if (response.status != 200 && response.status != 206) refuse(url, response.status);
    }
    if (remote.size > 0 && file.size() != remote.size) {
      throw TransientError(
          fmt::format("{}: found {} bytes, expected {}", url, file.size(), remote.size));
    }
    const MappedFile content(part);
    BlobChecksum checksum(remote.etag, file.size());
    checksum.add({reinterpret_cast<const char*>(content.data().data()), content.data().size()});
    if (checksum.fits()) return;
    file.clear();
    throw TransientError(
        fmt::format("{}: found bytes with another checksum than {}", url, remote.etag));
  }

  static void link_blob(const fs::path& blob, const fs::path& link) {
    fs::create_directories(link.parent_path());
    const fs::path target = fs::relative(blob, link.parent_path());
    std::error_code error;
    fs::create_symlink(target, link, error);
    // Another process made it, or the file system has no links.
    if (!error || fs::exists(link)) return;
    fs::remove(link, error);
    fs::copy_file(blob, link);
  }

  const HubRequest& request_;
  const DownloadOptions& options_;
  std::string kind_;
  std::string endpoint_;
  std::string token_;
  fs::path folder_;
};

}  // namespace

bool is_offline() {
  for (const char* name : {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
    std::string value = variable(name);
    for (char& c : value) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (value == "1" || value == "true" || value == "yes" || value == "on") return true;
  }
  return false;
}

fs::path download_snapshot(const HubRequest& request, const DownloadOptions& options) {
  if (is_offline()) {
    throw ConfigError("{}: found HF_HUB_OFFLINE, expected permission to download it; unset it",
                      request.name);
  }
  try {
    return Downloader(request, options).run();
  } catch (const fs::filesystem_error& error) {
    throw IoError("{}: {}", error.path1().string(), error.code().message());
  }
}

namespace {

// Whether the Hub is asked about this snapshot for the first time in this process: without a
// network each question costs seconds, and a run looks for its model several times.
bool is_first_question(const fs::path& snapshot) {
  static std::mutex mutex;
  static std::set<fs::path> asked;
  const std::lock_guard lock(mutex);
  return asked.insert(snapshot).second;
}

}  // namespace

fs::path fetch_snapshot(const HubRequest& request, const DownloadOptions& options) {
  if (!has_snapshot(request)) {
    return is_offline() ? find_snapshot(request) : download_snapshot(request, options);
  }
  SnapshotState state = inspect_snapshot(request, options.wants, options.lacks);
  const bool is_whole = state.missing.empty();
  if (is_whole && (state.is_listed || is_offline() || !is_first_question(state.folder))) {
    return state.folder;
  }
  std::string cause = "HF_HUB_OFFLINE forbids downloading the rest";
  if (!is_offline()) {
    // The commit that is there: the branch may have moved on to other files.
    HubRequest commit = request;
    commit.revision = state.folder.filename().string();
    DownloadOptions patience = options;
    if (is_whole) patience.tries = 1;
    try {
      return download_snapshot(commit, patience);
    } catch (const IoError& error) {
      cause = error.what();
    }
  }
  if (options.needs) std::erase_if(state.missing, std::not_fn(options.needs));
  if (state.missing.empty()) return state.folder;
  throw IoError(
      "{}: found a part of its files in the Hub cache ({}) without {}, expected all of them; allow "
      "the download ({})",
      request.name, state.folder.string(), fmt::join(state.missing, ", "), cause);
}

}  // namespace strata::hf
