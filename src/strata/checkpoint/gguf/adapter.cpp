#include "strata/checkpoint/gguf/adapter.h"

#include <algorithm>

#include "strata/base/counted.h"
#include "strata/checkpoint/base_mark.h"
#include "strata/checkpoint/convert/saved_values.h"
#include "strata/checkpoint/gguf/adapter_plan.h"
#include "strata/checkpoint/gguf/proved_file.h"
#include "strata/checkpoint/gguf/tensor_rows.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

class AdapterExport {
 public:
  AdapterExport(SavedState& base, SavedState& adapter, const GgufOptions& options)
      : base_(base),
        adapter_(adapter),
        settings_(gguf_settings_of(adapter, notes_)),
        config_(config_of(base)),
        type_(options.type.value_or(gguf_type_of(adapter))),
        parts_(base, config_, adapter, settings_) {
    const std::string base_note =
        require_base(adapter.path().string(), adapter.facts().base_fingerprint,
                     base.path().string(), base.facts().base_fingerprint, /*changes_base=*/false);
    if (!base_note.empty()) notes_.push_back(base_note);
    plan_ = plan_adapter(base, config_, adapter, parts_, settings_);
    content_.metadata = {
        {"general.architecture", plan_.architecture}, {"general.type", std::string("adapter")},
        {"general.name", gguf_name(adapter.path())},  {"general.quantization_version", uint32_t{2}},
        {"adapter.type", std::string("lora")},        {"adapter.lora.alpha", plan_.alpha}};
    for (const PlannedBranch& branch : plan_.branches) add_tensors(branch);
    note_changes();
  }

  std::vector<std::string> write(const fs::path& out, FileSystem& files) {
    content_.write = [this](size_t place, const ByteSink& sink) {
      const PlannedBranch& branch = plan_.branches[place / 2];
      for (size_t i = 0; i < branch.base.sources.size(); ++i) {
        const bool is_b = place % 2 == 1;
        const std::vector<float> values = is_b ? rows_of_b(branch, i) : rows_of_a(branch, i);
        std::vector<std::byte> bytes;
        encode_values(content_.tensors[place], values, adapter_.path().string(), bytes);
        sink(bytes);
      }
    };
    return write_proved(out, content_, adapter_.path().string(), files);
  }

  const std::vector<std::string>& notes() const { return notes_; }

 private:
  hf::GgufType type_for(int64_t columns) {
    const auto block = hf::gguf_block(type_);
    if (static_cast<uint64_t>(columns) % block->elements == 0) return type_;
    ++num_kept_;
    return hf::GgufType::kF16;
  }

  // A and B of a tensor stand side by side.
  void add_tensors(const PlannedBranch& branch) {
    const hf::GgufTensor& base = branch.base.tensor;
    std::vector<int64_t> a = base.shape, b = base.shape;
    const size_t rows = base.shape.size() - 2, columns = base.shape.size() - 1;
    if (branch.is_embedding) {  // B [in, r], and of A a token's numbers side by side
      a[columns] = branch.rank;
      b = {base.shape[columns], branch.rank};
    } else {
      a[rows] = branch.rank;
      b[columns] = branch.rank;
    }
    content_.tensors.push_back({base.name + ".lora_a", type_for(a[columns]), a});
    content_.tensors.push_back({base.name + ".lora_b", type_for(b[columns]), b});
  }

  void note_changes() {
    if (plan_.num_folded > 0) {
      notes_.push_back(
          fmt::format("{} scaled otherwise than by {} over the rank: that is folded into their B",
                      counted(plan_.num_folded, "branch", "branches"), plan_.alpha));
    }
    if (num_kept_ > 0) {
      notes_.push_back(fmt::format("{} in F16: rows are no multiple of {} for {}",
                                   counted(num_kept_, "tensor"), hf::kQ8Elements,
                                   hf::gguf_type_name(type_)));
    }
  }

  const Parts* parts_of(const PlannedBranch& branch, size_t i) const {
    return parts_.find(base_.tensors()[branch.base.sources[i]].weight);
  }

  at::Tensor read(size_t index) { return read_tensor(adapter_, index).to(at::kFloat); }

  // The source's part of lora_a: rows of zeros up to the rank, and nothing else without a branch.
  std::vector<float> rows_of_a(const PlannedBranch& branch, size_t i) {
    const std::vector<int64_t>& shape = branch.base.tensor.shape;
    const int64_t size = branch.rank * shape[shape.size() - (branch.is_embedding ? 2 : 1)];
    std::vector<float> values(static_cast<size_t>(size));
    const Parts* parts = parts_of(branch, i);
    if (parts == nullptr) return values;
    const at::Tensor a = parts->columns ? read(*parts->columns).t().contiguous() : read(*parts->a);
    std::copy_n(a.const_data_ptr<float>(), a.numel(), values.begin());
    return values;
  }

  std::vector<float> rows_of_b(const PlannedBranch& branch, size_t i) {
    const std::vector<int64_t>& shape = branch.base.tensor.shape;
    const int64_t rows = shape[shape.size() - (branch.is_embedding ? 1 : 2)];
    std::vector<float> values(static_cast<size_t>(rows * branch.rank));
    const Parts* parts = parts_of(branch, i);
    if (parts == nullptr) return values;
    const at::Tensor b = read(*parts->b);
    const int64_t heads = branch.base.heads_in_pairs;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t from = heads > 0 ? row_before_pairs(row, rows / heads) : row;
      const float* begin = b.const_data_ptr<float>() + from * b.size(1);
      std::transform(begin, begin + b.size(1), values.begin() + row * branch.rank,
                     [&](float value) { return value * branch.factors[i]; });
    }
    return values;
  }

  SavedState& base_;
  SavedState& adapter_;
  std::vector<std::string> notes_;
  adapters::LoraOptions settings_;
  Json config_;  // the base's
  hf::GgufType type_;
  AdapterParts parts_;
  AdapterPlan plan_;
  size_t num_kept_ = 0;
  GgufContent content_;
};

}  // namespace

std::vector<std::string> convert_adapter_to_gguf(SavedState& base, SavedState& adapter,
                                                 const fs::path& out, const GgufOptions& options) {
  require_new_file(out);
  AdapterExport exported(base, adapter, options);
  std::vector<std::string> notes = exported.write(out, *options.files);
  notes.insert(notes.end(), exported.notes().begin(), exported.notes().end());
  if (adapter.has_optimizer()) {
    notes.emplace_back("the optimizer's state is left out: this format has no place for it");
  }
  return notes;
}

}  // namespace strata::checkpoint
