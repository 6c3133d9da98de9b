// PickleWriter: one opcode a call, protocol 2.
#include <bit>

#include "strata/hf/formats/pickle.h"

namespace strata::hf {
namespace {

std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

}  // namespace

PickleWriter::PickleWriter() : out_("\x80\x02") {}

PickleWriter& PickleWriter::op(char code) {
  out_ += code;
  return *this;
}

PickleWriter& PickleWriter::none() { return op('N'); }
PickleWriter& PickleWriter::boolean(bool value) { return op(value ? '\x88' : '\x89'); }

PickleWriter& PickleWriter::integer(int64_t value) {
  if (value >= 0 && value < 256) {
    out_ += 'K' + little_endian(static_cast<uint64_t>(value), 1);
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    out_ += 'J' + little_endian(static_cast<uint64_t>(value), 4);
  } else {
    out_ += "\x8a\x08" + little_endian(static_cast<uint64_t>(value), 8);
  }
  return *this;
}

PickleWriter& PickleWriter::real(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  out_ += 'G';
  for (int i = 7; i >= 0; --i) out_ += static_cast<char>(bits >> (8 * i));
  return *this;
}

PickleWriter& PickleWriter::text(std::string_view value) {
  out_ += 'X' + little_endian(value.size(), 4);
  out_ += value;
  return *this;
}

PickleWriter& PickleWriter::global(std::string_view module, std::string_view name) {
  out_ += 'c';
  out_ += module;
  out_ += '\n';
  out_ += name;
  out_ += '\n';
  return *this;
}

PickleWriter& PickleWriter::empty_dict() { return op('}'); }
PickleWriter& PickleWriter::empty_list() { return op(']'); }
PickleWriter& PickleWriter::empty_tuple() { return op(')'); }
PickleWriter& PickleWriter::mark() { return op('('); }
PickleWriter& PickleWriter::tuple() { return op('t'); }
PickleWriter& PickleWriter::set_items() { return op('u'); }
PickleWriter& PickleWriter::append_all() { return op('e'); }
PickleWriter& PickleWriter::reduce() { return op('R'); }
PickleWriter& PickleWriter::new_object() { return op('\x81'); }
PickleWriter& PickleWriter::build() { return op('b'); }
PickleWriter& PickleWriter::persistent() { return op('Q'); }
std::string PickleWriter::finish() { return out_ + '.'; }

}  // namespace strata::hf
