"""`strata plan` of a model of 70 billion parameters beside the start of the program, and a plan with a search for changes
that fit beside one without, as ratios of processor time, round by round in turn. Usage: plan.py BUILD_FOLDER [--rounds 9]"""

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import tempfile

LLAMA_70B = dict(model_type="llama", vocab_size=32000, hidden_size=8192, intermediate_size=28672,
                 num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
                 max_position_embeddings=4096, rms_norm_eps=1e-5, torch_dtype="float32")


def processor_seconds(words, codes):
    """Of the process and its children: other programs do not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(list(map(str, words)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode not in codes:
        raise SystemExit(f"{words}: found exit code {done.returncode}, expected one of {codes}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(LLAMA_70B))
        plan = [options.build / "strata", "plan"]
        whole = [*plan, "--model_name_or_path", folder, "--world_size", 8, "--device", "cuda",
                 "--per_device_train_batch_size", 1]
        # 1: it does not fit, and what was searched for is not there.
        cases = {"start": ([*plan, "--help"], [0]), "plan": (whole, [0]),
                 "search": ([*whole, "--device_memory", "80GB"], [0, 1])}
        seconds = {name: [] for name in cases}
        for _ in range(options.rounds):
            for name, (words, codes) in cases.items():
                seconds[name].append(processor_seconds(words, codes))
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    for name, median in medians.items():
        print(f"{name:8} {median * 1e3:7.0f} ms of the processor")
    print(f"a plan beside the start of the program     {medians['plan'] / medians['start']:.2f}")
    print(f"a search for changes that fit beside a plan {medians['search'] / medians['plan']:.2f}")


if __name__ == "__main__":
    main()
