"""Checkpoints whose linear layers are whole numbers, as published ones are, and what they come to: by compressed-tensors' own
code (where that is there), and for GPTQ and AWQ by what their programs do, step by step."""

import json

import torch
from safetensors.torch import load_file, save_file

from fp8_files import is_linear

# Of eight rows, in the order in which AWQ puts them into a word.
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def words(codes, bits):
    """Codes [..., n] as int32 [..., n * bits / 32], the first one lowest."""
    per = 32 // bits
    shifted = codes.to(torch.int64).reshape(*codes.shape[:-1], -1, per) << (torch.arange(per) * bits)
    total = shifted.sum(-1)
    return torch.where(total >= 2 ** 31, total - 2 ** 32, total).to(torch.int32)


def unpack(packed, bits):
    shifts = torch.arange(0, 32, bits)
    codes = (packed.unsqueeze(-1) >> shifts) & (2 ** bits - 1)
    return codes.reshape(*packed.shape[:-1], -1)


def order_of(columns, groups):
    """What the order of activations leaves: neighbours are in different groups."""
    columns = torch.arange(columns)
    return (columns * 5 + columns // groups + 1) % groups


def rounded(weight, bits, groups_of, is_symmetric, dtype):
    """Codes [rows, columns], scales and zeros [rows, groups] of a matrix, in unsigned codes."""
    rows, groups, top = weight.shape[0], int(groups_of.max()) + 1, 2 ** bits - 1
    scales, zeros = torch.empty(rows, groups), torch.empty(rows, groups)
    for g in range(groups):
        part = weight.float()[:, groups_of == g]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if is_symmetric:
            high = torch.maximum(-low, high)
            low = -high
        scales[:, g] = ((high - low) / top).clamp(min=1e-5)
        zeros[:, g] = 2 ** (bits - 1) if is_symmetric else (-low / scales[:, g]).round().clamp(0, top)
    scales = scales.to(dtype)
    codes = (weight.float() / scales.float()[:, groups_of] + zeros[:, groups_of]).round().clamp(0, top)
    return codes.to(torch.int32), scales, zeros.to(torch.int32)


def parts_of(module, weight, method, bits, group, is_symmetric, has_order, dtype, less):
    rows, columns = weight.shape
    size = columns if group == -1 else group
    groups = -(-columns // size)
    groups_of = order_of(columns, groups) if has_order else torch.arange(columns) // size
    codes, scales, zeros = rounded(weight, bits, groups_of, is_symmetric, dtype)
    if method == "compressed-tensors":
        from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

        offset = 2 ** (bits - 1)
        parts = {"weight_packed": pack_to_int32((codes - offset).to(torch.int8), bits), "weight_scale": scales,
                 "weight_shape": torch.tensor([rows, columns])}
        if not is_symmetric:
            parts["weight_zero_point"] = pack_to_int32((zeros - offset).to(torch.int8), bits, packed_dim=0)
        if has_order:
            parts["weight_g_idx"] = groups_of.to(torch.int32)
    elif method == "awq":
        def mixed(values):
            return values.reshape(values.shape[0], -1, 8)[..., AWQ_ORDER].reshape(values.shape)
        parts = {"qweight": words(mixed(codes.T), 4), "qzeros": words(mixed(zeros.T), 4), "scales": scales.T.contiguous()}
    else:
        parts = {"qweight": words(codes, bits).T.contiguous(), "scales": scales.T.contiguous(),
                 "qzeros": words((zeros.T - less) % 2 ** bits, bits), "g_idx": groups_of.to(torch.int32)}
    return {f"{module}.{name}": part for name, part in parts.items()}


def entry_of(method, bits, group, is_symmetric, has_order, **more):
    if method == "gptq":
        return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": has_order, "sym": is_symmetric,
                "damp_percent": 0.1, "true_sequential": True, "lm_head": False, "pack_dtype": "int32"} | more
    if method == "awq":
        return {"quant_method": "awq", "bits": bits, "group_size": group, "zero_point": True, "version": "gemm",
                "modules_to_not_convert": None} | more
    weights = {"num_bits": bits, "type": "int", "symmetric": is_symmetric, "strategy": "channel" if group == -1 else "group",
               "group_size": None if group == -1 else group, "dynamic": False, "actorder": "group" if has_order else None,
               "block_structure": None, "observer": "minmax", "observer_kwargs": {}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "global_compression_ratio": None, "kv_cache_scheme": None, "ignore": ["lm_head"], "config_groups": {"group_0": {
                "targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}}} | more


def store_in_ints(folder, method="gptq", bits=4, group=16, is_symmetric=False, has_order=False, scale_type=torch.float16, takes=is_linear,
                  **entries):
    """The linear layers' weights so; `takes`: which, by their names."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    less = 0 if entries.get("checkpoint_format") == "gptq_v2" else 1
    for name in [name for name in weights if takes(name) and weights[name].dim() == 2]:
        weight = weights.pop(name)
        weights |= parts_of(name.removesuffix(".weight"), weight, method, bits, group, is_symmetric, has_order, scale_type, less)
    save_file(weights, file, {"format": "pt"})
    path = folder / "config.json"
    entry = entry_of(method, bits, group, is_symmetric, has_order, **entries)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": entry}))
    return folder


def of_gptq(parts, config, bits):
    """As AutoGPTQ's layer for torch decodes: [in, out], turned."""
    zeros = unpack(parts["qzeros"], bits)
    if config.get("checkpoint_format", "gptq") == "gptq":
        zeros = (zeros + 1) & (2 ** bits - 1)
    codes = unpack(parts["qweight"].T.contiguous(), bits).T
    groups = parts["g_idx"].long()
    return (parts["scales"][groups] * (codes - zeros[groups]).to(parts["scales"].dtype)).T


def of_awq(parts, group):
    """As AutoAWQ's dequantize_gemm() does: unpacks, puts rows into their order, scales."""
    reverse = [0, 4, 1, 5, 2, 6, 3, 7]
    def ordered(packed):
        values = unpack(packed, 4)
        return values.reshape(values.shape[0], -1, 8)[..., reverse].reshape(values.shape)
    codes, scales = ordered(parts["qweight"]), parts["scales"]
    size = codes.shape[0] if group == -1 else group
    return ((codes - ordered(parts["qzeros"]).repeat_interleave(size, 0)).to(scales.dtype) * scales.repeat_interleave(size, 0)).T


def of_packed(parts, group):
    order = parts.pop("weight_g_idx", None)
    if order is None:
        from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
        from compressed_tensors.quantization import QuantizationScheme

        scheme = QuantizationScheme(**{key: group.get(key) for key in ("targets", "weights")})
        return PackedQuantizationCompressor.decompress(parts, scheme)["weight"]
    # Columns in an order, which its releases until 2026 knew.
    bits = group["weights"]["num_bits"]
    codes = unpack(parts["weight_packed"], bits)[:, :parts["weight_shape"][1]] - 2 ** (bits - 1)
    return codes.to(parts["weight_scale"].dtype) * parts["weight_scale"][:, order.long()]


def decoded(folder):
    """Every weight as the formats' own programs decode it, in the type of its scales."""
    config = json.loads((folder / "config.json").read_text())
    config = config.get("quantization_config") or config["text_config"]["quantization_config"]
    weights = load_file(folder / "model.safetensors")
    codes_end = "weight_packed" if config["quant_method"] == "compressed-tensors" else "qweight"
    for name in [name for name in weights if name.endswith("." + codes_end)]:
        module = name.removesuffix(codes_end)
        ends = ("qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")
        parts = {end: weights.pop(module + end) for end in ends if module + end in weights}
        if config["quant_method"] == "gptq":
            plain = of_gptq(parts, config, config["bits"])
        elif config["quant_method"] == "awq":
            plain = of_awq(parts, config["group_size"])
        else:
            plain = of_packed(parts, config["config_groups"]["group_0"])
        weights[module + "weight"] = plain.contiguous()
    return weights


def save_decoded(folder, out):
    """The same model with plain weights, in a folder of its own."""
    out.mkdir()
    for path in folder.iterdir():
        if path.is_file() and path.suffix in (".json", ".jinja", ".model", ".txt") and "probe" not in path.name:
            (out / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config", None)
    config.get("text_config", {}).pop("quantization_config", None)
    (out / "config.json").write_text(json.dumps(config))
    save_file(decoded(folder), out / "model.safetensors", {"format": "pt"})
    return out
