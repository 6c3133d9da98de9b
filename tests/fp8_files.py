"""Checkpoints with weights in 8-bit floating point, as published ones are, and what torch makes of them."""

import json

import torch
from safetensors.torch import load_file, save_file

LARGEST = torch.finfo(torch.float8_e4m3fn).max
# What the three kinds of files call a scale, and what they say of it in config.json.
METHODS = {"fp8": "_scale_inv", "fbgemm_fp8": "_scale", "compressed-tensors": "_scale"}


def tiles_of(weight, tile):
    """How many rows and columns of a matrix share a scale."""
    rows, columns = weight.shape
    return {"matrix": (rows, columns), "rows": (1, columns)}.get(tile, tile)


def spread(scales, tile, shape):
    """The scale of every element."""
    whole = scales.float().repeat_interleave(tile[0], 0).repeat_interleave(tile[1], 1)
    return whole[:shape[0], :shape[1]]


def rounded(weight, tile, dtype=torch.float32):
    """Codes and the scales of their tiles, each the largest element by the largest code."""
    height, width = tile
    rows, columns = weight.shape
    padded = torch.zeros(-(-rows // height) * height, -(-columns // width) * width)
    padded[:rows, :columns] = weight.float()
    largest = padded.reshape(padded.shape[0] // height, height, padded.shape[1] // width, width).abs().amax(dim=(1, 3))
    scales = (largest.clamp(min=1e-6) / LARGEST).to(dtype)
    return (weight.float() / spread(scales, tile, weight.shape)).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scales


def is_linear(name):
    plain = ("embed", "lm_head", "norm", ".gate.", "router", "wte")
    return name.endswith(".weight") and not any(part in name for part in plain)


def store_in_fp8(folder, tile=(16, 16), method="fp8", scale_type=torch.float32, **config_entries):
    """Linear layers' weights in that type; `tile`: (rows, columns), "rows" or "matrix"."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    for name in [name for name in weights if is_linear(name) and weights[name].dim() == 2]:
        size = tiles_of(weights[name], tile)
        codes, scales = rounded(weights[name], size, scale_type)
        weights[name] = codes
        weights[name + METHODS[method]] = scales.reshape(()) if tile == "matrix" else scales
        if method == "fp8" and tile == "matrix":
            weights[name.removesuffix("weight") + "activation_scale"] = torch.tensor(0.5)
    for name in [name for name in weights if weights[name].dim() == 3 and ".experts." in name]:
        # Those of all experts, as [experts, in, out]: a scale of each output.
        scales = (weights[name].float().abs().amax(dim=1, keepdim=True).clamp(min=1e-6) / LARGEST).to(scale_type)
        weights[name] = (weights[name].float() / scales.float()).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        weights[name + METHODS[method]] = scales
    save_file(weights, file, {"format": "pt"})
    entry = {"quant_method": method, **config_entries}
    if method == "fp8":
        entry |= {"activation_scheme": "static" if tile == "matrix" else "dynamic", "fmt": "e4m3",
                  "weight_block_size": list(tile) if isinstance(tile, tuple) else None}
    if method == "compressed-tensors":
        entry.setdefault("format", "float-quantized")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": entry}))
    return folder


def announced_block(config):
    """That of compressed-tensors."""
    return next((group["weights"].get("block_structure") for group in config.get("config_groups", {}).values()), None)


def decoded(folder, dtype):
    """Every weight as torch decodes it: code times scale in fp32, then rounded once."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    weights = load_file(folder / "model.safetensors")
    end = METHODS[config["quant_method"]]
    plain = {}
    for name, weight in weights.items():
        if name.endswith((end, "activation_scale")):
            continue
        if weight.dtype == torch.float8_e4m3fn and weight.dim() == 3:
            weight = (weight.float() * weights[name + end].float()).to(dtype)
        elif weight.dtype == torch.float8_e4m3fn:
            scales = weights[name + end].reshape(1, 1) if weights[name + end].dim() == 0 else weights[name + end]
            block = config.get("weight_block_size") or announced_block(config) or [-(-size // count) for size, count in zip(weight.shape, scales.shape)]
            weight = (weight.float() * spread(scales, block, weight.shape)).to(dtype)
        plain[name] = weight
    return plain


def save_decoded(folder, out, dtype):
    """The same model with plain weights, in a folder of its own."""
    out.mkdir()
    for path in folder.iterdir():
        if path.is_file() and path.suffix in (".json", ".jinja", ".model", ".txt") and "probe" not in path.name:
            (out / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (out / "config.json").write_text(json.dumps(config))
    save_file(decoded(folder, dtype), out / "model.safetensors", {"format": "pt"})
    return out
