"""The jobs that are measured: shapes of published models, what trains, and how much at once."""

import dataclasses

LLAMA_3_8B = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=4096, intermediate_size=14336,
                  num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
                  max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=False)
QWEN_3_8B = dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"], hidden_size=4096, intermediate_size=12288,
                 num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=151936,
                 max_position_embeddings=40960, rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=False)
LLAMA_1B = dict(LLAMA_3_8B, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, head_dim=64,
                tie_word_embeddings=True)
# So small that the host may be what it waits for.
QWEN_3_SMALL = dict(QWEN_3_8B, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                    tie_word_embeddings=True)
# For trying the scripts: seconds on any GPU.
TINY = dict(LLAMA_3_8B, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=1024)
COMMON = dict(bos_token_id=0, eos_token_id=1, dtype="bfloat16", hidden_act="silu", attention_bias=False)


@dataclasses.dataclass(frozen=True)
class Case:
    config: dict
    lora: bool = True
    quantised: bool = False  # NF4, double quantisation
    rows: int = 4            # of 2048 tokens, in a micro-batch
    rows_of_80gb: int = 0    # where the reference has no room for `rows` on such a GPU
    length: int = 2048
    steps: int = 10
    wanted_tokens: float = 0  # a second
    wanted_ratio: float = 0   # times the reference
    wanted_share: float = 0   # of the matrix rate, by operations_a_token()
    checkpointing: bool = True
    flags: tuple = ()        # of Strata alone

    @property
    def model_config(self):
        return {**COMMON, **self.config}

    def rows_on(self, memory_bytes):
        return self.rows_of_80gb if self.rows_of_80gb and memory_bytes < 100e9 else self.rows


CASES = {
    "tiny": Case(TINY, length=256),
    "llama-3-8b-lora": Case(LLAMA_3_8B, wanted_tokens=10_000, wanted_ratio=1.5),
    "qwen-3-8b-lora": Case(QWEN_3_8B, wanted_tokens=10_000, wanted_ratio=1.5),
    "qwen-3-0.6b-lora": Case(QWEN_3_SMALL, rows=2),
    "llama-3-8b-qlora": Case(LLAMA_3_8B, quantised=True, wanted_tokens=9_500),
    # Its activations fit: what recomputation would cost is no part of what is asked for.
    "llama-1b-full": Case(LLAMA_1B, lora=False, rows=8, rows_of_80gb=4, wanted_share=0.55, checkpointing=False,
                          flags=("--fsdp_sharding_strategy", "NO_SHARD")),
}


def num_parameters(c):
    """(all, of the matrices that tokens are multiplied by)."""
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    head = c.get("head_dim", c["hidden_size"] // heads)
    hidden, inner, layers, vocab = c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"], c["vocab_size"]
    layer = hidden * head * (2 * heads + 2 * kv) + 3 * hidden * inner
    table = vocab * hidden
    matrices = layers * layer + table
    norms = (2 * layers + 1) * hidden + (2 * layers * head if c["model_type"] == "qwen3" else 0)
    return matrices + (0 if c["tie_word_embeddings"] else table) + norms, matrices


def operations_a_token(case):
    """Of the matrix products of one training token: forward, gradients of inputs, gradients of what
    trains; recomputation under checkpointing is not counted (model operations, not hardware's)."""
    _, matrices = num_parameters(case.model_config)
    return 2 * matrices * (2 if case.lora else 3)
