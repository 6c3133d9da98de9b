"""Two ranks of the reference train a model under FSDP2 and save it as accelerate does.

python fsdp2_reference.py MODEL OUT: sharded (DCP) and full (torch.save) states with optimizer.
python fsdp2_reference.py MODEL OUT LOAD: loads accelerate's sharded state from LOAD first, takes no
step, and saves.
With --lora the model trains an adapter (and a module saved whole), whose config comes to OUT/adapter.
"""

import os
import sys
import types

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


LORA = dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], modules_to_save=["model.norm"])


def work(rank, world, port, model_folder, out, load, lora):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), FSDP_VERSION="2")
    from accelerate import PartialState
    from accelerate.utils import (FullyShardedDataParallelPlugin, load_fsdp_model,
                                  load_fsdp_optimizer, save_fsdp_model, save_fsdp_optimizer)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoModelForCausalLM

    PartialState(cpu=True)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    layers = model.model.layers
    if lora:
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **LORA))
        if rank == 0:
            model.save_pretrained(os.path.join(out, "adapter"))
    mesh = init_device_mesh("cpu", (world,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    decayed = {n for n, _ in model.named_parameters() if "norm" not in n and "bias" not in n}
    optimizer = torch.optim.AdamW(
        [{"params": [p for n, p in model.named_parameters()
                     if (n in decayed) == wanted and p.requires_grad],
          "weight_decay": 0.1 if wanted else 0.0} for wanted in (True, False)], lr=1e-3)

    def step():
        ids = torch.randint(0, 300, (2, 16))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    accelerator = types.SimpleNamespace(num_processes=world, process_index=rank,
                                        wait_for_everyone=dist.barrier)
    kinds = ("SHARDED_STATE_DICT", "FULL_STATE_DICT")
    if load:
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=kinds[0],
                                                reshard_after_forward=True)
        step()  # the state is there to be replaced
        load_fsdp_model(plugin, accelerator, model, load, adapter_only=lora)
        load_fsdp_optimizer(plugin, accelerator, optimizer, model, load, adapter_only=lora)
    else:
        for _ in range(3):
            step()
    for kind in kinds:
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=kind,
                                                reshard_after_forward=True)
        save_fsdp_model(plugin, accelerator, model, out, adapter_only=lora)
        save_fsdp_optimizer(plugin, accelerator, optimizer, model, out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = probe.getsockname()[1]
    words = [word for word in sys.argv[1:] if word != "--lora"]
    mp.spawn(work, (2, free_port, words[0], words[1], words[2] if len(words) > 2 else None,
                    "--lora" in sys.argv), nprocs=2)
