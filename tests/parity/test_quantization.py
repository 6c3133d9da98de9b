"""Oracle: bitsandbytes on the CPU: codes, scales and decoded values bit for bit; gradients of
adapters over a quantised base against PEFT over bitsandbytes' layers."""

import shutil
import subprocess

import bitsandbytes.functional as functional
import pytest
import torch
from bitsandbytes.nn import Linear8bitLt
from peft import get_peft_model, prepare_model_for_kbit_training
from safetensors.torch import load_file, save_file
from transformers import BitsAndBytesConfig, LlamaForCausalLM

from llama_reference import make_documents, run_reference, save_checkpoint
from probe import BUILD, relative_error, run_probe, run_probe_raw
from running import base_flags, run_strata
from test_lora import config_of, probe_name, randomise
from test_virtual_tokens import run_reference as run_with_rows

BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)


def tensors():
    """Matrices that reach every branch: (name, tensor)."""
    generator = torch.Generator().manual_seed(0)
    nan, inf = float("nan"), float("inf")
    normal = torch.randn(96, 520, generator=generator)
    special = torch.randn(40, 256, generator=generator)
    special[3, 7] = nan
    special[17, 200] = inf
    special[33, 2] = -inf
    heavy = torch.randn(64, 300, generator=generator).exp2() ** 8
    return {
        "normal": normal,
        "bfloat16": normal.to(torch.bfloat16),
        "float16": normal.to(torch.float16),
        "zero": torch.zeros(8, 512),
        "huge": normal[:16] * 1e37,
        "tiny": normal[:16] * 1e-40,
        "special": special,
        "heavy": heavy,
        "odd": torch.randn(33, 77, generator=generator),
        "odd_nan": torch.cat([normal[:1, :76], torch.full((1, 1), nan)], 1),
        "odd_half": normal[:3, :77].to(torch.float16),
        "odd_bfloat16": normal[:5, :333].to(torch.bfloat16),
        "special_bfloat16": special.to(torch.bfloat16),
        "double": torch.randn(9, 700, generator=generator, dtype=torch.float64),
        "row": torch.randn(1, 5, generator=generator),
        "zero_tail": torch.cat([torch.ones(1, 4096), torch.zeros(1, 33)], 1),
        "ties": torch.tensor(functional.get_4bit_type("nf4", "cpu").tolist())
        .unfold(0, 2, 1).mean(1).repeat(40)[None],
    }


def run_quant_probe(folder, named):
    save_file({k: v.clone().contiguous() for k, v in named.items()}, folder / "in.safetensors")
    subprocess.run([BUILD / "quant_probe", folder / "in.safetensors", folder / "out.safetensors"],
                   check=True, timeout=120, env={"OMP_NUM_THREADS": "2"})
    return load_file(folder / "out.safetensors")


def same_bits(a, b):
    assert a.shape == b.shape and a.dtype == b.dtype
    integers = {4: torch.int32, 2: torch.int16, 1: torch.uint8}[a.element_size()]
    return torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the mean of the scales depends on the number of threads
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_4bit_equals_bitsandbytes(tmp_path, kind, nested):
    cases = {f"{name}_{block}": (x, block) for name, x in tensors().items() for block in BLOCKS}
    found = run_quant_probe(tmp_path, {
        f"{case}|{kind}|{block}|{int(nested)}": x for case, (x, block) in cases.items()})
    for case, (x, block) in cases.items():
        x = x.float() if x.dtype == torch.float64 else x  # which the reference does not take
        packed, state = functional.quantize_4bit(x, blocksize=block, quant_type=kind,
                                                 compress_statistics=nested)
        assert torch.equal(found[case + ".codes"], packed.flatten()), case
        assert same_nan(found[case + ".scales"], state.absmax), case
        if nested:
            assert same_nan(found[case + ".nested"], state.state2.absmax), case
            assert same_nan(found[case + ".mean"], state.offset.reshape(1)), case
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            state.dtype = dtype
            expected = decoded(packed, state, x.shape)
            # The reference's kernels differ among themselves in the sign of FP4's second zero.
            assert same_nan(found[f"{case}.{str(dtype)[6:]}"] + 0.0, expected + 0.0), (case, dtype)


def decoded(packed, state, shape):
    """bitsandbytes' decoding; by its definition where its AVX-512 kernel takes the scale of another
    block (seen in 0.50.2 with blocks longer than a row)."""
    if state.blocksize <= shape[1]:
        return functional.dequantize_4bit(packed, state).reshape(shape)
    scales = state.absmax
    if state.nested:
        scales = functional.dequantize_blockwise(scales, state.state2) + state.offset
    codes = torch.stack([packed.flatten() >> 4, packed.flatten() & 15], 1).flatten().long()
    values = state.code[codes][: shape[0] * shape[1]]
    scales = scales.repeat_interleave(state.blocksize)[: values.numel()]
    return (values * scales).to(state.dtype).reshape(shape)


def same_nan(a, b):
    """The same bits; of NaN only that it is one."""
    if a.dtype == torch.uint8:
        return torch.equal(a, b)
    if not torch.equal(a.isnan(), b.isnan()):
        return False
    return same_bits(a.nan_to_num(7.0, 8.0, 9.0), b.nan_to_num(7.0, 8.0, 9.0))


@pytest.mark.parametrize("storage", [torch.uint8, torch.int8, torch.bfloat16, torch.float32])
def test_quant_storage_is_the_same_bytes(tmp_path, storage):
    x = tensors()["normal"]
    found = run_quant_probe(tmp_path, {"x|nf4|64|0": x})
    packed, _ = functional.quantize_4bit(x, quant_type="nf4", quant_storage=storage)
    assert torch.equal(found["x.codes"], packed.view(torch.uint8).flatten())


def test_int8_equals_bitsandbytes(tmp_path):
    cases = tensors()
    found = run_quant_probe(tmp_path, {f"{n}|int8|64|0": x for n, x in cases.items()})
    for name, x in cases.items():
        codes, scales, _ = functional.int8_vectorwise_quant(x.to(torch.float16))
        assert torch.equal(found[name + ".codes"].view(torch.int8).view(x.shape), codes), name
        assert same_nan(found[name + ".scales"], scales), name
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            expected = codes.to(dtype).mul_(scales.unsqueeze(1).mul(1.0 / 127.0))
            assert same_nan(found[f"{name}.{str(dtype)[6:]}"], expected), (name, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_product_equals_bitsandbytes(tmp_path, dtype):
    """One layer of LLM.int8() without outliers, bit for bit."""
    cases = {n: x for n, x in tensors().items() if x.to(torch.float16).isfinite().all()}
    generator = torch.Generator().manual_seed(4)
    inputs = {n: torch.randn(19, x.shape[1], generator=generator).to(dtype) * 3
              for n, x in cases.items()}
    found = run_quant_probe(tmp_path, {
        **{f"{n}|int8|64|0": x for n, x in cases.items()},
        **{f"x.{n}": x for n, x in inputs.items()}})
    for name, weight in cases.items():
        layer = Linear8bitLt(weight.shape[1], weight.shape[0], bias=False, has_fp16_weights=False,
                             threshold=0.0)
        layer.load_state_dict({"weight": weight.to(torch.float16)})
        expected = layer.to("cpu").eval()(inputs[name])
        assert same_bits(found[name + ".product"] + 0.0, expected + 0.0), name


@pytest.mark.parametrize("signed", [True, False])
def test_blockwise_8bit_equals_bitsandbytes(tmp_path, signed):
    """Codes, scales and decoded values of the dynamic map."""
    code = functional.create_dynamic_map(signed=signed)
    cases = {f"{name}_{block}": (x.float(), block) for name, x in tensors().items()
             for block in (64, 256, 4096) if signed or not (x < 0).any()}
    assert len(cases) > (40 if signed else 5)
    found = run_quant_probe(tmp_path, {
        f"{case}|dynamic|{block}|{int(signed)}": x for case, (x, block) in cases.items()})
    for case, (x, block) in cases.items():
        codes, state = functional.quantize_blockwise(x, code=code, blocksize=block)
        known = ~x.isnan()  # of NaN the reference's table is read outside
        assert torch.equal(found[case + ".codes"].view(x.shape)[known], codes[known]), case
        assert same_nan(found[case + ".scales"], state.absmax), case
        decoded = functional.dequantize_blockwise(codes, state)
        assert same_nan(found[case + ".float32"].view(x.shape)[known], decoded[known]), case


def test_dynamic_maps(tmp_path):
    found = run_quant_probe(tmp_path, {"x|nf4|64|0": torch.ones(1, 2)})
    assert same_bits(found["map.signed"], functional.create_dynamic_map(signed=True))
    assert same_bits(found["map.unsigned"], functional.create_dynamic_map(signed=False))


# bitsandbytes' AVX-512 kernel decodes rows shorter than a block wrongly, see decoded().
ROWS_OF_A_BLOCK = dict(hidden_size=64, intermediate_size=76)
BASES = {
    "nf4": (dict(load_in_4bit=True, bnb_4bit_quant_type="nf4"), dict(kind="nf4")),
    "nf4_double": (dict(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                        bnb_4bit_use_double_quant=True), dict(kind="nf4", nested=True)),
    "fp4": (dict(load_in_4bit=True, bnb_4bit_quant_type="fp4"), dict(kind="fp4")),
    "int8": (dict(load_in_8bit=True), dict(kind="int8")),
    "output_layer_too": (dict(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                              llm_int8_skip_modules=["down_proj"]),
                         dict(kind="nf4", skip=["down_proj"])),
    "output_layer_too_int8": (dict(load_in_8bit=True, llm_int8_skip_modules=["down_proj"]),
                              dict(kind="int8", skip=["down_proj"])),
}


# Settings of PEFT for the methods over a base; the targets have sizes of their own.
METHODS = {
    "lora": dict(target_modules=["q_proj", "v_proj", "gate_proj", "down_proj"], r=4, lora_alpha=16),
    "lora_head": dict(target_modules=["q_proj", "lm_head"], r=4, lora_alpha=16),
    "rslora_gaussian": dict(target_modules="all-linear", r=5, use_rslora=True,
                            init_lora_weights="gaussian"),
    "branch_bias": dict(target_modules=["o_proj"], r=4, lora_bias=True),
    "saved_modules": dict(target_modules=["k_proj"], r=4, modules_to_save=["lm_head", "norm"]),
    "dora": dict(target_modules=["q_proj", "gate_proj", "down_proj"], r=4, use_dora=True),
    "dora_head": dict(target_modules=["up_proj", "lm_head"], r=4, use_dora=True),
    "ia3": dict(peft_type="IA3"),
    "vera": dict(peft_type="VERA", r=9, target_modules=["q_proj", "down_proj"]),
    "ia3_head": dict(peft_type="IA3", target_modules=["q_proj", "up_proj", "lm_head"],
                     feedforward_modules=["up_proj"]),
    # Takes its part off the codes, which are made again.
    "olora": dict(target_modules=["v_proj", "gate_proj"], r=4, init_lora_weights="olora"),
    "embedding": dict(target_modules=["embed_tokens", "k_proj"], r=4),
    "dora_embedding": dict(target_modules=["embed_tokens", "k_proj"], r=4, use_dora=True),
    "tokens": dict(target_modules=["q_proj"], trainable_token_indices=[3, 17, 90]),
}
# Every method over the plain base is in test_lora.py; here over codes, of which "head_too" are
# those of the output layer as well.
GRADIENTS = [(base, m) for base in ("nf4", "fp4", "int8") for m in METHODS] + [
    ("nf4_double", "lora"), ("output_layer_too", "lora_head"), ("output_layer_too", "dora_head"),
    ("output_layer_too", "ia3_head"), ("output_layer_too_int8", "lora_head"),
    ("output_layer_too_int8", "ia3_head")]


def attach_quantised(folder, settings, **lora):
    base = LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.float32, device_map="cpu",
        quantization_config=BitsAndBytesConfig(
            **{"bnb_4bit_compute_dtype": torch.float32, **settings}))
    torch.manual_seed(1)
    return get_peft_model(base, config_of(lora))


@pytest.mark.parametrize("name,method", GRADIENTS)
def test_gradients_over_a_quantised_base(tmp_path, name, method):
    """Sizes of which some are no multiples of a block."""
    settings, request = BASES[name]
    lora = METHODS[method]
    save_checkpoint(tmp_path, scale=0.08, **ROWS_OF_A_BLOCK)
    model = attach_quantised(tmp_path, settings, **lora)
    model.train()
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    documents = make_documents((33, 1, 19))
    loss, logits = run_reference(model, documents)
    found, _ = run_probe(tmp_path, documents=documents, lora=lora, quantization=request,
                         adapter=str(tmp_path / "adapter"), training=True)
    errors = {"loss": relative_error(found["loss"], loss),
              "logits": relative_error(found["logits"], logits)}
    if name == "output_layer_too_int8":
        del errors["logits"]  # those of answers, which multiply rounded activations; the loss is training's
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            errors[parameter_name] = relative_error(
                found["grad:" + probe_name(parameter_name)], parameter.grad)
    assert len(errors) > 5
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"


@pytest.mark.parametrize("base", ["nf4_double", "fp4"])
def test_float16_products(tmp_path, base):
    """Both factors and the result of a product are rounded to fp16, as by bitsandbytes on CPUs. Its sums
    have another order, so that a result may fall to the other side; fp32 products differ everywhere."""
    settings, request = BASES[base]
    save_checkpoint(tmp_path, scale=0.08, **ROWS_OF_A_BLOCK)
    model = attach_quantised(tmp_path, dict(settings, bnb_4bit_compute_dtype=torch.float16),
                             **METHODS["lora"]).train()
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    documents = make_documents((33, 1, 19))
    loss, logits = run_reference(model, documents)
    expected = {"logits": logits, **{"grad:" + probe_name(n): p.grad
                                     for n, p in model.named_parameters() if p.requires_grad}}
    errors = {}
    for compute in ("float16", "float32"):
        found, _ = run_probe(tmp_path, documents=documents, lora=METHODS["lora"], training=True,
                             quantization=dict(request, compute=compute),
                             adapter=str(tmp_path / "adapter"))
        errors[compute] = {n: relative_error(found[n], v) for n, v in expected.items()}
    # Each side rounds the result of a product to the nearest of numbers 2^-10 of it apart: an error evenly
    # spread over a step has a variance of step^2 / 12, the difference of two at most that of a whole step
    # on either side of 0, step^2 / 3. A gradient has been through each product of the forward and of the
    # backward pass once; their errors are unrelated, so that variances add.
    products = 2 * sum(hasattr(module, "quant_state") for module in model.modules())
    assert products >= 28, "the model has changed"
    assert max(errors["float16"].values()) < (products / 3) ** 0.5 * 2 ** -10, errors
    ratios = [errors["float16"][n] / errors["float32"][n] for n in expected]
    assert sum(ratios) / len(ratios) < 0.5, errors


@pytest.mark.parametrize("base", ["nf4_double", "fp4"])
def test_products_in_fp32_over_a_bfloat16_base(tmp_path, base):
    """Forward both decode to fp32. In backward the reference rounds the decoded weights to the type of the
    checkpoint first: evenly over a step of 2^-8 at most, once for every product that a gradient has been
    through."""
    settings, request = BASES[base]
    save_checkpoint(tmp_path, scale=0.08, **ROWS_OF_A_BLOCK)
    LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).save_pretrained(tmp_path)
    model = LlamaForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, device_map="cpu",
        quantization_config=BitsAndBytesConfig(bnb_4bit_compute_dtype=torch.float32, **settings))
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    torch.manual_seed(1)
    model = get_peft_model(model, config_of(METHODS["lora"])).train()
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    documents = make_documents((33, 1, 19))
    loss, logits = run_reference(model, documents)
    found, _ = run_probe(tmp_path, documents=documents, lora=METHODS["lora"], quantization=request,
                         adapter=str(tmp_path / "adapter"), training=True)
    assert relative_error(found["logits"], logits) < 1e-5
    assert relative_error(found["loss"], loss) < 1e-5
    products = sum(hasattr(module, "quant_state") for module in model.modules())
    errors = [relative_error(found["grad:" + probe_name(n)], p.grad)
              for n, p in model.named_parameters() if p.requires_grad]
    assert products >= 14 and max(errors) < (products / 12) ** 0.5 * 2 ** -8, errors


@pytest.mark.parametrize("base", ["nf4_double", "fp4", "int8"])
@pytest.mark.parametrize("method", ["PROMPT_TUNING", "PREFIX_TUNING", "projected"])
def test_rows_before_documents_over_a_quantised_base(tmp_path, base, method):
    settings, request = BASES[base]
    tuning = dict(peft_type=method, num_virtual_tokens=3)
    if method == "projected":
        tuning.update(peft_type="PREFIX_TUNING", prefix_projection=True)
    save_checkpoint(tmp_path, scale=0.08, **ROWS_OF_A_BLOCK)
    model = attach_quantised(tmp_path, settings, **tuning).train()
    documents = make_documents((19, 1, 7))
    in_front = 3 if method == "PROMPT_TUNING" else 0
    loss, logits = run_with_rows(model, documents, in_front)
    found, _ = run_probe(tmp_path, documents=documents, lora=tuning, quantization=request, seed=1,
                         training=True)
    errors = {"loss": relative_error(found["loss"], loss),
              "logits": relative_error(found["logits"], logits)}
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = [t for n, t in found.items() if n.startswith("grad:")]
    for parameter in trained:
        errors[str(parameter.shape)] = min(relative_error(t, parameter.grad) for t in gradients
                                           if t.shape == parameter.shape)
    assert len(gradients) == len(trained)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, errors


@pytest.mark.parametrize("threshold", [0.0, 2.0, 6.0])
def test_int8_outside_training(tmp_path, monkeypatch, threshold):
    """LLM.int8() with activations quantised but for columns with outliers."""
    save_checkpoint(tmp_path, scale=0.2)
    model = LlamaForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, device_map="cpu", quantization_config=BitsAndBytesConfig(
            load_in_8bit=True, llm_int8_threshold=threshold)).eval()
    documents = make_documents((33, 1, 19))[:1]  # one: a column's outliers depend on all its rows
    ids = torch.tensor([documents[0]["ids"]])
    with torch.no_grad():
        expected = model(ids).logits[0]
    lora = dict(target_modules=["q_proj"])  # freezes the base; adds nothing while B is zero
    found, _ = run_probe(tmp_path, documents=documents, lora=lora,
                         quantization=dict(kind="int8", threshold=threshold))
    assert relative_error(found["logits"], expected) < 1e-3
    decoded, _ = run_probe(tmp_path, documents=documents, training=True, lora=lora,
                           quantization=dict(kind="int8"))
    assert relative_error(decoded["logits"], expected) > 2e-3
    # As on a processor whose product of bytes cuts sums off.
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    elsewhere, _ = run_probe(tmp_path, documents=documents, lora=lora,
                             quantization=dict(kind="int8", threshold=threshold))
    assert relative_error(elsewhere["logits"], expected) < 1e-3


def test_pissa_over_a_quantised_base_is_refused(tmp_path):
    save_checkpoint(tmp_path)
    process, _ = run_probe_raw(
        tmp_path, documents=make_documents((4,)), quantization=dict(kind="nf4"),
        lora=dict(target_modules=["q_proj"], init_lora_weights="pissa"))
    assert process.returncode == 2
    assert "init_lora_weights: found pissa over the quantised" in process.stderr


# Settings of bitsandbytes, ranks.
SERIALISED = {
    "nf4_double": (dict(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                        bnb_4bit_use_double_quant=True), 2),
    "fp4_as_bfloat16": (dict(load_in_4bit=True, bnb_4bit_quant_type="fp4",
                             bnb_4bit_quant_storage=torch.bfloat16), 1),
    "int8": (dict(load_in_8bit=True, llm_int8_skip_modules=["o_proj", "lm_head"]), 1),
}


@pytest.mark.parametrize("name", SERIALISED)
def test_serialised_checkpoint_trains_as_one_quantised_while_loading(inputs, tmp_path, name):
    settings, world = SERIALISED[name]
    folder = tmp_path / "quantised"
    shutil.copytree(inputs.model("wide"), folder,
                    ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    LlamaForCausalLM.from_pretrained(
        inputs.model("wide"), dtype=torch.float32, device_map="cpu",
        quantization_config=BitsAndBytesConfig(**settings)).save_pretrained(folder)
    flags = base_flags(inputs.model("wide"), inputs.data("messages"), tmp_path / "plain",
                       use_peft=True, lora_target_modules="all-linear", max_steps=4)
    own = {k: v for k, v in settings.items() if k != "bnb_4bit_quant_storage"}
    expected = run_strata({**flags, **own}, world)
    found = run_strata({**flags, "model_name_or_path": folder, "output_dir": tmp_path / "stored"},
                       world)
    assert found.losses == expected.losses
