// Oracle: the rows that were given, in the order of the reference's trainer_state.json; of a disk
// that is full for a while, the file of one that was not.
#include "strata/report/run_log.h"

#include <signal.h>
#include <sys/resource.h>

#include <gmock/gmock.h>

#include "../temporary_folder.h"
#include "strata/base/file.h"

namespace strata::report {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// No file grows beyond it: a disk without room.
class FullDisk {
 public:
  explicit FullDisk(uint64_t limit) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    struct rlimit limited = before_;
    limited.rlim_cur = limit;
    ::setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  sighandler_t handler_;
  struct rlimit before_ {};
};

class RunLogTest : public ::testing::Test {
 protected:
  RunLogTest() : file_(folder_ / "metrics.jsonl") {}

  void open(RunLog& log, std::optional<int64_t> resumed_step = std::nullopt) {
    EXPECT_EQ(log.open_metrics(file_, resumed_step), "");
    log.open_progress([this](std::string_view text) { said_ += text; }, {.total_steps = 9});
  }
  static void append(RunLog& log, int64_t step) {
    log.append({{"loss", 0.5}}, step, static_cast<double>(step) / 4, {{"rss", 7}});
  }
  // How often it was said.
  int64_t count(const std::string& text) const {
    int64_t found = 0;
    for (size_t at = 0; (at = said_.find(text, at)) != std::string::npos; ++at) ++found;
    return found;
  }

  testing::TemporaryFolder folder_;
  fs::path file_;
  std::string said_;
};

TEST_F(RunLogTest, ARowGoesEverywhereAndReadingsToMetricsAlone) {
  RunLog log;
  open(log);
  log.open_events(folder_ / "runs");
  append(log, 2);
  ASSERT_THAT(log.history(), SizeIs(1));
  EXPECT_EQ(log.history()[0].dump(), R"({"loss":0.5,"epoch":0.5,"step":2})");
  EXPECT_EQ(read_file(file_), "{\"loss\": 0.5, \"epoch\": 0.5, \"step\": 2, \"rss\": 7}\n");
  EXPECT_THAT(said_, HasSubstr("{'loss': '0.5', 'epoch': '0.5'}\n"));
  const fs::path events = fs::directory_iterator(folder_ / "runs")->path();
  EXPECT_THAT(read_file(events), HasSubstr("train/loss"));
}

// As on every rank but one.
TEST_F(RunLogTest, WithoutOutputsThereIsTheHistory) {
  RunLog log;
  log.say("nobody hears it");
  log.show({.step = 1});
  append(log, 1);
  log.settle();
  log.finish();
  EXPECT_THAT(log.history(), SizeIs(1));
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(RunLogTest, ARunThatGoesOnKeepsWhatWasLoggedBefore) {
  {
    RunLog log;
    open(log);
    for (const int64_t step : {1, 2, 3}) append(log, step);
  }
  RunLog log;
  log.go_on({Json{{"step", 1}}, Json{{"step", 2}}});
  open(log, 2);
  append(log, 3);
  EXPECT_THAT(log.history(), SizeIs(3));
  ASSERT_THAT(log.rows(), SizeIs(3));
  EXPECT_EQ(log.rows()[2].at("step"), 3);
}

TEST_F(RunLogTest, LinesThatAreNoRowsAreTold) {
  folder_.put("metrics.jsonl", "{\"step\": 1}\nnonsense\n{\"step\": 2}\n");
  RunLog log;
  EXPECT_EQ(log.open_metrics(file_, 2),
            "warning: metrics.jsonl: found 1 line that is no row, expected one of every log; left "
            "out, trainer_state.json has what they said");
}

TEST_F(RunLogTest, RowsWaitForRoomAndAreToldOfOnce) {
  RunLog log;
  open(log);
  append(log, 1);
  {
    const FullDisk full(fs::file_size(file_) + 10);
    for (const int64_t step : {2, 3, 4}) append(log, step);
    EXPECT_EQ(count("training goes on, rows are kept until there is room"), 1) << said_;
    EXPECT_THAT(read_metrics(file_), SizeIs(1));
    // What is made of the log meanwhile has them.
    ASSERT_THAT(log.rows(), SizeIs(4));
    EXPECT_EQ(log.rows()[3].at("step"), 4);
    EXPECT_THAT(log.history(), SizeIs(4));
  }
  append(log, 5);
  const std::vector<Json> rows = read_metrics(file_);
  ASSERT_THAT(rows, SizeIs(5));
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].at("step"), i + 1);
  EXPECT_THAT(log.rows(), SizeIs(5));
  log.settle();
  EXPECT_EQ(count("missing in it"), 0);
}

TEST_F(RunLogTest, AtTheEndRowsThatTheFileLacksAreToldOf) {
  RunLog log;
  open(log);
  {
    const FullDisk full(10);
    append(log, 1);
    log.settle();
    EXPECT_EQ(count("; 1 row is missing in it (what is saved of the run says the same in "
                    "trainer_state.json's log_history)"),
              1)
        << said_;
    append(log, 2);
    log.settle();
    EXPECT_EQ(count("; 2 rows are missing in it"), 1) << said_;
  }
  // There is room again, as after a result that was waited for.
  log.catch_up();
  EXPECT_THAT(read_metrics(file_), SizeIs(2));
  EXPECT_EQ(count("metrics.jsonl has the 2 rows now that were missing"), 1) << said_;
  log.catch_up();
  EXPECT_EQ(count("metrics.jsonl has"), 1) << said_;
}

TEST_F(RunLogTest, EventsEndWithoutTheRun) {
  RunLog log;
  open(log);
  log.open_events(folder_ / "runs");
  const fs::path events = fs::directory_iterator(folder_ / "runs")->path();
  append(log, 1);
  const std::string before = read_file(events);
  {
    // Rows are shorter than what the events have by now.
    const FullDisk full(fs::file_size(events));
    ASSERT_LT(2 * fs::file_size(file_), fs::file_size(events));
    append(log, 2);
  }
  append(log, 3);
  EXPECT_EQ(count("no more of them are written, training goes on"), 1) << said_;
  EXPECT_EQ(read_file(events), before);
  EXPECT_THAT(read_metrics(file_), SizeIs(3));
}

TEST_F(RunLogTest, WhereTheFileIsGoneTheHistoryTells) {
  RunLog log;
  open(log);
  append(log, 1);
  fs::remove(file_);
  EXPECT_EQ(log.rows(), log.history());
}

TEST_F(RunLogTest, AnEmptyLineIsNone) {
  RunLog log;
  open(log);
  log.say("");
  EXPECT_THAT(said_, IsEmpty());
  log.say("a line");
  EXPECT_EQ(said_, "a line\n");
}

}  // namespace
}  // namespace strata::report
