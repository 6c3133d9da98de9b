// Fills the homes of a UnitStore: each rank asks a source for just the elements that rest on it.
// Owns: nothing. Memory: one piece at a time beyond the homes (I9).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "strata/hf/model_folder.h"
#include "strata/shard/unit_store.h"

namespace strata::shard {

// Writes elements [begin, begin + out.numel()) of the flattened parameter into `out`, a flat view
// of the home in its storage type. Returns whether the source knows the parameter.
using Source =
    std::function<bool(const nn::Parameter& parameter, int64_t begin, const at::Tensor& out)>;

// Calls `source` for every piece of this rank. A parameter that the source does not know keeps what
// its home holds. Quantised parameters are left to quantized_loading.h.
void fill_homes(UnitStore& store, const Source& source);

enum class HomeKind { kValues, kCodes };  // kCodes: of quantised parameters

// The same for ranks that share no files: rank 0 reads segment by segment and scatters each over
// its shard group; each part then goes to the copies of its rank. `open` is called on rank 0 alone
// and gives its source, which is asked for whole tensors (quantised ones: all bytes).
// Collective over the world; fails on all ranks if it fails on rank 0. Memory: rank 0 holds one
// segment beyond its homes; the others nothing, or the part of a segment that the source knows
// only some tensors of.
void send_homes(UnitStore& store, HomeKind kind, const std::function<Source()>& open);

inline constexpr int64_t kReadAtOnce = int64_t{1} << 20;

// The file's tensor of the parameter's name, converted to the home's type; one in MXFP4 or fp8 is
// decoded (mxfp4_loading.h, fp8_loading.h). Memory: kReadAtOnce elements of the file, mapped, and
// where the types differ a copy of them.
// `name_of`: the tensor's name in the file for a parameter, empty when it has none there.
// Requires: the folder outlives the source, and names and shapes were checked before.
Source folder_source(const hf::ModelFolder& folder,
                     std::function<std::string(const nn::Parameter&)> name_of);

// Copies this rank's piece of a whole tensor (any floating type, on the CPU) into its home; a
// quantised parameter's is quantised first.
void place_tensor(UnitStore& store, const nn::Parameter& parameter, const at::Tensor& whole);

// The same for elements [begin, begin + values.numel()) of the flattened parameter, as they are.
void place_elements(UnitStore& store, const nn::Parameter& parameter, int64_t begin,
                    const at::Tensor& values);

// Some rows [rows.size(), columns] of a matrix as its homes hold them, fp32; a copy.
// Requires: not quantised. Collective over the shard group.
at::Tensor read_rows(UnitStore& store, const nn::Parameter& parameter,
                     const std::vector<int64_t>& rows);

// The whole tensor as its homes hold it, fp32, decoded where it is quantised; a copy.
// Collective over the shard group. Memory: the segment of the parameter beside the result.
at::Tensor read_tensor(UnitStore& store, const nn::Parameter& parameter);

// The libtorch type of a file's element type. Throws FormatError for one that cannot be a weight.
at::ScalarType scalar_type_of(hf::DType dtype, const std::string& tensor_name);

// The type in which the values of a folder's tensor come: fp32 where it is decoded.
// Requires: the folder has it, or has it in MXFP4.
at::ScalarType type_of_values(const hf::ModelFolder& folder, const std::string& name);
hf::DType dtype_of(at::ScalarType type);

}  // namespace strata::shard
