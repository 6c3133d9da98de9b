#include "cudnn_graphs.h"

#include <mutex>

namespace emulated_gpu::cudnn {
namespace {

constexpr int kPointwiseModeOf = 0;
constexpr int kAlignment = 900, kTypeOfTensor = 901, kSizes = 902, kStrides = 903, kNumber = 906;
constexpr int64_t kGenerateIndex = 501;

struct Record {
  std::map<int, std::vector<int64_t>> numbers;
  std::map<int, std::vector<void*>> addresses;
  Graph graph;  // all that it names, and what those name
};

std::mutex& records_mutex() {
  static std::mutex mutex;
  return mutex;
}
std::map<Descriptor, Record>& records() {
  static auto* all = new std::map<Descriptor, Record>;
  return *all;
}

std::vector<int64_t> numbers_of(const Record& record, int attribute) {
  const auto found = record.numbers.find(attribute);
  return found == record.numbers.end() ? std::vector<int64_t>{} : found->second;
}
int64_t number_of(const Record& record, int attribute, int64_t otherwise) {
  const std::vector<int64_t> numbers = numbers_of(record, attribute);
  return numbers.empty() ? otherwise : numbers[0];
}
std::vector<void*> addresses_of(const Record& record, int attribute) {
  const auto found = record.addresses.find(attribute);
  return found == record.addresses.end() ? std::vector<void*>{} : found->second;
}

// A tensor, a function of single elements, or what has been made of them: an operation, a graph,
// a way to run it.
void add(Graph& graph, const Record& named) {
  graph.tensors.insert(named.graph.tensors.begin(), named.graph.tensors.end());
  graph.counts_places |=
      named.graph.counts_places || number_of(named, kPointwiseModeOf, -1) == kGenerateIndex;
  if (!named.numbers.contains(kSizes)) return;
  graph.tensors[number_of(named, kNumber, -1)] = {
      numbers_of(named, kSizes), numbers_of(named, kStrides), number_of(named, kTypeOfTensor, -1),
      number_of(named, kAlignment, 1)};
}

template <typename Number>
std::vector<int64_t> numbers_at(const void* values, size_t count) {
  const auto* from = static_cast<const Number*>(values);
  return {from, from + count};
}

}  // namespace

void note_gone(Descriptor gone) {
  const std::lock_guard lock(records_mutex());
  records().erase(gone);
}

void note_attribute(Descriptor of, int attribute, int type, int64_t count, const void* values) {
  const std::lock_guard lock(records_mutex());
  Record& record = records()[of];
  const auto size = static_cast<size_t>(count);
  if (type == kInt64) record.numbers[attribute] = numbers_at<int64_t>(values, size);
  if (type == kDataType || type == kPointwiseMode) {
    record.numbers[attribute] = numbers_at<int32_t>(values, size);
  }
  if (type != kAddress && type != kDescriptor) return;
  auto* const* from = static_cast<void* const*>(values);
  record.addresses[attribute].assign(from, from + size);
  if (type == kAddress) return;
  for (void* named : record.addresses[attribute]) add(record.graph, records()[named]);
}

void note_results(Descriptor heuristics, int64_t count, const Descriptor* configurations) {
  const std::lock_guard lock(records_mutex());
  for (int64_t i = 0; i < count; ++i)
    add(records()[configurations[i]].graph, records()[heuristics]);
}

Graph graph_of_plan(Descriptor plan) {
  const std::lock_guard lock(records_mutex());
  return records()[plan].graph;
}

Pack pack_of(Descriptor variant_pack) {
  const std::lock_guard lock(records_mutex());
  const Record& record = records()[variant_pack];
  const std::vector<int64_t> numbers = numbers_of(record, kPackNumbers);
  const std::vector<void*> addresses = addresses_of(record, kPackAddresses);
  Pack pack;
  for (size_t i = 0; i < numbers.size(); ++i) pack.addresses[numbers[i]] = addresses.at(i);
  const std::vector<void*> workspace = addresses_of(record, kPackWorkspace);
  if (!workspace.empty()) pack.workspace = workspace[0];
  return pack;
}

}  // namespace emulated_gpu::cudnn
