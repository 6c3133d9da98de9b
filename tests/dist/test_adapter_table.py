# Oracle: the same adapter over the same base on one rank, unsharded, the whole batch at once.
import pytest

from row_runs import STRATEGIES, futures_of, name_of, rows_of, sharding_of, unsharded
from running import base_flags

STEPS = 3
ROWS_PER_STEP = 12  # for 1 to 3 ranks
LORA = dict(lora_r=3, lora_alpha=12, lora_dropout=0.0, learning_rate=2e-2)
ADAPTERS = {
    "lora": dict(LORA, lora_target_modules=["q_proj", "o_proj", "up_proj", "lm_head"]),
    "rslora_biases": dict(LORA, lora_target_modules=["q_proj", "o_proj"], use_rslora=True,
                          lora_bias=True, bias="all", lora_modules_to_save=["norm"]),
    "dora": dict(LORA, lora_target_modules=["v_proj", "down_proj", "lm_head", "embed_tokens"],
                 use_dora=True),
    "olora": dict(LORA, lora_target_modules=["k_proj", "gate_proj"], init_lora_weights="olora"),
    "vera": dict(peft_type="VERA", lora_r=8, learning_rate=1e-1,
                 lora_target_modules=["q_proj", "up_proj", "lm_head"]),
    "prompt": dict(peft_type="PROMPT_TUNING", num_virtual_tokens=5, learning_rate=1e-1,
                   prompt_tuning_init="SAMPLE_VOCAB"),
    "prefix": dict(peft_type="PREFIX_TUNING", num_virtual_tokens=3, learning_rate=1.0,
                   activation_checkpointing="full"),
    "projected": dict(peft_type="PREFIX_TUNING", num_virtual_tokens=3, learning_rate=3e-2,
                      prefix_projection=True, encoder_hidden_size=24),
    "ia3": dict(peft_type="IA3", learning_rate=5e-2, feedforward_modules=["down_proj"],
                lora_target_modules=["k_proj", "v_proj", "down_proj", "lm_head"]),
}
BASES = {
    "fp32": {},
    "nf4": dict(load_in_4bit=True, bnb_4bit_use_double_quant=True),
    "fp4": dict(load_in_4bit=True, bnb_4bit_quant_type="fp4"),
    "int8": dict(load_in_8bit=True),
}
ROWS = rows_of({"adapter": list(ADAPTERS), "strategy": STRATEGIES, "base": list(BASES),
                "world": [2, 3]}, strength=2)


def flags_of(inputs, output, row):
    return base_flags(
        inputs.model("odd"), inputs.data("messages", train=96), output, **{
            "use_peft": True, "max_steps": STEPS, "max_grad_norm": 0.7,
            "per_device_train_batch_size": ROWS_PER_STEP // row["world"], **sharding_of(row),
            **ADAPTERS[row["adapter"]], **BASES[row["base"]]})


@pytest.fixture(scope="module")
def histories(request, inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    inputs.model("odd"), inputs.data("messages", train=96)  # made before the threads ask for them

    def run(run_row, name, row):
        return run_row(flags_of(inputs, folder / name, row), row["world"]).history

    with futures_of(request, unsharded, run) as found:
        yield found


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_row(histories, row):
    found = histories[name_of(row)].result()
    expected = histories[name_of(unsharded(row))].result()
    assert len(found) == len(expected) == STEPS
    assert expected[0]["loss"] - expected[-1]["loss"] > 0.02, "the reference did not learn"
    for ours, theirs in zip(found, expected):
        assert abs(ours["loss"] - theirs["loss"]) < 1e-5
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
