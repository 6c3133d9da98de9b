// Oracle: the old and the new result. Whatever operation of an export or a conversion goes wrong,
// what a loader finds is one of them whole, or nothing that it would take for a model.
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "crash_loop.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/convert/convert.h"
#include "strata/checkpoint/convert/merge.h"
#include "strata/checkpoint/export_files.h"

namespace strata::checkpoint {
namespace {

using strata::testing::Crash;
using strata::testing::CrashDisk;
using strata::testing::for_each_crash;
using strata::testing::memory_or_disk;
using strata::testing::TemporaryFolder;

namespace fs = std::filesystem;

strata::testing::Unsynced unsynced;

const std::vector<std::string> kNames = {"a", "b", "c"};

// A result whose values are all `value`, in one file or in three.
bool publish(const fs::path& folder, float value, bool is_sharded, FileSystem& files) {
  const std::vector<float> values(6, value);
  std::vector<hf::TensorBytes> sizes;
  std::unordered_map<std::string, hf::TensorSpec> specs;
  for (const std::string& name : kNames) {
    specs[name] = {name, hf::DType::kF32, {2, 3}};
    sizes.push_back({name, 24});
  }
  try {
    const hf::ShardPlan plan = hf::plan_shards(sizes, is_sharded ? 24 : 1000);
    ExportFiles exported(folder, Trained::kYes, files);
    exported.add(plan, specs);
    if (plan.is_indexed()) exported.add_text(hf::kModelIndexFile, plan.index_json(18));
    exported.add_text("config.json", std::to_string(value));
    exported.add_text("additional_chat_templates/one.jinja", std::to_string(value));
    for (const std::string& name : kNames) exported.write(name, std::as_bytes(std::span(values)));
    exported.publish();
  } catch (const IoError&) {
    return false;
  }
  return true;
}

// The value that a loader finds everywhere, or 0 without config.json. Fails the test for a mixture.
float load(const fs::path& folder) {
  EXPECT_EQ(read_file(folder / "notes.txt"), "kept");
  if (!fs::exists(folder / "config.json")) return 0;
  const float value = std::stof(read_file(folder / "config.json"));
  EXPECT_EQ(std::stof(read_file(folder / "additional_chat_templates/one.jinja")), value);
  for (size_t i = 0; i < kNames.size(); ++i) {
    // As transformers chooses: the single file first.
    fs::path file = folder / hf::kModelWeightsFile;
    if (!fs::exists(file)) {
      EXPECT_TRUE(fs::exists(folder / hf::kModelIndexFile));
      file = folder / fmt::format("model-0000{}-of-00003.safetensors", i + 1);
    }
    const hf::SafetensorsFile saved(file);
    const hf::TensorInfo* info = saved.find(kNames[i]);
    EXPECT_NE(info, nullptr) << file;
    if (info == nullptr) return -1;
    const auto bytes = saved.bytes(*info);
    for (size_t e = 0; e < 6; ++e) {
      float found = 0;
      std::memcpy(&found, bytes.data() + e * sizeof(float), sizeof(float));
      EXPECT_EQ(found, value) << kNames[i];
    }
  }
  return value;
}

constexpr float kOld = 1, kNew = 2;

// Every operation of putting the rest of a new result in place goes wrong; then it is done again.
void break_repair(const fs::path& left) {
  const auto copy = [&](const TemporaryFolder& folder) {
    fs::copy(left, folder.path(), fs::copy_options::recursive);
  };
  const auto repair = [](const fs::path& folder, FileSystem& files) {
    try {
      finish_folder_update(folder, files);
      return true;
    } catch (const IoError&) {
      return false;  // as a run of which the power is gone
    }
  };
  for_each_crash({.fault = CrashDisk::Fault::kPowerLoss, .num_variants = 3}, copy, repair,
                 [](const Crash& crash, bool) {
                   load(crash.left);
                   finish_folder_update(crash.left, unsynced);
                   EXPECT_EQ(load(crash.left), kNew)
                       << "at operation " << crash.at << " of the repair";
                 });
}

class ExportFaults : public ::testing::TestWithParam<std::pair<bool, bool>> {};

TEST_P(ExportFaults, LeaveTheOldOrTheNewResult) {
  const auto [was_sharded, is_sharded] = GetParam();
  const auto start = [was = was_sharded](const TemporaryFolder& folder) {
    folder.put("notes.txt", "kept");
    ASSERT_TRUE(publish(folder.path(), kOld, was, unsynced));
  };
  const auto act = [is = is_sharded](const fs::path& folder, FileSystem& files) {
    return publish(folder, kNew, is, files);
  };
  for (const auto fault :
       {CrashDisk::Fault::kPowerLoss, CrashDisk::Fault::kError, CrashDisk::Fault::kShortWrite}) {
    int num_old = 0, num_new = 0;
    for_each_crash({.fault = fault}, start, act, [&](const Crash& crash, bool is_done) {
      load(crash.left);
      if (crash.variant == 1 && has_unfinished_update(crash.left)) break_repair(crash.left);
      finish_folder_update(crash.left, unsynced);
      const float found = load(crash.left);
      EXPECT_TRUE(found == kNew || (found == kOld && !is_done)) << found << " at " << crash.at;
      ++(found == kOld ? num_old : num_new);
    });
    EXPECT_GT(num_old, 0);
    EXPECT_GT(num_new, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Exports, ExportFaults,
                         ::testing::Values(std::pair(false, false), std::pair(false, true),
                                           std::pair(true, false), std::pair(true, true)));

// A model of two tensors, and an adapter of it.
void make_sources(const TemporaryFolder& folder) {
  const std::vector<float> values(16, 0.5f);
  const auto write = [&](const std::string& file, const std::vector<hf::TensorSpec>& specs) {
    fs::create_directories((folder / file).parent_path());
    hf::SafetensorsWriter writer(folder / file, specs);
    for (const hf::TensorSpec& spec : specs) {
      const size_t count = static_cast<size_t>(spec.shape[0] * spec.shape[1]);
      writer.write(spec.name, std::as_bytes(std::span(values)).first(count * sizeof(float)));
    }
    writer.finish();
  };
  const std::string path = "model.layers.0.self_attn.q_proj";
  write("model/model.safetensors", {{path + ".weight", hf::DType::kF32, {4, 4}},
                                    {"model.norm.weight", hf::DType::kF32, {4, 1}}});
  folder.put("model/config.json", R"({"model_type": "llama"})");
  write("adapter/adapter_model.safetensors",
        {{"base_model.model." + path + ".lora_A.weight", hf::DType::kF32, {2, 4}},
         {"base_model.model." + path + ".lora_B.weight", hf::DType::kF32, {4, 2}}});
  folder.put("adapter/adapter_config.json",
             R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]})");
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    found[entry.path().lexically_relative(folder)] = read_file(entry.path());
  }
  return found;
}

// What is written, and onto what.
struct Conversion {
  int target;             // 0 to 3: convert() to that target; 4: merge_adapter()
  bool is_there = false;  // an empty folder of that name
  const char* out = "out";
};

class ConvertFaults : public ::testing::TestWithParam<Conversion> {
 protected:
  bool act(const fs::path& out, FileSystem& files) const {
    try {
      const auto model = open_saved_state(sources_ / "model");
      if (GetParam().target == 4) {
        const auto adapter = open_saved_state(sources_ / "adapter");
        merge_adapter(*model, *adapter, out, {.files = &files});
      } else {
        ConvertOptions options;
        options.target = static_cast<ConvertTarget>(GetParam().target);
        options.small_files = {{"progress.json", "{}"}};
        options.files = &files;
        convert(*model, out, options);
      }
    } catch (const IoError&) {
      return false;
    }
    return true;
  }

  TemporaryFolder sources_{memory_or_disk()};
};

TEST_P(ConvertFaults, LeaveNothingOrAllOfIt) {
  make_sources(sources_);
  TemporaryFolder whole(memory_or_disk());
  ASSERT_TRUE(act(whole / "out", real_file_system()));
  const auto expected = files_of(whole / "out");
  const auto [target, was_there, out] = GetParam();
  const auto start = [&, was_there = was_there, out = out](const TemporaryFolder& folder) {
    if (was_there) fs::create_directory(folder / out);
  };
  for (const auto fault :
       {CrashDisk::Fault::kPowerLoss, CrashDisk::Fault::kError, CrashDisk::Fault::kShortWrite}) {
    const int operations = for_each_crash(
        {.fault = fault}, start,
        [&, out = out](const fs::path& folder, FileSystem& files) {
          return act(folder / out, files);
        },
        [&, was_there = was_there, out = out](const Crash& crash, bool is_done) {
          const fs::path found = crash.left / out;
          EXPECT_TRUE(fs::exists(found) || !was_there) << crash.at;
          const bool is_there = fs::exists(found) && !fs::is_empty(found);
          EXPECT_TRUE(is_there || !is_done) << crash.at;
          if (!is_there) return;
          EXPECT_EQ(files_of(found), expected) << crash.at;
        });
    EXPECT_GT(operations, 10);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, ConvertFaults,
                         ::testing::Values(Conversion{0}, Conversion{1}, Conversion{2},
                                           Conversion{3}, Conversion{4}, Conversion{0, true},
                                           Conversion{0, false, "new/below/out"},
                                           Conversion{1, false, "new/below/out"}));

}  // namespace
}  // namespace strata::checkpoint
