// Oracle: the rules of the reference Trainer for save_total_limit and the best checkpoint, and
// those that docs/guide documents for failed saves, save_only_model and rollbacks; folders that a
// Saver played by hand leaves, where a rule is about what stays.
#include "strata/train/saving/run_checkpoints.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "../temporary_folder.h"
#include "strata/base/file.h"
#include "strata/checkpoint/folders.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RunCheckpointsTest : public ::testing::Test {
 protected:
  RunCheckpointsTest() {
    config_.train.output_dir = folder_ / "out";
    config_.train.save_strategy = config::Interval::kSteps;
    config_.train.save_total_limit = 1;
    fs::create_directories(config_.train.output_dir);
  }

  fs::path out(int64_t step) const { return checkpoint::folder_of(config_.train.output_dir, step); }

  // A checkpoint, as far as its folder tells whose it is.
  fs::path put(const fs::path& folder, const std::string& run) const {
    fs::create_directories(folder);
    write_file_atomically(folder / "progress.json", Json{{"run", run}}.dump());
    write_file_atomically(folder / "manifest.json", "{}");
    return folder;
  }

  checkpoint::SaveOutcome saved(int64_t step) const { return {.folder = out(step), .failure = ""}; }
  checkpoint::SaveOutcome failed(int64_t step) const {
    return {.folder = out(step), .failure = "disk full"};
  }

  // What Saver makes of a save that succeeds: the new one is there before old ones go. Returns how
  // many there were at once.
  int64_t play_save(RunCheckpoints& run, int64_t step, bool in_doubt = false) const {
    checkpoint::Removal removal = run.start_save(step, in_doubt);
    put(out(step), "mine");
    write_file_atomically(fs::path(config_.train.output_dir) / "latest",
                          out(step).filename().string());
    const auto at_once = std::ssize(checkpoint::list(config_.train.output_dir));
    if (removal.is_allowed && config_.train.save_total_limit) {
      removal.kept.push_back(out(step));
      checkpoint::rotate(config_.train.output_dir, *config_.train.save_total_limit, removal.kept);
    }
    run.note_end(saved(step));
    return at_once;
  }

  std::vector<int64_t> steps_there() const {
    std::vector<int64_t> steps;
    for (const fs::path& folder : checkpoint::list(config_.train.output_dir)) {
      steps.push_back(checkpoint::step_of(folder));
    }
    return steps;
  }

  RunCheckpoints begin() const {
    RunCheckpoints run(config_);
    run.begin_anew("mine");
    return run;
  }

  static void name_source(RunCheckpoints& run, const fs::path& source) {
    run.note_source(source, run.seen(source));
  }

  // A run that goes on from a checkpoint of its own.
  RunCheckpoints go_on_from(const fs::path& source, const report::TrainerState& state = {}) const {
    RunCheckpoints run(config_);
    report::TrainerState at_source = state;
    at_source.global_step = checkpoint::step_of(source);
    run.go_on(at_source, Json{{"run", "mine"}});
    name_source(run, put(source, "mine"));
    return run;
  }

  void decide_by_loss() { config_.train.metric_for_best_model = "loss"; }

  testing::TemporaryFolder folder_{testing::memory_or_disk()};
  config::RunConfig config_;
};

TEST_F(RunCheckpointsTest, EveryRunThatBeginsHasANameOfItsOwn) {
  const std::string name = fresh_run_id();
  EXPECT_EQ(name.size(), 16u);
  EXPECT_NE(name, fresh_run_id());
  EXPECT_EQ(begin().run_id(), "mine") << "what its checkpoints keep";
}

TEST_F(RunCheckpointsTest, ASaveCountsFromItsStart) {
  RunCheckpoints run = begin();
  EXPECT_EQ(run.last(0), std::nullopt);
  run.start_save(10, /*in_doubt=*/false);
  EXPECT_EQ(run.last(10), out(10));
  EXPECT_EQ(run.last(11), std::nullopt) << "steps since then are in memory alone";
  run.note_end(saved(10));
  EXPECT_EQ(run.last(10), out(10));
}

TEST_F(RunCheckpointsTest, ASaveThatFailedIsAsIfItHadNotBeenStarted) {
  RunCheckpoints run = begin();
  play_save(run, 10);
  // What lies where it was to be is another run's.
  put(out(20), "another");
  run.start_save(20, /*in_doubt=*/false);
  checkpoint::SaveOutcome outcome = failed(20);
  // Told when it ended on this rank; taken back when all agree.
  outcome.is_told = true;
  run.note_end(outcome);
  EXPECT_EQ(run.last(20), std::nullopt);
  EXPECT_THAT(run.ways_back(100), ElementsAre(out(10)));
}

TEST_F(RunCheckpointsTest, AFailureThatIsHeardOfLaterLeavesTheSavesSince) {
  RunCheckpoints run = begin();
  put(out(10), "another");
  run.start_save(10, /*in_doubt=*/false);
  run.start_save(20, /*in_doubt=*/false);
  put(out(20), "mine");
  run.note_end(failed(10));
  EXPECT_EQ(run.last(20), out(20));
  EXPECT_THAT(run.ways_back(100), ElementsAre(out(20)));
}

TEST_F(RunCheckpointsTest, WhileTheWeightsMayBeBadASaveRemovesNothing) {
  RunCheckpoints run = begin();
  EXPECT_FALSE(run.is_in_doubt(0));
  play_save(run, 10);
  EXPECT_TRUE(run.is_in_doubt(1));
  play_save(run, 20, run.is_in_doubt(1));
  EXPECT_THAT(steps_there(), ElementsAre(10, 20));
  // Nor after a rollback, until a batch was good: the next one back must still be there.
  run.note_return(out(20));
  EXPECT_TRUE(run.is_in_doubt(0));
  play_save(run, 30, run.is_in_doubt(0));
  EXPECT_THAT(steps_there(), ElementsAre(10, 20, 30));
  run.note_good_batch();
  EXPECT_FALSE(run.is_in_doubt(0));
  play_save(run, 40, run.is_in_doubt(0));
  EXPECT_THAT(steps_there(), ElementsAre(40));
}

TEST_F(RunCheckpointsTest, ARollbackGoesToBeforeTheFirstBadStepNewestFirst) {
  RunCheckpoints run = begin();
  for (const int64_t step : {2, 4, 6}) play_save(run, step, /*in_doubt=*/true);
  EXPECT_EQ(run.rollback_limit(6), 6);
  EXPECT_THAT(run.ways_back(7), ElementsAre(out(6), out(4), out(2)));
  EXPECT_THAT(run.ways_back(6), ElementsAre(out(4), out(2)));
  EXPECT_THAT(run.ways_back(2), IsEmpty());
}

TEST_F(RunCheckpointsTest, ARollbackNeverGoesTwiceToOneThatDidNotHelp) {
  RunCheckpoints run = begin();
  for (const int64_t step : {2, 4, 6}) play_save(run, step, /*in_doubt=*/true);
  run.note_return(out(4));
  EXPECT_EQ(run.rollback_limit(9), 4);
  EXPECT_THAT(run.ways_back(9), ElementsAre(out(2)));
  // Nor to one that was saved since then, of the same weights.
  play_save(run, 8, run.is_in_doubt(0));
  EXPECT_THAT(run.ways_back(9), ElementsAre(out(2)));
  run.note_return(out(2));
  EXPECT_THAT(run.ways_back(12), IsEmpty());
  EXPECT_EQ(run.rollback_limit(12), 2) << "what the message of the end names";
}

TEST_F(RunCheckpointsTest, AGoodBatchMakesTheReturnedToAsGoodAsAny) {
  RunCheckpoints run = begin();
  for (const int64_t step : {2, 4}) play_save(run, step, /*in_doubt=*/true);
  run.note_return(out(2));
  run.note_good_batch();
  EXPECT_EQ(run.rollback_limit(9), 9);
  EXPECT_THAT(run.ways_back(9), ElementsAre(out(4), out(2)));
}

TEST_F(RunCheckpointsTest, OthersCheckpointsAreNoWayBack) {
  put(out(2), "mine");
  put(out(4), "another");
  write_file_atomically(put(out(6), "mine") / "progress.json", "{");  // named when it is tried
  // Of a branch of this run that was given up: it went on from an earlier step.
  put(out(12), "mine");
  put(out(14), "another");
  RunCheckpoints run = go_on_from(out(8));
  EXPECT_THAT(run.ways_back(100), ElementsAre(out(8), out(6), out(2)));
  // Until this process has saved that step itself.
  run.start_save(12, /*in_doubt=*/true);
  EXPECT_THAT(run.ways_back(100), ElementsAre(out(12), out(8), out(6), out(2)));
}

TEST_F(RunCheckpointsTest, ARunThatStartsAnewOwnsNothingThatIsThere) {
  put(out(2), "another");
  EXPECT_THAT(begin().ways_back(100), IsEmpty());
}

TEST_F(RunCheckpointsTest, TheOneThatTheRunWentOnFromIsTheLastWayBack) {
  const fs::path source = folder_ / "elsewhere" / "checkpoint-10";
  RunCheckpoints run = go_on_from(source);
  EXPECT_EQ(run.first_step(), 10);
  EXPECT_THAT(run.ways_back(11), ElementsAre(source));
  EXPECT_THAT(run.ways_back(10), IsEmpty());
  play_save(run, 15);
  EXPECT_THAT(run.ways_back(20), ElementsAre(out(15), source));
  run.note_return(source);
  EXPECT_THAT(run.ways_back(20), IsEmpty());
}

TEST_F(RunCheckpointsTest, TheOneThatTheRunWentOnFromIsOfItsStepWhateverItsName) {
  const fs::path source = folder_ / "elsewhere" / "copy";
  RunCheckpoints run(config_);
  report::TrainerState state;
  state.global_step = 14;
  run.go_on(state, Json{{"run", "mine"}});
  name_source(run, put(source, "mine"));
  EXPECT_THAT(run.ways_back(13), IsEmpty()) << "batches before it were bad";
  EXPECT_THAT(run.ways_back(15), ElementsAre(source));
  run.note_return(source);
  EXPECT_EQ(run.rollback_limit(20), 14);
  EXPECT_THAT(run.ways_back(20), IsEmpty());
}

// As an older version or another tool left them: one without a name may be anybody's.
TEST_F(RunCheckpointsTest, WhatHasNoNameIsNobodys) {
  RunCheckpoints run(config_);
  report::TrainerState state;
  state.global_step = 14;
  run.go_on(state, Json::object());
  name_source(run, put(out(14), ""));
  put(out(2), "");
  EXPECT_THAT(run.ways_back(13), IsEmpty());
  EXPECT_THAT(run.ways_back(15), ElementsAre(out(14)));
}

TEST_F(RunCheckpointsTest, OnePlaceByTwoNamesIsTriedOnce) {
  put(out(10), "mine");
  fs::create_directory_symlink(folder_ / "out", folder_ / "link");
  const RunCheckpoints run = go_on_from(folder_ / "link" / "checkpoint-10");
  EXPECT_THAT(run.ways_back(11), ElementsAre(out(10)));
}

TEST_F(RunCheckpointsTest, WhatCannotBeResumedFromIsForgotten) {
  RunCheckpoints run(config_);
  report::TrainerState damaged, whole;
  damaged.global_step = 20;
  whole.global_step = 10;
  run.go_on(damaged, Json{{"run", "another"}});
  run.go_on(whole, Json{{"run", "mine"}});
  name_source(run, put(out(10), "mine"));
  put(out(20), "another");
  EXPECT_EQ(run.first_step(), 10);
  EXPECT_EQ(run.run_id(), "mine");
  EXPECT_THAT(run.ways_back(100), ElementsAre(out(10)));
  // As other tools and older versions write it.
  run.go_on(whole, Json::object());
  EXPECT_EQ(run.run_id(), "");
}

TEST_F(RunCheckpointsTest, WithoutTheOptimizerTheOneThatCanBeGoneOnFromStays) {
  config_.train.save_only_model = true;
  RunCheckpoints run = go_on_from(out(5));
  play_save(run, 10);
  play_save(run, 20);
  EXPECT_THAT(steps_there(), ElementsAre(5, 20));
  // Weights alone are no way back, and no answer to a request.
  EXPECT_THAT(run.ways_back(100), IsEmpty());
  run.forget_last();
  EXPECT_EQ(run.last(20), std::nullopt);
  // One on request has it, and takes the other's place.
  play_save(run, 25);
  run.note_resumable(25);
  EXPECT_EQ(run.resumable(), out(25));
  play_save(run, 30);
  EXPECT_THAT(steps_there(), ElementsAre(25, 30));
}

TEST_F(RunCheckpointsTest, ARequestThatFailedLeavesTheOneBefore) {
  config_.train.save_only_model = true;
  RunCheckpoints run = go_on_from(out(5));
  run.start_save(10, /*in_doubt=*/false);
  run.note_end(failed(10));
  run.note_resumable(10);
  EXPECT_EQ(run.resumable(), out(5));
  play_save(run, 20);
  EXPECT_THAT(steps_there(), ElementsAre(5, 20));
}

TEST_F(RunCheckpointsTest, WithTheOptimizerTheOneThatTheRunWentOnFromGoes) {
  RunCheckpoints run = go_on_from(out(5));
  play_save(run, 10);
  EXPECT_THAT(steps_there(), ElementsAre(10));
}

TEST_F(RunCheckpointsTest, OnlyTheOneThatWasAskedForAnswersARequest) {
  RunCheckpoints run = begin();
  run.start_save(10, /*in_doubt=*/false);
  EXPECT_FALSE(run.is_requested(out(10)));
  run.start_save(20, /*in_doubt=*/false);
  run.note_request(20);
  EXPECT_FALSE(run.is_requested(out(10)));
  EXPECT_TRUE(run.is_requested(out(20)));
}

// As in the reference, also beyond the limit.
TEST_F(RunCheckpointsTest, TheBestOneStays) {
  decide_by_loss();
  RunCheckpoints run = begin();
  ASSERT_TRUE(run.judge(1.0, 10));
  play_save(run, 10);
  for (const int64_t step : {20, 30}) {
    ASSERT_FALSE(run.judge(2.0, step));
    play_save(run, step);
    EXPECT_THAT(steps_there(), ElementsAre(10, step));
  }
  ASSERT_TRUE(run.judge(0.5, 40));
  play_save(run, 40);
  EXPECT_THAT(steps_there(), ElementsAre(40));
}

// Its values are none of this run's.
TEST_F(RunCheckpointsTest, AnEarlierRunsCheckpointOfTheBestStepIsNotTheBestOne) {
  decide_by_loss();
  put(out(10), "another");
  RunCheckpoints run = begin();
  ASSERT_TRUE(run.judge(1.0, 10));
  play_save(run, 20);
  EXPECT_EQ(run.best().folder(), std::nullopt);
}

// A stop breaks an evaluation off and saves its step; whoever goes on makes up for it there.
TEST_F(RunCheckpointsTest, TheBestOneMayBeWhatTheRunWentOnFrom) {
  decide_by_loss();
  RunCheckpoints run = go_on_from(out(10));
  ASSERT_TRUE(run.judge(1.0, 10));
  for (const int64_t step : {20, 30}) {
    play_save(run, step);
    EXPECT_EQ(run.best().folder(), out(10).string());
    EXPECT_THAT(steps_there(), ElementsAre(10, step));
  }
}

// Ranks of one folder may see it otherwise for some seconds: rank 0's look counts.
TEST_F(RunCheckpointsTest, WhereTheBestOneLiesIsRank0sToSay) {
  decide_by_loss();
  report::TrainerState state;
  state.global_step = 20;
  state.best_metric = 1.0;
  state.best_global_step = 10;
  state.best_model_checkpoint = (folder_ / "moved" / "checkpoint-10").string();
  const auto note = [&](const fs::path& found) {
    RunCheckpoints run(config_);
    run.go_on(state, Json{{"run", "mine"}});
    if (!found.empty()) put(found, "mine");
    const std::string seen = run.seen(out(20));
    fs::remove_all(found);  // as another rank sees it
    const std::string lost = run.note_source(out(20), seen);
    EXPECT_EQ(lost.empty(), !found.empty()) << lost;
    return run.best().folder();
  };
  EXPECT_EQ(note(*state.best_model_checkpoint), *state.best_model_checkpoint);
  EXPECT_EQ(note(out(10)), out(10).string());
  EXPECT_EQ(note({}), std::nullopt);
}

TEST_F(RunCheckpointsTest, WhereTheBestOneFailedTheOneBeforeStays) {
  decide_by_loss();
  RunCheckpoints run = begin();
  ASSERT_TRUE(run.judge(2.0, 10));
  play_save(run, 10);
  ASSERT_TRUE(run.judge(1.0, 20));
  run.start_save(20, /*in_doubt=*/false);
  EXPECT_EQ(run.best().folder(), out(20).string());
  run.note_end(failed(20));
  EXPECT_EQ(run.best().folder(), out(10).string());
  ASSERT_FALSE(run.judge(3.0, 30));
  play_save(run, 30);
  EXPECT_THAT(steps_there(), ElementsAre(10, 30));
  ASSERT_TRUE(run.judge(1.9, 40)) << "better than the one that there is";
  play_save(run, 40);
  EXPECT_THAT(steps_there(), ElementsAre(40));
}

TEST_F(RunCheckpointsTest, AtTheEndOfALimitOfOneTheBestOneAloneStays) {
  decide_by_loss();
  RunCheckpoints run = begin();
  EXPECT_EQ(run.only_one_kept(), std::nullopt) << "none is known";
  ASSERT_TRUE(run.judge(1.0, 10));
  play_save(run, 10);
  ASSERT_FALSE(run.judge(2.0, 20));
  play_save(run, 20);
  EXPECT_EQ(run.only_one_kept(), out(10));
  // The result is of the last step then, which 20 holds.
  RunCheckpoints unreadable = run;
  unreadable.note_damaged_best();
  EXPECT_EQ(unreadable.only_one_kept(), std::nullopt);
  fs::remove_all(out(10));
  EXPECT_EQ(run.only_one_kept(), std::nullopt) << "it is gone";
}

TEST_F(RunCheckpointsTest, AtTheEndOfAnotherLimitNothingGoes) {
  decide_by_loss();
  for (const std::optional<int64_t> limit : {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
    config_.train.save_total_limit = limit;
    RunCheckpoints run = begin();
    ASSERT_TRUE(run.judge(1.0, 10));
    play_save(run, 10);
    EXPECT_EQ(run.only_one_kept(), std::nullopt);
  }
}

TEST_F(RunCheckpointsTest, ABestOneInAnotherRunsFolderRemovesNothing) {
  decide_by_loss();
  const fs::path source = folder_ / "elsewhere" / "checkpoint-10";
  report::TrainerState state;
  state.best_metric = 1.0;
  state.best_global_step = 10;
  state.best_model_checkpoint = put(source, "mine").string();
  RunCheckpoints run = go_on_from(source, state);
  ASSERT_FALSE(run.judge(2.0, 20));
  play_save(run, 20);
  EXPECT_EQ(run.best().folder(), source.string());
  EXPECT_EQ(run.only_one_kept(), std::nullopt);
}

TEST_F(RunCheckpointsTest, WhatAKillBehindASaveLeftIsFound) {
  config_.train.save_total_limit = 2;
  for (const int64_t step : {1, 2, 3, 4}) put(out(step), "mine");
  EXPECT_THAT(go_on_from(out(4)).left_over(2), ElementsAre(out(1), out(2)));
  EXPECT_THAT(go_on_from(out(4)).left_over(3), ElementsAre(out(1))) << "as the run before kept";
  EXPECT_THAT(go_on_from(out(4)).left_over(std::nullopt), IsEmpty()) << "that one removed none";
  EXPECT_THAT(go_on_from(out(3)).left_over(2), IsEmpty()) << "the newest one is another branch's";
  EXPECT_THAT(go_on_from(folder_ / "elsewhere" / "checkpoint-4").left_over(2), IsEmpty());
  EXPECT_THAT(begin().left_over(2), IsEmpty());
  config_.train.save_total_limit.reset();
  EXPECT_THAT(go_on_from(out(4)).left_over(2), IsEmpty());
}

TEST_F(RunCheckpointsTest, WhatNoSaveMayRemoveIsNotLeftOver) {
  decide_by_loss();
  for (const int64_t step : {1, 2, 3}) put(out(step), "mine");
  report::TrainerState state;
  state.best_metric = 1.0;
  state.best_global_step = 1;
  state.best_model_checkpoint = out(1).string();
  EXPECT_THAT(go_on_from(out(3), state).left_over(1), ElementsAre(out(2)));
  // Saved while batches were bad.
  RunCheckpoints run(config_);
  state.global_step = 3;
  run.go_on(state, Json{{"run", "mine"}, {"in_doubt", true}});
  name_source(run, out(3));
  EXPECT_THAT(run.left_over(1), IsEmpty());
}

TEST_F(RunCheckpointsTest, WhatIsThereCountsAgainstTheLimitAndLaterOnesDoNot) {
  for (const int64_t step : {1, 2, 3}) put(out(step), "mine");
  for (const int64_t step : {50, 60}) put(out(step), "another");
  config_.train.save_total_limit = 4;
  EXPECT_EQ(go_on_from(out(4)).num_at_once(9), 1);
  config_.train.save_total_limit = 1;
  EXPECT_EQ(go_on_from(out(4)).num_at_once(9), 1) << "the new one, before old ones go";
  config_.train.save_total_limit = 6;
  EXPECT_EQ(go_on_from(out(4)).num_at_once(9), 3);
  EXPECT_EQ(begin().num_at_once(9), 7);
  EXPECT_EQ(begin().num_at_once(0), 0);
  config_.train.save_total_limit.reset();
  EXPECT_EQ(begin().num_at_once(9), 9);
}

// What a run's saves take at most on the disk, played, is what the rule says beforehand.
struct SavesCase {
  bool decides = false;  // evaluations, of which the first is the best
  bool only_model = false;
  int64_t first_step = 0;
  int64_t limit = 1;
  int64_t num_saves = 1;
};

class RunCheckpointsAtOnce : public RunCheckpointsTest,
                             public ::testing::WithParamInterface<SavesCase> {};

TEST_P(RunCheckpointsAtOnce, IsAsManyAsSavesLeave) {
  const SavesCase& c = GetParam();
  config_.train.save_only_model = c.only_model;
  config_.train.save_total_limit = c.limit;
  if (c.decides) decide_by_loss();
  RunCheckpoints run = c.first_step > 0 ? go_on_from(out(c.first_step)) : begin();
  const int64_t expected = run.num_at_once(c.num_saves);
  const auto there = std::ssize(steps_there());
  int64_t most = 0;
  for (int64_t i = 1; i <= c.num_saves; ++i) {
    const int64_t step = c.first_step + 10 * i;
    if (c.decides) run.judge(static_cast<double>(i), step);
    most = std::max(most, play_save(run, step) - there);
  }
  EXPECT_EQ(most, expected);
}

INSTANTIATE_TEST_SUITE_P(
    Saves, RunCheckpointsAtOnce,
    ::testing::Values(SavesCase{.num_saves = 1}, SavesCase{.num_saves = 2},
                      SavesCase{.num_saves = 8}, SavesCase{.limit = 3, .num_saves = 8},
                      SavesCase{.decides = true, .num_saves = 2},
                      SavesCase{.decides = true, .num_saves = 8},
                      SavesCase{.decides = true, .limit = 2, .num_saves = 8},
                      SavesCase{.decides = true, .limit = 3, .num_saves = 8},
                      SavesCase{.first_step = 5, .num_saves = 8},
                      SavesCase{.first_step = 5, .limit = 3, .num_saves = 8},
                      SavesCase{.decides = true, .first_step = 5, .num_saves = 8},
                      SavesCase{.only_model = true, .num_saves = 8},
                      SavesCase{.only_model = true, .first_step = 5, .num_saves = 8},
                      SavesCase{.only_model = true, .first_step = 5, .limit = 2, .num_saves = 8},
                      SavesCase{.only_model = true, .first_step = 5, .limit = 4, .num_saves = 8},
                      SavesCase{
                          .decides = true, .only_model = true, .first_step = 5, .num_saves = 8}));

}  // namespace
}  // namespace strata::train
