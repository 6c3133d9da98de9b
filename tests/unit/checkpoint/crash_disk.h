// A disk that can lose power: carries out every operation for real and keeps beside it what a file
// system must have brought to the platter. What is not synced may be there after a crash, or not,
// or in part, each operation for itself (so in any order). Owns: the model. Never: expectations.
#pragma once

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/file.h"
#include "strata/base/file_system.h"

namespace strata::testing {

// What only has to be there need not wait for the disk.
class Unsynced : public FileSystem {
 public:
  int sync(int) override { return 0; }
  int sync_path(const std::filesystem::path&) override { return 0; }
};

// Threads: any number at once, as ranks of one process are.
class CrashDisk : public FileSystem {
 public:
  enum class Fault { kNone, kPowerLoss, kError, kShortWrite };

  // What is below `root` is on the platter already. `can_exchange`: two names in one moment.
  explicit CrashDisk(std::filesystem::path root, bool can_exchange = true)
      : root_(std::move(root)), can_exchange_(can_exchange) {
    adopt(root_, 0);
  }

  // The `at`-th operation from now (from 0) and, for a loss of power, all behind it go wrong.
  void break_at(int at, Fault fault) {
    operations_ = 0;
    fault_at_ = at;
    fault_ = fault;
  }
  int num_operations() const { return operations_; }

  // What a reader finds in `target` after a loss of power now. `keep` decides for each unsynced
  // operation whether it reached the platter.
  void restore(const std::filesystem::path& target, const std::function<bool()>& keep) const {
    std::map<int, bool> fates;  // of the changes that two folders share
    write_node(settled(0, keep, fates), target, keep, fates);
  }

  int create(const std::filesystem::path& path) override {
    const std::lock_guard lock(mutex_);
    if (strike()) return -EIO;
    const int descriptor = FileSystem::create(path);
    if (descriptor < 0) return descriptor;
    const int file = static_cast<int>(nodes_.size());
    nodes_.emplace_back();
    change(path.parent_path(), {{path.filename(), file}});
    open_[descriptor] = file;
    return descriptor;
  }
  int open_direct(const std::filesystem::path& path) override {
    const std::lock_guard lock(mutex_);
    return adopt_open(path, strike() ? -EIO : FileSystem::open_direct(path));
  }
  int open_existing(const std::filesystem::path& path) override {
    const std::lock_guard lock(mutex_);
    return adopt_open(path, strike() ? -EIO : FileSystem::open_existing(path));
  }
  int reserve(int descriptor, uint64_t size_bytes) override {
    const std::lock_guard lock(mutex_);
    if (strike()) return ENOSPC;
    nodes_[open_.at(descriptor)].writes.push_back({size_bytes, "", true});
    return FileSystem::reserve(descriptor, size_bytes);
  }
  size_t write(int descriptor, std::span<const std::byte> data, uint64_t offset) override {
    const std::lock_guard lock(mutex_);
    size_t size = data.size();
    if (strike()) {
      if (fault_ != Fault::kShortWrite) {
        errno = EIO;
        return 0;
      }
      size /= 2;
    }
    const std::string bytes(reinterpret_cast<const char*>(data.data()), size);
    nodes_[open_.at(descriptor)].writes.push_back({offset, bytes, false});
    FileSystem::write(descriptor, data.first(size), offset);
    if (size < data.size()) errno = ENOSPC;
    return size;
  }
  int sync(int descriptor) override {
    const std::lock_guard lock(mutex_);
    if (strike()) return EIO;
    settle(open_.at(descriptor));
    return 0;
  }
  int sync_path(const std::filesystem::path& path) override {
    const std::lock_guard lock(mutex_);
    if (strike()) return EIO;
    if (const auto node = find(path)) settle(*node);
    return 0;
  }
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    const std::lock_guard lock(mutex_);
    if (strike()) return EIO;
    const int moved = *find(from);
    if (from.parent_path() == to.parent_path()) {
      change(from.parent_path(), {{from.filename(), -1}, {to.filename(), moved}});
    } else {
      const int pair = ++num_pairs_;
      change(from.parent_path(), {{from.filename(), -1}}, pair);
      change(to.parent_path(), {{to.filename(), moved}}, pair);
    }
    return FileSystem::rename(from, to);
  }
  int exchange(const std::filesystem::path& a, const std::filesystem::path& b) override {
    const std::lock_guard lock(mutex_);
    if (strike()) return EIO;
    if (!can_exchange_) return EINVAL;
    change(a.parent_path(), {{a.filename(), *find(b)}, {b.filename(), *find(a)}});
    return FileSystem::exchange(a, b);
  }
  int make_folder(const std::filesystem::path& path) override {
    const std::lock_guard lock(mutex_);
    if (strike()) return ENOSPC;
    add_folder(path);
    return FileSystem::make_folder(path);
  }
  int remove(const std::filesystem::path& path) override {
    const std::lock_guard lock(mutex_);
    if (strike()) return EIO;
    forget(path);
    return FileSystem::remove(path);
  }

 private:
  struct Write {
    uint64_t offset;
    std::string bytes;
    bool is_size;  // sets the size to `offset`
  };
  using Names = std::vector<std::pair<std::string, int>>;  // -1: gone
  struct NameChange {
    Names names;
    int pair;  // the same of two folders' changes that are one operation; 0: of this folder alone
  };
  struct Node {
    bool is_folder = false;
    std::string content;                // synced
    std::vector<Write> writes;          // not synced
    std::map<std::string, int> names;   // of a folder, as programs see it
    std::map<std::string, int> synced;  // of a folder
    std::vector<NameChange> changes;    // not synced
  };

  // Brings a file or a folder to the platter, and the other half of what two folders share.
  void settle(int index) {
    Node& node = nodes_[index];
    for (const Write& write : node.writes) apply(write, node.content);
    node.writes.clear();
    node.synced = node.names;
    const std::vector<NameChange> settled = std::move(node.changes);
    node.changes.clear();
    for (const NameChange& change : settled) {
      for (Node& other : nodes_) {
        const auto half = std::ranges::find_if(other.changes, [&](const NameChange& candidate) {
          return change.pair != 0 && candidate.pair == change.pair;
        });
        if (half == other.changes.end()) continue;
        apply(half->names, other.synced);
        other.changes.erase(half);
      }
    }
  }

  void add_folder(const std::filesystem::path& path) {
    if (find(path)) return;
    add_folder(path.parent_path());
    const int folder = static_cast<int>(nodes_.size());
    nodes_.emplace_back().is_folder = true;
    change(path.parent_path(), {{path.filename(), folder}});
  }

  // One name after the other, so that a crash may find any of them gone.
  void forget(const std::filesystem::path& path) {
    const auto node = find(path);
    if (!node) return;
    const auto names = nodes_[*node].names;
    for (const auto& [name, child] : names) forget(path / name);
    change(path.parent_path(), {{path.filename(), -1}});
  }

  static void apply(const Write& write, std::string& content) {
    if (write.is_size) {
      content.resize(write.offset);
      return;
    }
    content.resize(
        std::max(content.size(), static_cast<size_t>(write.offset) + write.bytes.size()));
    content.replace(write.offset, write.bytes.size(), write.bytes);
  }

  bool strike() {
    const int operation = operations_++;
    if (fault_ == Fault::kNone || operation < fault_at_) return false;
    return fault_ == Fault::kPowerLoss || operation == fault_at_;
  }

  void adopt(const std::filesystem::path& folder, int expected) {
    nodes_.emplace_back().is_folder = true;
    const int self = static_cast<int>(nodes_.size()) - 1;
    if (self != expected) throw std::logic_error("folders are adopted in order");
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const int child = static_cast<int>(nodes_.size());
      if (entry.is_directory()) {
        adopt(entry.path(), child);
      } else {
        nodes_.emplace_back().content = read_file(entry.path());
      }
      nodes_[self].names[entry.path().filename()] = child;
    }
    nodes_[self].synced = nodes_[self].names;
  }

  int adopt_open(const std::filesystem::path& path, int descriptor) {
    if (descriptor >= 0) open_[descriptor] = *find(path);
    return descriptor;
  }

  std::optional<int> find(const std::filesystem::path& path) const {
    int node = 0;
    for (const auto& part : path.lexically_relative(root_)) {
      if (part == ".") continue;
      const auto child = nodes_[node].names.find(part);
      if (child == nodes_[node].names.end()) return std::nullopt;
      node = child->second;
    }
    return node;
  }

  static void apply(const Names& changed, std::map<std::string, int>& names) {
    for (const auto& [name, node] : changed) {
      names.erase(name);
      if (node >= 0) names[name] = node;
    }
  }

  void change(const std::filesystem::path& folder, Names names, int pair = 0) {
    Node& node = nodes_[*find(folder)];
    apply(names, node.names);
    node.changes.push_back({std::move(names), pair});
  }

  Node settled(int index, const std::function<bool()>& keep, std::map<int, bool>& fates) const {
    Node node = nodes_[index];
    for (const Write& write : node.writes) {
      if (!keep()) continue;
      Write torn = write;
      if (!keep()) torn.bytes.resize(torn.bytes.size() / 2);
      apply(torn, node.content);
    }
    for (const NameChange& change : node.changes) {
      bool is_kept = keep();
      if (change.pair != 0) is_kept = fates.emplace(change.pair, is_kept).first->second;
      if (is_kept) apply(change.names, node.synced);
    }
    return node;
  }

  void write_node(const Node& node, const std::filesystem::path& path,
                  const std::function<bool()>& keep, std::map<int, bool>& fates) const {
    if (!node.is_folder) {
      std::ofstream(path, std::ios::binary) << node.content;
      return;
    }
    std::filesystem::create_directories(path);
    // In the order in which they came to be: times tell a reader which was there before which.
    std::vector<std::pair<int, std::string>> children;
    for (const auto& [name, child] : node.synced) children.emplace_back(child, name);
    std::ranges::sort(children);
    for (const auto& [child, name] : children) {
      write_node(settled(child, keep, fates), path / name, keep, fates);
    }
  }

  std::filesystem::path root_;
  bool can_exchange_;
  std::vector<Node> nodes_;
  std::map<int, int> open_;  // descriptor -> node
  int num_pairs_ = 0;
  mutable std::mutex mutex_;
  int operations_ = 0;
  int fault_at_ = 0;
  Fault fault_ = Fault::kNone;
};

}  // namespace strata::testing
