# Oracle: bitsandbytes on the CPU: codes, scales, decoded values and products bit for bit.
import subprocess

import bitsandbytes.functional as functional
import pytest
import torch
from bitsandbytes.nn import Linear8bitLt
from safetensors.torch import load_file, save_file

from probe import BUILD

pytestmark = pytest.mark.usefixtures("one_thread")
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
