// The tokens for languages that translation models put beside a text. Data only.
#pragma once

#include <string_view>

#include "strata/base/json.h"

namespace strata::text {

// Names with a space between.
extern const std::string_view kMbartCodes;
extern const std::string_view kMoreMbart50Codes;          // mBART-50 has those of mBART and these
extern const std::string_view kNllbCodes;                 // FLORES-200
extern const std::string_view kM2m100Codes, kWmt21Codes;  // of M2M-100, without their marks

// The names as a JSON array, each between two of `mark`.
Json listed_codes(std::string_view codes, std::string_view more = {}, std::string_view mark = {});

}  // namespace strata::text
