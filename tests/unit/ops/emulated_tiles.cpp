#include "emulated_tiles.h"

#include "strata/ops/instruction_set.h"

#if defined(STRATA_X86_KERNELS) && defined(__linux__)

#include <ucontext.h>

#include <bit>
#include <cstdint>
#include <cstring>

namespace strata::ops::reference {
namespace {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

// What a thread's unit holds.
struct Unit {
  uint8_t row_bytes[kTiles] = {}, rows[kTiles] = {};
  uint8_t data[kTiles][kRows][kRowBytes];
};
thread_local Unit unit;

// One instruction behind a VEX prefix of three bytes.
struct Instruction {
  int map, prefix, operation;  // `prefix`: 0 none, 1 66, 2 F3, 3 F2
  int reg, rm, third;          // registers
  bool has_memory;
  uintptr_t address;  // of what is in memory, without the stride of a tile's rows
  int64_t stride;
  int length;
};

int64_t general_register(const ucontext_t& context, int number) {
  static constexpr int kOrder[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                   REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                   REG_R12, REG_R13, REG_R14, REG_R15};
  return context.uc_mcontext.gregs[kOrder[number]];
}

template <typename Number>
Number read(const uint8_t* from) {
  Number number;
  std::memcpy(&number, from, sizeof number);
  return number;
}

// A base and a displacement, and the index as a stride: a tile's loads and stores name one.
void find_memory(const ucontext_t& context, const uint8_t* code, bool high_index, bool high_base,
                 Instruction& found) {
  const int mode = code[4] >> 6;
  int at = 5, base = code[4] & 7;
  if (base == 4) {
    const int index = (code[5] >> 3 & 7) | (high_index ? 8 : 0);
    if (index != 4) found.stride = general_register(context, index) << (code[5] >> 6);
    base = code[5] & 7;
    at = 6;
  }
  const bool has_no_base = mode == 0 && base == 5;
  const int displacement_bytes = mode == 2 || has_no_base ? 4 : mode;
  found.length = at + displacement_bytes;
  int64_t address = 0;
  if (displacement_bytes == 4) address = read<int32_t>(code + at);
  if (displacement_bytes == 1) address = read<int8_t>(code + at);
  if (!has_no_base) {
    address += general_register(context, base | (high_base ? 8 : 0));
  } else if (at == 5) {  // relative to the next instruction
    address += std::bit_cast<int64_t>(code) + found.length;
  }
  found.address = static_cast<uintptr_t>(address);
}

bool decode(const ucontext_t& context, const uint8_t* code, Instruction& found) {
  if (code[0] != 0xC4) return false;
  const bool high_reg = (code[1] & 0x80) == 0;
  const bool high_index = (code[1] & 0x40) == 0, high_base = (code[1] & 0x20) == 0;
  found = {.map = code[1] & 0x1F,
           .prefix = code[2] & 3,
           .operation = code[3],
           .reg = (code[4] >> 3 & 7) | (high_reg ? 8 : 0),
           .rm = code[4] & 7,
           .third = ~(code[2] >> 3) & 15,
           .has_memory = code[4] >> 6 != 3,
           .address = 0,
           .stride = 0,
           .length = 5};
  if (found.has_memory) find_memory(context, code, high_index, high_base, found);
  return found.map == 2 && found.reg < kTiles && (code[2] & 0x84) == 0;
}

void configure(const uint8_t* from) {
  for (int tile = 0; tile < kTiles; ++tile) {
    unit.row_bytes[tile] = static_cast<uint8_t>(read<uint16_t>(from + 16 + 2 * tile));
    unit.rows[tile] = from[48 + tile];
  }
  std::memset(unit.data, 0, sizeof unit.data);
}

void load(const Instruction& i) {
  std::memset(unit.data[i.reg], 0, sizeof unit.data[i.reg]);
  for (int row = 0; row < unit.rows[i.reg]; ++row) {
    const auto* from = std::bit_cast<const uint8_t*>(i.address) + row * i.stride;
    std::memcpy(unit.data[i.reg][row], from, unit.row_bytes[i.reg]);
  }
}

void store(const Instruction& i) {
  for (int row = 0; row < unit.rows[i.reg]; ++row) {
    std::memcpy(std::bit_cast<uint8_t*>(i.address) + row * i.stride, unit.data[i.reg][row],
                unit.row_bytes[i.reg]);
  }
}

// The first or second number of every pair of a row, as fp32.
typedef float Lanes __attribute__((vector_size(kRowBytes)));
typedef uint32_t Words __attribute__((vector_size(kRowBytes)));
void read_half(const uint8_t* row, int half, Lanes& to) {
  Words words;
  std::memcpy(&words, row, sizeof words);
  if (half == 0) {
    words <<= 16;
  } else {
    words &= 0xFFFF0000u;
  }
  std::memcpy(&to, &words, sizeof to);
}

// What lies behind a row's or tile's end is zero.
void multiply(const Instruction& i) {
  Lanes columns[kRows][2];
  for (int pair = 0; pair < kRows; ++pair) {
    for (const int half : {0, 1}) read_half(unit.data[i.third][pair], half, columns[pair][half]);
  }
  for (int row = 0; row < unit.rows[i.reg]; ++row) {
    Lanes factors[2], sum;
    for (const int half : {0, 1}) read_half(unit.data[i.rm][row], half, factors[half]);
    std::memcpy(&sum, unit.data[i.reg][row], sizeof sum);
    for (int pair = 0; pair < kRows; ++pair) {
      for (const int half : {0, 1}) sum += factors[half][pair] * columns[pair][half];
    }
    std::memcpy(unit.data[i.reg][row], &sum, unit.row_bytes[i.reg]);
  }
}

bool carry_out(const Instruction& i) {
  if (i.operation == 0x49 && i.prefix == 0) {
    if (i.has_memory) {
      configure(std::bit_cast<const uint8_t*>(i.address));
    } else {
      unit = {};  // released: what is multiplied without a new configuration has no rows
    }
  } else if (i.operation == 0x49 && i.prefix == 3 && !i.has_memory) {
    std::memset(unit.data[i.reg], 0, sizeof unit.data[i.reg]);
  } else if (i.operation == 0x4B && i.prefix == 3 && i.has_memory) {
    load(i);
  } else if (i.operation == 0x4B && i.prefix == 2 && i.has_memory) {
    store(i);
  } else if (i.operation == 0x5C && i.prefix == 2 && !i.has_memory && i.third < kTiles) {
    multiply(i);
  } else {
    return false;
  }
  return true;
}

void on_illegal_instruction(int signal, siginfo_t*, void* context_of_signal) {
  auto& context = *static_cast<ucontext_t*>(context_of_signal);
  greg_t& at = context.uc_mcontext.gregs[REG_RIP];
  const greg_t begin = at;
  // Those that follow at once as well: a signal takes longer than an instruction.
  Instruction instruction;
  while (decode(context, std::bit_cast<const uint8_t*>(at), instruction) &&
         carry_out(instruction)) {
    at += instruction.length;
  }
  if (at == begin) ::signal(signal, SIG_DFL);  // it is met again
}

}  // namespace

EmulatedTiles::EmulatedTiles() {
  struct sigaction action = {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, &before_);
}
EmulatedTiles::~EmulatedTiles() { sigaction(SIGILL, &before_, nullptr); }

}  // namespace strata::ops::reference

#else

namespace strata::ops::reference {

EmulatedTiles::EmulatedTiles() = default;
EmulatedTiles::~EmulatedTiles() = default;

}  // namespace strata::ops::reference

#endif
