// The part of fmt that depends on no argument's type, compiled once for the whole program: as
// headers only, it cost every file that formats a message two seconds. Never: code of our own.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
// What fmt's headers declare as being defined elsewhere.
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl<char>(locale_ref) -> char;
template FMT_API auto dragonbox::to_decimal<float>(float) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal<double>(double) noexcept
    -> dragonbox::decimal_fp<double>;
}  // namespace detail
FMT_END_NAMESPACE
