// States that torch wrote: folders of torch.distributed.checkpoint and files of torch.save.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/convert/peft_names.h"
#include "strata/checkpoint/convert/saved_formats.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/formats/dcp.h"
#include "strata/hf/formats/torch_file.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

// A key that stands above all tensors of a file, as accelerate's "model" and "optimizer".
template <typename Tensors>
bool has_common_key(const Tensors& tensors) {
  return !tensors.empty() && std::ranges::all_of(tensors, [&](const auto& tensor) {
    return tensor.path.size() > 1 && tensor.path[0] == tensors[0].path[0] &&
           tensor.path[0] != "state";
  });
}

std::vector<std::string> without_first(const std::vector<std::string>& path, bool is_common) {
  return {path.begin() + (is_common ? 1 : 0), path.end()};
}

// torch's optimizers count updates per weight, in a tensor or a number.
bool is_step(const SavedTensor& tensor) { return tensor.kind == "step" && tensor.shape.empty(); }

// bitsandbytes' names: tables of values are constants, and state of 32 bits is called as that of 8.
// Whether the tensor belongs to the state.
bool take_quantized_name(SavedTensor& tensor) {
  if (tensor.kind == "qmap1" || tensor.kind == "qmap2") return false;
  if (tensor.dtype == hf::DType::kF32 && tensor.kind == "state1") tensor.kind = "exp_avg";
  if (tensor.dtype == hf::DType::kF32 && tensor.kind == "state2") tensor.kind = "exp_avg_sq";
  return true;
}

double scalar_of(hf::DType dtype, std::span<const std::byte> bytes, const std::string& subject) {
  if (dtype == hf::DType::kF32) {
    float value;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
  if (dtype == hf::DType::kI64) {
    int64_t value;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return static_cast<double>(value);
  }
  throw FormatError("{}: found a count of updates of type {}, expected F32 or I64", subject,
                    hf::name_of(dtype));
}

// States whose optimizer counts updates for each weight.
class CountingState : public SavedState {
 protected:
  using SavedState::SavedState;

  void count(double updates) {
    if (!(updates >= 0 && updates < 1e15) || updates != std::floor(updates)) {
      throw FormatError("{}: found {} updates of the optimizer, expected a whole number",
                        path_.string(), updates);
    }
    const auto found = static_cast<int64_t>(updates);
    if (facts_.num_updates && *facts_.num_updates != found) {
      throw FormatError(
          "{}: found weights that were updated {} and {} times, expected all alike; they cannot be "
          "one state of this program",
          path_.string(), *facts_.num_updates, found);
    }
    facts_.num_updates = found;
    facts_.step = found;
  }

  // After the last tensor: what is known beside them, and their names and order.
  void finish() {
    if (const auto step = readable_step(path_)) facts_.step = step;
    const fs::path adapter_config = path_ / hf::kAdapterConfigFile;
    if (fs::exists(adapter_config)) facts_.adapter_config = read_json_file(adapter_config);
    if (is_adapter()) {
      for (SavedTensor& tensor : tensors_) tensor.weight = name_in_run(tensor.weight);
      name_prompts_in_run(tensors_);
    }
    order_ = arrange();
  }

  std::vector<size_t> order_;
};

// torch.serialization.set_crc32_options(False) makes files that nothing can be proved of.
std::string proved(size_t num_tensors, std::string_view what) {
  if (num_tensors == 0) return "nothing: it was saved without checksums";
  return fmt::format("{} (CRC-32 of their {})", counted(num_tensors, "tensor"), what);
}

class DcpState : public CountingState {
 public:
  DcpState(const fs::path& path, const std::vector<fs::path>& parts) : CountingState(path) {
    facts_.format = "PyTorch DCP";
    for (const fs::path& part : parts) folders_.push_back(std::make_unique<hf::DcpFolder>(part));
    for (const auto& folder : folders_) {
      const bool is_common = has_common_key(folder->tensors());
      for (const hf::DcpTensor& tensor : folder->tensors()) {
        SavedTensor saved{"", "", tensor.dtype, tensor.shape};
        name_tensor(without_first(tensor.path, is_common), saved);
        if (is_step(saved)) {
          std::array<std::byte, 8> bytes{};
          folder->read(tensor, std::span(bytes).first(tensor.size_bytes()));
          count(scalar_of(tensor.dtype, bytes, path_.string()));
          continue;
        }
        if (!take_quantized_name(saved)) continue;
        tensors_.push_back(std::move(saved));
        sources_.emplace_back(folder.get(), &tensor);
      }
      for (const hf::DcpTensor& tensor : folder->tensors()) {
        facts_.world_size = std::max(facts_.world_size, static_cast<int>(tensor.blocks.size()));
      }
    }
    finish();
  }
  void read(size_t index, std::span<std::byte> out) override {
    const auto& [folder, tensor] = sources_[order_[index]];
    folder->read(*tensor, out);
  }
  std::string verify() override {
    size_t num_without = 0;
    for (const auto& folder : folders_) num_without += folder->verify();
    return proved(tensors_.size() - std::min(num_without, tensors_.size()), "archives");
  }

 private:
  std::vector<std::unique_ptr<hf::DcpFolder>> folders_;
  std::vector<std::pair<hf::DcpFolder*, const hf::DcpTensor*>> sources_;
};

class TorchState : public CountingState {
 public:
  TorchState(const fs::path& path, const std::vector<fs::path>& parts) : CountingState(path) {
    facts_.format = "torch.save file";
    for (const fs::path& part : parts) {
      maps_.push_back(std::make_unique<MappedFile>(part));
      files_.push_back(std::make_unique<hf::TorchFile>(maps_.back()->data(), part.string()));
    }
    for (const auto& file : files_) {
      const bool is_common = has_common_key(file->tensors());
      for (const hf::TorchTensor& tensor : file->tensors()) {
        SavedTensor saved{"", "", tensor.dtype, tensor.shape};
        name_tensor(without_first(tensor.path, is_common), saved);
        if (is_step(saved)) {
          std::array<std::byte, 8> bytes{};
          file->read(tensor, std::span(bytes).first(tensor.size_bytes()));
          count(scalar_of(tensor.dtype, bytes, path_.string()));
          continue;
        }
        if (!take_quantized_name(saved)) continue;
        tensors_.push_back(std::move(saved));
        sources_.emplace_back(file.get(), &tensor);
      }
      for (const hf::TorchScalar& scalar : file->scalars()) {
        SavedTensor saved;
        name_tensor(scalar.path, saved);
        if (saved.kind == "step" && scalar.number) count(*scalar.number);
      }
    }
    finish();
  }
  void read(size_t index, std::span<std::byte> out) override {
    const auto& [file, tensor] = sources_[order_[index]];
    file->verify(*tensor);
    file->read(*tensor, out);
    forget_pages(tensor->storage->data);
  }
  std::string verify() override {
    size_t num_with = 0;
    for (const auto& file : files_) {
      file->verify();
      if (file->has_checksums()) num_with += file->tensors().size();
    }
    return proved(num_with, "records");
  }

 private:
  std::vector<std::unique_ptr<MappedFile>> maps_;
  std::vector<std::unique_ptr<hf::TorchFile>> files_;
  std::vector<std::pair<hf::TorchFile*, const hf::TorchTensor*>> sources_;
};

// Two tensors of one name would silently lose one.
std::unique_ptr<SavedState> with_unique_names(std::unique_ptr<SavedState> state) {
  std::set<std::pair<std::string, std::string>> seen;
  for (const SavedTensor& tensor : state->tensors()) {
    if (seen.emplace(tensor.kind, tensor.weight).second) continue;
    throw FormatError("{}: found \"{}\" twice, expected it once; use another checkpoint",
                      state->path().string(), tensor.weight);
  }
  return state;
}

}  // namespace

std::unique_ptr<SavedState> open_dcp(const fs::path& path, const std::vector<fs::path>& parts) {
  return with_unique_names(std::make_unique<DcpState>(path, parts));
}
std::unique_ptr<SavedState> open_torch_files(const fs::path& path,
                                             const std::vector<fs::path>& parts) {
  return with_unique_names(std::make_unique<TorchState>(path, parts));
}

}  // namespace strata::checkpoint
