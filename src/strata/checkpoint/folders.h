// The checkpoint folders of an output folder: finding, choosing, removing. Owns: their names.
// Never: what is in them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "strata/base/file_system.h"

namespace strata::checkpoint {

// OUTPUT_DIR/checkpoint-STEP.
std::filesystem::path folder_of(const std::filesystem::path& output_dir, int64_t step);
// The step of "checkpoint-12", or -1.
int64_t step_of(const std::filesystem::path& folder);

// Checkpoints of an output folder by ascending step; unfinished ones are not among them.
std::vector<std::filesystem::path> list(const std::filesystem::path& output_dir);

// A folder named like a checkpoint that list() leaves out, and why, as part of a sentence.
struct PassedOver {
  std::filesystem::path folder;
  std::string reason;
};
// Sorted by ascending step.
std::vector<PassedOver> passed_over(const std::filesystem::path& output_dir);

// Whether resume_from_checkpoint means the newest of the output folder.
bool means_newest(const std::string& resume_from);

// Checkpoints of later steps than that which `latest` names, though they were there before it: what
// an earlier run in the same folder left, or a branch that was given up. By ascending step. One
// that came later than `latest` (a crash before it was written, or a copy) is not among them.
std::vector<std::filesystem::path> set_aside(const std::filesystem::path& output_dir);

// What to try to resume from, best first. "true": the checkpoints of the output folder, newest
// first, but for those that are set aside while there are others; otherwise the path alone. Throws
// ConfigError with the reference's words when there is none.
std::vector<std::filesystem::path> candidates(const std::string& resume_from,
                                              const std::filesystem::path& output_dir);

// What a run that began `time` seconds after 1970 has saved to continue from, as
// resume_from_checkpoint takes it: "true"; a path, where `latest` found no room and an earlier
// run's reach further; or empty. For words alone: a file server may have another time.
std::string saved_since(const std::filesystem::path& output_dir, double time);

// The key of progress.json under which checkpoints have the launch_time() of their run's launcher
// (launch/restarts.h).
inline constexpr const char* kLaunchKey = "launch";
// As saved_since(), for the runs that one launcher started, independent of clocks.
std::string saved_by_launch(const std::filesystem::path& output_dir, double launch_time);

// What a limit on the number of checkpoints removes, oldest first, until `limit` are left: never
// the newest and none of `keep`. Those that are set aside are neither counted nor removed: they may
// be all that an earlier run left, and are of later steps than this one has reached.
std::vector<std::filesystem::path> surplus(const std::filesystem::path& output_dir, int64_t limit,
                                           const std::vector<std::filesystem::path>& keep = {});

// Removes them. To be called by one process, after the newest is durable and `latest` names it.
void rotate(const std::filesystem::path& output_dir, int64_t limit,
            const std::vector<std::filesystem::path>& keep = {},
            FileSystem& files = real_file_system());

// What follows a save, where a kill came before it: `latest` names the newest one, which was proved
// to be whole, and then what is too many goes.
void finish_save(const std::filesystem::path& newest,
                 const std::vector<std::filesystem::path>& surplus,
                 FileSystem& files = real_file_system());

// Removes all checkpoints but one, which must be there.
void keep_only(const std::filesystem::path& folder, FileSystem& files = real_file_system());

}  // namespace strata::checkpoint
