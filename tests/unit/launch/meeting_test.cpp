// Oracle: what each launcher must be told, by hand.
#include "strata/launch/meeting.h"

#include <sys/resource.h>

#include <ctime>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"
#include "strata/launch/rendezvous_conf.h"

namespace strata::launch {
namespace {

using ::testing::HasSubstr;

class Machines : public ::testing::Test {
 protected:
  Machines() { port_ = reserve_port(0, /*listens=*/false)->number; }

  MeetingOptions options(std::optional<bool> is_host, int num_machines = 2) const {
    return {.address = "127.0.0.1",
            .port = port_,
            .num_machines = num_machines,
            .settings = "4 ranks",
            .join_timeout = std::chrono::seconds(10),
            .is_host = is_host};
  }
  static std::optional<std::string> await_news(Meeting& meeting) {
    for (int i = 0; i < 500; ++i) {
      if (auto news = meeting.news()) return news;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return std::nullopt;
  }
  // Connections that say nothing, and behind them, the last, a machine's.
  std::vector<JsonLink> call_behind_a_crowd(int size) const {
    std::vector<JsonLink> callers;
    std::string reason;
    for (int i = 0; i <= size; ++i) {
      callers.push_back(connect_to("127.0.0.1", port_, reason).value());
    }
    callers.back().send(Json{{"join", "4 ranks"}, {"num_machines", 2}, {"attempt", 0}});
    return callers;
  }
  template <typename F>
  static std::string error_of(F&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  int port_ = 0;
};

TEST_F(Machines, AreNumberedAndTakeTheHostsPort) {
  Meeting host(options(true, 3));
  std::vector<std::future<Round>> guests;
  for (int i = 0; i < 2; ++i) {
    guests.push_back(std::async(std::launch::async, [this] {
      Meeting guest(options(false, 3));
      Round round = guest.begin_round(0);
      guest.tell_end();
      return round;
    }));
  }
  const Round round = host.begin_round(0);
  ASSERT_TRUE(round.reserved);
  EXPECT_EQ(round.machine_rank, 0);
  EXPECT_EQ(round.port, round.reserved->number);
  int sum = 0;
  for (auto& each : guests) {
    const Round other = each.get();
    EXPECT_EQ(other.port, round.port);
    EXPECT_FALSE(other.reserved);
    sum += other.machine_rank * 10 + other.attempt;
  }
  EXPECT_EQ(sum, 10 + 20);
  EXPECT_FALSE(host.news()) << "ends are no failures";
}

TEST_F(Machines, TheFreeAddressOfThisMachineMakesAHost) {
  Meeting first(options({}));
  auto second = std::async(std::launch::async, [this] {
    Meeting meeting(options({}));
    return meeting.begin_round(0).machine_rank;
  });
  EXPECT_EQ(first.begin_round(0).machine_rank, 0);
  EXPECT_EQ(second.get(), 1);
}

TEST_F(Machines, AtAnAddressOfThisMachineAloneAreToldSoEarly) {
  for (const bool is_host : {false, true}) {
    std::vector<std::string> said;
    MeetingOptions alone = options(is_host);
    alone.address = "localhost";
    alone.only_here = "localhost is each machine itself";
    alone.first_join_timeout = std::chrono::seconds(3);
    alone.say = [&](const std::string& line) { said.push_back(line); };
    Meeting meeting(alone);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THAT(error_of([&] { meeting.begin_round(0); }),
                HasSubstr("; localhost is each machine itself"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(6)) << "of 10";
    ASSERT_EQ(said.size(), 1u);
    EXPECT_THAT(said[0],
                HasSubstr(is_host ? "1 of 2 machines are here; localhost is each machine"
                                  : "localhost is each machine itself; waiting up to 3 s"));
  }
}

// Machines that have met once may wait for one that comes again.
TEST_F(Machines, HaveTheLongTimeOnceTheyHaveMet) {
  MeetingOptions short_first = options(true);
  short_first.first_join_timeout = std::chrono::seconds(2);
  Meeting host(short_first);
  {
    auto guest = std::make_unique<Meeting>(options(false));
    auto round = std::async(std::launch::async, [&] { return guest->begin_round(0); });
    host.begin_round(0);
    round.get();
  }
  auto late = std::async(std::launch::async, [this] {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    return Meeting(options(false)).begin_round(1).attempt;
  });
  EXPECT_EQ(host.begin_round(1).attempt, 1);
  EXPECT_EQ(late.get(), 1);
}

TEST(MeetingOptionsOf, AnAddressThatOnlyThisMachineReaches) {
  const auto of = [](const std::string& address, int rank, const std::string& conf = "") {
    return meeting_options({.main_process_ip = address,
                            .num_machines = 2,
                            .machine_rank = rank,
                            .rdzv_backend = config::RendezvousBackend::kStatic,
                            .rdzv_conf = conf},
                           2, "");
  };
  for (const char* address : {"localhost", "LOCALHOST", "a.localhost", "127.0.1.1", "127.1", "::1",
                              "::ffff:127.0.0.1", "ip6-localhost"}) {
    for (const int rank : {0, 1}) {
      const MeetingOptions options = of(address, rank);
      EXPECT_THAT(options.only_here, HasSubstr(std::string(address) + " is each machine itself"));
      EXPECT_EQ(options.first_join_timeout, std::chrono::seconds(120));
      EXPECT_EQ(options.join_timeout, std::chrono::seconds(900));
    }
    EXPECT_FALSE(of(address, 1, "join_timeout=5").first_join_timeout) << "what is given counts";
  }
  for (const char* address : {"10.255.255.1", "2001:db8::1", "1.2.3.4"}) {
    const MeetingOptions options = of(address, 1);
    EXPECT_EQ(options.only_here, "") << address;
    EXPECT_FALSE(options.first_join_timeout);
  }
}

TEST_F(Machines, FailTogetherAndStartAgain) {
  Meeting host(options(true, 3));
  Meeting one(options(false, 3)), two(options(false, 3));
  const auto round = [&](int attempt) {
    auto first = std::async(std::launch::async, [&] { return one.begin_round(attempt); });
    auto second = std::async(std::launch::async, [&] { return two.begin_round(attempt); });
    const Round own = host.begin_round(attempt);
    EXPECT_EQ(first.get().attempt + second.get().attempt + own.attempt, 3 * attempt);
  };
  round(0);
  one.tell_failure("rank 1: broken", /*is_final=*/false);
  EXPECT_EQ(await_news(host), "rank 1: broken");
  EXPECT_EQ(await_news(two), "rank 1: broken");
  EXPECT_FALSE(one.news());
  round(1);
  EXPECT_FALSE(host.news() || one.news() || two.news()) << "what is past is forgotten";
  host.tell_failure("a machine: told to stop", /*is_final=*/true);
  EXPECT_EQ(await_news(two), "a machine: told to stop");
  EXPECT_TRUE(two.is_over());
  EXPECT_THAT(error_of([&] { two.begin_round(2); }), HasSubstr("told to stop"));
}

TEST_F(Machines, OneThatIsGoneIsNamedAndReplaced) {
  Meeting host(options(true));
  {
    auto guest = std::make_unique<Meeting>(options(false));
    auto round = std::async(std::launch::async, [&] { return guest->begin_round(0); });
    host.begin_round(0);
    round.get();
  }
  EXPECT_EQ(await_news(host),
            "machine 1 (127.0.0.1): found gone, expected its launcher to take part; look at what "
            "happened there");
  auto other = std::async(std::launch::async, [this] {
    Meeting guest(options(false));
    Round round = guest.begin_round(0);
    guest.tell_end();
    return round.attempt;
  });
  host.begin_round(1);
  EXPECT_EQ(other.get(), 1) << "it is told how often the run was started";
}

TEST_F(Machines, AHostThatIsReplacedJoinsTheRunOfTheOthers) {
  MeetingOptions of_guest = options(false);
  Meeting guest(of_guest);
  {
    MeetingOptions first = options(true);
    first.launch_time = "5.000";
    Meeting host(first);
    auto round = std::async(std::launch::async, [&] { return guest.begin_round(0); });
    host.begin_round(0);
    EXPECT_EQ(round.get().launch_time, "5.000");
  }
  EXPECT_THAT(await_news(guest).value_or(""), HasSubstr("machine 0 (127.0.0.1): found gone"));
  MeetingOptions second = options(true);
  second.launch_time = "77.000";
  Meeting host(second);
  auto round = std::async(std::launch::async, [&] { return guest.begin_round(1); });
  const Round own = host.begin_round(0);
  EXPECT_EQ(own.attempt, 1);
  EXPECT_EQ(own.launch_time, "5.000");
  EXPECT_EQ(round.get().attempt, 1);
}

TEST_F(Machines, ThatDoNotFitAreRefused) {
  Meeting host(options(true));
  auto guest = std::async(std::launch::async, [this] {
    MeetingOptions wrong = options(false);
    wrong.settings = "8 ranks";
    return error_of([&] { Meeting(wrong).begin_round(0); });
  });
  const std::string message = error_of([&] { host.begin_round(0); });
  EXPECT_EQ(message,
            "launch: found \"8 ranks\" on a machine (127.0.0.1) but \"4 ranks\" on machine 0, "
            "expected the same launch on all machines");
  EXPECT_EQ(guest.get(), message);
}

TEST_F(Machines, WithNumbersKeepThem) {
  MeetingOptions of_host = options(true, 3), of_one = options(false, 3), of_two = options(false, 3);
  of_host.machine_rank = 0;
  of_host.launch_time = "17.5";
  of_one.machine_rank = 1;
  of_two.machine_rank = 2;
  of_two.launch_time = "99.5";
  Meeting host(of_host), one(of_one), two(of_two);
  auto second = std::async(std::launch::async, [&] { return two.begin_round(0); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it comes first
  auto first = std::async(std::launch::async, [&] { return one.begin_round(0); });
  EXPECT_EQ(host.begin_round(0).launch_time, "17.5");
  EXPECT_EQ(first.get().machine_rank, 1);
  const Round round = second.get();
  EXPECT_EQ(round.machine_rank, 2);
  EXPECT_EQ(round.launch_time, "17.5") << "one run has one time";
}

TEST_F(Machines, WithOneNumberTwiceAreRefused) {
  MeetingOptions of_host = options(true, 3), of_guest = options(false, 3);
  of_host.machine_rank = 0;
  of_guest.machine_rank = 1;
  Meeting host(of_host);
  const auto join = [&] { return error_of([&] { Meeting(of_guest).begin_round(0); }); };
  auto one = std::async(std::launch::async, join);
  auto other = std::async(std::launch::async, join);
  const std::string expected =
      "machine_rank: found 1 on two machines, one that came before and a machine (127.0.0.1), "
      "expected every number once";
  EXPECT_EQ(error_of([&] { host.begin_round(0); }), expected);
  host.tell_failure("over", /*is_final=*/true);
  const std::string texts = one.get() + "|" + other.get();
  EXPECT_THAT(texts, HasSubstr(expected));
}

TEST_F(Machines, ThatComeLateAndDoNotFitEndNoRun) {
  Meeting host(options(true)), guest(options(false));
  auto round = std::async(std::launch::async, [&] { guest.begin_round(0); });
  host.begin_round(0);
  round.get();
  auto late = std::async(std::launch::async, [this] {
    MeetingOptions wrong = options(false);
    wrong.settings = "8 ranks";
    return error_of([&] { Meeting(wrong).begin_round(0); });
  });
  while (late.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) {
    EXPECT_FALSE(host.news());
  }
  EXPECT_THAT(late.get(), HasSubstr("launch: found \"8 ranks\""));
}

TEST_F(Machines, AloneCanEndTheirRun) {
  Meeting host(options(true)), guest(options(false));
  auto round = std::async(std::launch::async, [&] { guest.begin_round(0); });
  std::string reason;
  auto early = connect_to("127.0.0.1", port_, reason);
  ASSERT_TRUE(early) << reason;
  early->send(Json{{"failed", "x"}, {"final", true}});
  host.begin_round(0);
  round.get();
  auto stranger = connect_to("127.0.0.1", port_, reason);
  ASSERT_TRUE(stranger) << reason;
  for (const Json& message :
       {Json{{"failed", "x"}}, Json{{"failed", "x"}, {"final", 1}}, Json{{"refused", "x"}},
        Json{{"end", true}}, Json{{"done", true}}, Json{{"round", 1}}}) {
    stranger->send(message);
  }
  host.tell_end();  // with the stranger's end all would be done
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(host.news(), std::nullopt);
    EXPECT_EQ(guest.news(), std::nullopt);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  stranger.reset();
  EXPECT_EQ(host.news(), std::nullopt) << "nor by going";
  EXPECT_FALSE(host.is_done() || guest.is_done() || host.is_over() || guest.is_over());
}

// No descriptor for all of them.
TEST_F(Machines, ComeThroughACrowdOfSilentCallers) {
  Meeting host(options(true));
  const std::vector<JsonLink> callers = call_behind_a_crowd(12);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit old = limit;
  limit.rlim_cur = static_cast<rlim_t>(callers.back().descriptor()) + 6;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const clock_t before = std::clock();
  const std::string error = error_of([&] { host.begin_round(0); });
  const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  ::setrlimit(RLIMIT_NOFILE, &old);
  EXPECT_EQ(error, "no error");
  EXPECT_LT(seconds, 0.5) << "of the processor: it waits, it does not look again and again";
}

TEST_F(Machines, ComeThroughMoreCallersThanALauncherListensTo) {
  Meeting host(options(true));
  const std::vector<JsonLink> callers = call_behind_a_crowd(100);
  EXPECT_EQ(error_of([&] { host.begin_round(0); }), "no error");
  EXPECT_LT(host.descriptors().size(), 100u);
}

TEST_F(Machines, ThatSendFieldsOfOtherTypesHaveFailedAllTheSame) {
  Meeting host(options(true));
  std::string reason;
  auto guest = connect_to("127.0.0.1", port_, reason);
  ASSERT_TRUE(guest) << reason;
  guest->send(Json{{"join", "4 ranks"}, {"num_machines", 2}, {"attempt", "0"}});
  host.begin_round(0);
  guest->send(Json{{"failed", 1}, {"final", 1}, {"code", "1"}});
  EXPECT_EQ(await_news(host), "machine 1 (127.0.0.1): found failed, expected it to take part");
  EXPECT_FALSE(host.is_over());
  EXPECT_EQ(host.failure_code(), 1);
}

TEST_F(Machines, AreDoneWhenTheLastIs) {
  Meeting host(options(true, 3)), one(options(false, 3)), two(options(false, 3));
  auto first = std::async(std::launch::async, [&] { one.begin_round(0); });
  auto second = std::async(std::launch::async, [&] { two.begin_round(0); });
  host.begin_round(0);
  first.get();
  second.get();
  const auto is_done = [](Meeting& meeting) {
    for (int i = 0; i < 100 && !meeting.is_done(); ++i) {
      EXPECT_FALSE(meeting.news());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return meeting.is_done();
  };
  one.tell_end();
  host.tell_end();
  for (int i = 0; i < 20; ++i) {
    host.news();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_FALSE(host.is_done()) << "the third trains";
  two.tell_failure("rank 5: broken", /*is_final=*/false, 137);
  EXPECT_EQ(await_news(host), "rank 5: broken");
  EXPECT_EQ(host.failure_code(), 137);
  EXPECT_EQ(await_news(one), "rank 5: broken") << "it had ended well, and starts again";
  first = std::async(std::launch::async, [&] { one.begin_round(1); });
  second = std::async(std::launch::async, [&] { two.begin_round(1); });
  host.begin_round(1);
  first.get();
  second.get();
  for (Meeting* meeting : {&one, &two, &host}) meeting->tell_end();
  EXPECT_TRUE(is_done(host) && is_done(one) && is_done(two));
}

TEST_F(Machines, ThatDoNotComeEndTheWait) {
  MeetingOptions impatient = options(true);
  impatient.join_timeout = std::chrono::seconds(1);
  Meeting host(impatient);
  EXPECT_THAT(error_of([&] { host.begin_round(0); }),
              HasSubstr("found 1 of 2 machines after 1 s, expected all"));
  EXPECT_THAT(error_of([&] { Meeting second(impatient); }), HasSubstr("main_process_port: found"));
  impatient.is_host = false;
  impatient.port = reserve_port(0, false)->number;
  EXPECT_THAT(error_of([&] { Meeting(impatient).begin_round(0); }),
              HasSubstr("found no host (connection refused) for 1 s"));
}

TEST(RendezvousConf, ReadsWhatTorchrunTakes) {
  const RendezvousConf conf = parse_rendezvous_conf("join_timeout=30,is_host=True,read_timeout=5");
  EXPECT_EQ(conf.join_timeout, std::chrono::seconds(30));
  EXPECT_EQ(conf.is_host, true);
  EXPECT_EQ(conf.without_effect, std::vector<std::string>{"read_timeout"});
  EXPECT_FALSE(parse_rendezvous_conf("").join_timeout);
}

TEST(RendezvousConf, WrongOnesAreErrors) {
  const auto error_of = [](const char* text) -> std::string {
    try {
      parse_rendezvous_conf(text);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of("soon"), "rdzv_conf: found \"soon\", expected KEY=VALUE,KEY=VALUE");
  EXPECT_EQ(error_of("join_timeout=x"),
            "rdzv_conf: found \"x\" for join_timeout, expected a number of seconds");
  EXPECT_EQ(error_of("is_host=perhaps"),
            "rdzv_conf: found \"perhaps\" for is_host, expected true or false");
  EXPECT_THAT(error_of("join_timout=3"), HasSubstr("did you mean join_timeout?"));
}

}  // namespace
}  // namespace strata::launch
