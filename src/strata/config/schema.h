// The settings table for editors. Owns: which values a file of `--config` may hold, as a JSON
// schema. Never: rules between settings (checks/).
#pragma once

#include "strata/base/json.h"

namespace strata::config {

// A schema (draft-07) of files of `--config`: every setting with its meaning and default. It
// accepts what only several keys together show to be wrong, and refuses, beside what is wrong,
// forms that no page shows, such as a list of one item where one item is expected.
Json settings_schema();

}  // namespace strata::config
