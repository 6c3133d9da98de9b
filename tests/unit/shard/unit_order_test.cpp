// Oracle: the states of a unit in unit_store.h: every call that they do not allow is refused with
// the unit, the state and the call in the message, every other is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/comm/mesh.h"
#include "strata/models/registry.h"
#include "strata/shard/unit_store.h"

namespace strata::shard {
namespace {

using strata::testing::message_of;

using Call = void (*)(UnitStore&);

// Of unit 1, a layer.
void gather(UnitStore& store) { store.gather(1); }
void gather_parts(UnitStore& store) { store.gather(1, /*from_parts=*/true); }
void wait_gather(UnitStore& store) { store.wait_gather(1); }
void release(UnitStore& store) { store.release(1); }
void keep_part(UnitStore& store) { store.release(1, /*keep_part=*/true); }
void refresh(UnitStore& store) { store.refresh(1); }
void open(UnitStore& store) { store.open_gradients(1, /*first_micro_step=*/true); }
void reduce(UnitStore& store) { store.reduce(1, /*last_micro_step=*/true); }
void settle(UnitStore& store) { store.settle_reduce(1); }
void wait_reduce(UnitStore& store) { store.wait_reduce(1); }

// One rank of two copies of the weights, four ranks each, which rest in parts on two.
struct Store {
  std::unique_ptr<models::Model> model = models::create_model(Json{{"model_type", "llama"},
                                                                   {"vocab_size", 37},
                                                                   {"hidden_size", 20},
                                                                   {"intermediate_size", 28},
                                                                   {"num_hidden_layers", 1},
                                                                   {"num_attention_heads", 2}},
                                                              {});
  comm::Mesh mesh = comm::make_fake_mesh(8, {.shard_size = 4, .part_size = 2});
  UnitStore units{*model, mesh, {}};
};

struct Case {
  std::string name;
  std::vector<Call> before;  // allowed, in this order
  Call call;
  std::string message;  // between the unit's name and the advice; empty: allowed
};

class UnitOrder : public ::testing::TestWithParam<Case> {};

TEST_P(UnitOrder, IsAsTheStatesSay) {
  const Case& row = GetParam();
  Store store;
  for (const Call call : row.before) call(store.units);
  const std::string message = message_of<InternalError>([&] { row.call(store.units); });
  const std::string expected =
      "unit \"" + store.units.unit(1).name + "\": found " + row.message + "; report this as a bug";
  EXPECT_EQ(message, row.message.empty() ? "" : expected);
}

const std::string kHeld = ", expected gathering or gathered";

INSTANTIATE_TEST_SUITE_P(
    Values, UnitOrder,
    ::testing::Values(
        Case{"parts_never_kept",
             {},
             gather_parts,
             "sharded at a gather from parts, expected in parts"},
        Case{"wait_without_gather", {}, wait_gather, "sharded at a wait for a gather" + kHeld},
        Case{"release_without_gather", {}, release, "sharded at a release" + kHeld},
        Case{"keep_without_gather", {}, keep_part, "sharded at a release" + kHeld},
        Case{"refresh_without_gather", {}, refresh, "sharded at a refresh" + kHeld},
        Case{"second_gather", {gather}, gather, "gathering at a gather, expected sharded"},
        Case{"parts_of_a_gather",
             {gather},
             gather_parts,
             "gathering at a gather from parts, expected in parts"},
        Case{"gather_of_what_is_there",
             {gather, wait_gather},
             gather,
             "gathered at a gather, expected sharded"},
        Case{"second_release", {gather, release}, release, "sharded at a release" + kHeld},
        Case{"refresh_after_release", {gather, release}, refresh, "sharded at a refresh" + kHeld},
        Case{"whole_beside_parts",
             {gather, keep_part},
             gather,
             "in parts at a gather, expected sharded"},
        Case{"wait_for_parts",
             {gather, keep_part},
             wait_gather,
             "in parts at a wait for a gather" + kHeld},
        Case{"release_of_parts", {gather, keep_part}, release, "in parts at a release" + kHeld},
        Case{"refresh_of_parts", {gather, keep_part}, refresh, "in parts at a refresh" + kHeld},
        Case{"second_wait", {gather, wait_gather}, wait_gather, ""},
        Case{"release_before_wait", {gather}, release, ""},
        Case{"refresh_before_wait", {gather}, refresh, ""},
        Case{"wait_for_refresh", {gather, refresh}, wait_gather, ""},
        Case{"gather_again", {gather, release}, gather, ""},
        Case{"parts_and_back", {gather, keep_part, gather_parts, release}, gather, ""}),
    [](const auto& info) { return info.param.name; });

const std::string kRunning = ", expected gradients reducing or gradients summing";

INSTANTIATE_TEST_SUITE_P(
    Gradients, UnitOrder,
    ::testing::Values(
        Case{"reduce_without_open",
             {},
             reduce,
             "no gradients at a reduction, expected open gradients"},
        Case{"settle_without_reduce",
             {},
             settle,
             "no gradients at a wait for the shard group, expected gradients reducing"},
        Case{"wait_without_reduce",
             {},
             wait_reduce,
             "no gradients at a wait for a reduction" + kRunning},
        Case{"second_open",
             {open},
             open,
             "open gradients at opening gradients, expected no gradients"},
        Case{"settle_before_reduce",
             {open},
             settle,
             "open gradients at a wait for the shard group, expected gradients reducing"},
        Case{"wait_before_reduce",
             {open},
             wait_reduce,
             "open gradients at a wait for a reduction" + kRunning},
        Case{"open_while_reducing",
             {open, reduce},
             open,
             "gradients reducing at opening gradients, expected no gradients"},
        Case{"second_reduce",
             {open, reduce},
             reduce,
             "gradients reducing at a reduction, expected open gradients"},
        Case{"open_while_summing",
             {open, reduce, settle},
             open,
             "gradients summing at opening gradients, expected no gradients"},
        Case{"second_settle",
             {open, reduce, settle},
             settle,
             "gradients summing at a wait for the shard group, expected gradients reducing"},
        Case{"second_wait",
             {open, reduce, wait_reduce},
             wait_reduce,
             "no gradients at a wait for a reduction" + kRunning},
        Case{"whole_way", {open, reduce, settle, wait_reduce}, open, ""},
        Case{"gradients_of_a_unit_that_comes_and_goes",
             {gather, open, release, reduce, gather, settle, release},
             wait_reduce,
             ""}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace strata::shard
