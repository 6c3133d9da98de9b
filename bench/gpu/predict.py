#!/usr/bin/env python3
"""What a step of a case would take on a GPU, by counting: operations of the products and of attention by their rates, bytes
of every other kernel by the memory's. A prediction, never a measurement: nothing here knows what overlaps or waits."""

import argparse
import dataclasses

from cases import CASES, num_parameters, operations_a_token

BF16, FP32 = 2, 4


@dataclasses.dataclass(frozen=True)
class Chip:
    """Rates that large kernels reach of an H100 (SXM): the case's share is of `products`."""
    products: float = 790e12    # a second, of a large bf16 product
    reached: float = 0.9        # of that, by products of a layer's shapes
    attention: float = 450e12   # operations a second
    memory: float = 3.0e12      # bytes a second


@dataclasses.dataclass(frozen=True)
class Engine:
    """What of a step the settings and the engine decide."""
    conversions: int = 2        # gathers a step that make 16 bits of fp32 masters
    copies: bool = False        # the update writes the 16-bit values
    loss_rows: int = 4096       # of a chunk whose output layer trains
    keeps: str = "none"         # of recomputed layers, as --activation_checkpointing
    keeps_sum: bool = True      # attention: the residual behind it, too


class Count:
    """Seconds and launches by kind."""

    def __init__(self, chip):
        self.chip, self.seconds, self.launches = chip, {}, {}

    def add(self, kind, seconds, times=1, launches=1):
        self.seconds[kind] = self.seconds.get(kind, 0) + seconds * times
        self.launches[kind] = self.launches.get(kind, 0) + launches * times

    def moved(self, kind, count, times=1, launches=1):
        self.add(kind, count / self.chip.memory, times, launches)

    def product(self, rows, inner, columns, times=1):
        self.add("products", 2 * rows * inner * columns / self.chip.products / self.chip.reached, times)


class Step:
    def __init__(self, case, rows, chip, engine):
        self.case, self.engine, self.count = case, engine, Count(chip)
        c = case.model_config
        self.tokens, self.length = rows * case.length, case.length
        self.hidden, self.inner, self.vocabulary = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
        head = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
        self.q, self.kv = head * c["num_attention_heads"], head * c["num_key_value_heads"]
        self.layers, self.tied = c["num_hidden_layers"], c["tie_word_embeddings"]
        self.parameters = num_parameters(c)[0]

    def wide(self, *columns):
        """Bytes of bf16 activations of so many columns."""
        return sum(columns) * self.tokens * BF16

    def linears(self, inputs, outputs, times, adds=False):
        """Forward of layers of one input. LoRA: A's product reads it, B's writes what the layer's then adds to; behind a
        residual (`adds`) it is read and written once more."""
        if adds:
            self.count.moved("residuals", self.wide(2 * outputs[0]), times)
        for columns in outputs:
            self.count.product(self.tokens, inputs, columns, times)
            if self.case.lora:
                self.count.moved("thin products", self.wide(2 * columns), times)
        if self.case.lora:
            self.count.moved("thin products", self.wide(inputs), times)

    def linears_backward(self, inputs, outputs):
        for columns in outputs:
            self.count.product(self.tokens, inputs, columns, self.layers)
            if self.case.lora:  # the gradients of B and of A's output
                self.count.moved("thin products", self.wide(2 * columns), self.layers, launches=2)
            else:
                self.count.product(inputs, self.tokens, columns, self.layers)
        if self.case.lora:  # of A and of the input
            self.count.moved("thin products", self.wide(3 * inputs), self.layers, launches=2)

    def attention(self, kind, times, factor=1):
        operations = 4 * self.tokens * (self.length / 2) * self.q
        self.count.add(kind, factor * operations / self.count.chip.attention, times)

    def layers_forward(self, times, computes_attention=True, computes_sum=True, is_last_wanted=True):
        norm, rope = self.wide(2 * self.hidden), self.wide(2 * self.q, 2 * self.kv)
        self.count.moved("norms", norm, 2 * times)
        self.linears(self.hidden, (self.q, self.kv, self.kv), times)
        self.count.moved("rotation", rope, times, launches=2)
        if computes_attention:
            self.attention("attention", times)
        if computes_sum:
            self.linears(self.q, (self.hidden,), times, adds=True)
        elif self.case.lora:
            self.count.moved("thin products", self.wide(self.q), times)
        self.linears(self.hidden, (self.inner, self.inner), times)
        self.count.moved("swiglu", self.wide(3 * self.inner), times)
        if is_last_wanted:
            self.linears(self.inner, (self.hidden,), times, adds=True)
        elif self.case.lora:
            self.count.moved("thin products", self.wide(self.inner), times)

    def layers_backward(self):
        self.linears_backward(self.inner, (self.hidden,))
        self.count.moved("swiglu", self.wide(5 * self.inner), self.layers)
        self.linears_backward(self.hidden, (self.inner, self.inner))
        self.linears_backward(self.q, (self.hidden,))
        self.attention("attention", self.layers, 2.5)
        self.count.moved("rotation", self.wide(2 * self.q, 2 * self.kv), self.layers, launches=2)
        self.linears_backward(self.hidden, (self.q, self.kv, self.kv))
        self.count.moved("norms", self.wide(4 * self.hidden), 2 * self.layers)

    def head(self):
        trains = not self.case.lora
        self.count.moved("norms", self.wide(6 * self.hidden), launches=2)
        for _ in range(3 if trains else 2):
            self.count.product(self.tokens, self.hidden, self.vocabulary)
        # Read for the sums, and again out of the cache; written as gradients.
        self.count.moved("loss", self.wide(2 * self.vocabulary))
        if trains:
            chunks = -(-self.tokens // self.engine.loss_rows)
            self.count.moved("sums of the output layer's gradient",
                             2 * FP32 * self.hidden * self.vocabulary, chunks - 1, launches=0)
        self.count.moved("embedding", self.wide(2 * self.hidden))
        if trains:
            self.count.moved("embedding", 3 * self.wide(self.hidden))

    def update(self):
        if self.case.lora:
            return  # of 42 million weights
        n = self.parameters
        self.count.moved("conversions", (FP32 + BF16) * n, self.engine.conversions, launches=self.layers + 2)
        self.count.moved("norm of the gradient", FP32 * n, launches=self.layers + 2)
        self.count.moved("AdamW", (7 * FP32 + (BF16 if self.engine.copies else 0)) * n, launches=3 * self.layers)

    def run(self):
        self.layers_forward(self.layers)
        if self.engine.keeps != "none":  # the last layer keeps everything
            kept = self.engine.keeps == "attention"
            self.layers_forward(self.layers - 1, computes_attention=not kept,
                                computes_sum=not (kept and self.engine.keeps_sum), is_last_wanted=False)
        self.layers_backward()
        self.head()
        self.update()
        return self.count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--rows", type=int, default=4)
    for part in (Chip, Engine):
        for field in dataclasses.fields(part):
            if field.type is bool:
                parser.add_argument("--" + field.name, action=argparse.BooleanOptionalAction, default=field.default)
                continue
            parser.add_argument("--" + field.name, type=field.type, default=field.default, help="default: %(default)s",
                                choices=("none", "attention", "full") if field.name == "keeps" else None)
    o = vars(parser.parse_args())
    chip, engine = (part(**{field.name: o[field.name] for field in dataclasses.fields(part)}) for part in (Chip, Engine))
    case = CASES[o["case"]]
    count = Step(case, o["rows"], chip, engine).run()
    total, tokens = sum(count.seconds.values()), o["rows"] * case.length
    for kind, seconds in sorted(count.seconds.items(), key=lambda item: -item[1]):
        print(f"{kind:36} {1e3 * seconds:8.2f} ms {seconds / total:7.1%} {count.launches[kind]:6} launches")
    share = operations_a_token(case) * tokens / total / chip.products
    print(f"{'together':36} {1e3 * total:8.2f} ms: {tokens / total:,.0f} tokens/s, {share:.1%} of the products' rate")


if __name__ == "__main__":
    main()
