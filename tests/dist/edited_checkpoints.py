"""Checkpoints as a program would leave them that saved other values or another step."""

import json

import safetensors.torch
import torch
import xxhash


def rewrite(checkpoint, change):
    """Changes a checkpoint's tensors and manifest as a program would that saved them so."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["checksum"]
    change(manifest)
    for record in manifest["tensors"].values():
        for piece in record["pieces"]:
            tensors = safetensors.torch.load_file(checkpoint / piece["file"])
            data = tensors[piece["key"]].numpy().tobytes()
            piece["xxh3"] = xxhash.xxh3_64_hexdigest(data)
            piece.pop("blocks", None)
    for name, record in manifest["files"].items():
        data = (checkpoint / name).read_bytes()
        record.update(bytes=len(data), xxh3=xxhash.xxh3_64_hexdigest(data))
    text = json.dumps(manifest, indent=1)[:-2] + ",\n "
    text += f'"checksum": "{xxhash.xxh3_64_hexdigest(text.encode())}"\n}}\n'
    (checkpoint / "manifest.json").write_text(text)


def spoil(checkpoint):
    for file in checkpoint.glob("*.safetensors"):
        tensors = safetensors.torch.load_file(file)
        spoilt = {n: torch.full_like(t, torch.nan) if n.startswith("parameter/") else t
                  for n, t in tensors.items()}
        safetensors.torch.save_file(spoilt, file)
    rewrite(checkpoint, lambda manifest: None)


def set_step(checkpoint, step):
    """The same state as that of another step; the updates stay as many as they were."""
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    state["global_step"] = step
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    rewrite(checkpoint, lambda manifest: manifest.update(step=step))
