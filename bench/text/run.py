#!/usr/bin/env python3
"""Tokenizing and preparing data: the reference stack and Strata in one run, as ratios.

Tokenizers are trained on the documentation strings of the installed Python (bench/peer/make_inputs.py)
and measured on text that was not in the training, A B A B. Preparing data: TRL's SFTTrainer from the
rows to the batches' data set, beside `strata preview` with an empty cache, and once more with a full
one; whole processes, as a person waits for them (Python with its imports), and the preparation alone."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("STRATA_BUILD", "build/release")
sys.path.insert(0, str(ROOT / "bench" / "peer"))

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402


def corpus():
    import make_inputs

    texts = [text for _, text in make_inputs.documents()]
    return texts[: len(texts) // 2], texts[len(texts) // 2 :]


def byte_level(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=8000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


def llama3(texts):
    from tokenizers import Regex

    tokenizer = byte_level(texts)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return tokenizer


def unigram(texts):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(texts, trainers.UnigramTrainer(
        vocab_size=8000, show_progress=False, unk_token="<unk>", special_tokens=["<unk>"]))
    return tokenizer


def sentencepiece_bpe(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.train_from_iterator((w for t in texts for w in t.split(" ")), trainers.BpeTrainer(
        vocab_size=8000, show_progress=False, special_tokens=["<unk>"] + [f"<0x{i:02X}>" for i in range(256)]))
    return tokenizer


def their_rates(path, texts, seconds):
    """Megabytes a second of the first round and of the best one, and the tokens."""
    tokenizer = Tokenizer.from_file(str(path))
    size = sum(len(t.encode()) for t in texts) / 1e6
    end = time.monotonic() + seconds
    times, tokens = [], 0
    while time.monotonic() < end:
        start = time.monotonic()
        tokens = sum(len(tokenizer.encode(t).ids) for t in texts)
        times.append(time.monotonic() - start)
    return size / times[0], size / min(times), tokens


def our_rates(model, file, seconds, threads=1):
    out = json.loads(subprocess.run([BUILD / "tokenize_bench", model, file, str(seconds), str(threads)],
                                    capture_output=True, text=True, check=True).stdout)
    return out["first_mb_per_s"], out["mb_per_s"], out["tokens"]


def bench_tokenizers(folder, seconds):
    train, test = corpus()
    text = "\n\n".join(test)
    file = folder / "text.txt"
    file.write_text(text)
    parts = [p for p in text.split("\n\n") if p]
    print(f"\n{len(text.encode()) / 1e6:.2f} MB of documentation, MB/s; the first round of a new tokenizer, then the best round\n")
    print("| tokenizer | tokenizers, first | Strata, first | ratio | tokenizers | Strata | ratio | Strata, 2 threads | of 1 thread |")
    print("|---|---|---|---|---|---|---|---|---|")
    for make in (byte_level, llama3, sentencepiece_bpe, unigram):
        model = folder / make.__name__
        model.mkdir()
        make(train).save(str(model / "tokenizer.json"))
        theirs, ours, both = [], [], []
        for _ in range(3):
            theirs.append(their_rates(model / "tokenizer.json", parts, seconds))
            ours.append(our_rates(model, file, seconds))
            both.append(our_rates(model, file, seconds, threads=2))
            assert theirs[-1][2] == ours[-1][2] == both[-1][2], make.__name__
        (t0, t1), (o0, o1), (_, b1) = ([max(run[i] for run in runs) for i in (0, 1)] for runs in (theirs, ours, both))
        print(f"| {make.__name__} | {t0:.2f} | {o0:.2f} | {o0 / t0:.1f} | {t1:.2f} | {o1:.2f} | {o1 / t1:.1f} | {b1:.2f} | {b1 / o1:.2f} |",
              flush=True)


REFERENCE = """
import json, sys, time
import datasets, torch, transformers, trl
folder, data, packing = sys.argv[1:]
datasets.disable_progress_bars()
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    num_attention_heads=1, vocab_size=len(tokenizer)))
args = trl.SFTConfig(output_dir=data + '.out', use_cpu=True, bf16=False, report_to='none', max_length=512, packing=packing == 'True',
                     packing_strategy='wrapped', gradient_checkpointing=False)
start = time.monotonic()
rows = datasets.load_dataset('json', data_files=data, split='train', cache_dir=data + '.cache')
trl.SFTTrainer(model=model, processing_class=tokenizer, args=args, train_dataset=rows)
print(json.dumps(time.monotonic() - start))
"""


def bench_preparation(folder, rounds):
    subprocess.run([sys.executable, ROOT / "bench" / "peer" / "make_inputs.py", folder / "inputs", "--widths", "64,64,1,1,1"],
                   check=True, capture_output=True)
    model, data = folder / "inputs" / "model", folder / "inputs" / "data" / "train.jsonl"
    print(f"\npreparing {sum(1 for _ in data.open())} conversations ({data.stat().st_size / 1e6:.1f} MB)\n")
    print("| job | TRL: process, s | Strata: process, s | ratio | TRL: preparation, s | Strata: preparation, s | ratio "
          "| Strata: second start, s | of it the program's start, s |\n|---|---|---|---|---|---|---|---|---|")
    for packing in (False, True):
        whole, theirs, first, second, start_only = [], [], [], [], []
        for k in range(rounds):
            copy = folder / f"data-{packing}-{k}.jsonl"
            copy.write_bytes(data.read_bytes())
            start = time.monotonic()
            out = subprocess.run([sys.executable, "-c", REFERENCE, str(model), str(copy), str(packing)], capture_output=True, text=True)
            whole.append(time.monotonic() - start)
            assert out.returncode == 0, out.stderr
            theirs.append(json.loads(out.stdout.splitlines()[-1]))
            command = [BUILD / "strata", "preview", "--model_name_or_path", model, "--dataset_name", copy, "--max_length", "512",
                       "--num_examples", "0"] + (["--packing", "--packing_strategy", "wrapped"] if packing else [])
            env = {**os.environ, "HF_HOME": str(folder / f"home-{packing}-{k}")}
            for times, words in ((first, command), (second, command), (start_only, [BUILD / "strata", "--version"])):
                start = time.monotonic()
                subprocess.run(words, check=True, capture_output=True, env=env)
                times.append(time.monotonic() - start)
        whole, theirs, first, second, start_only = map(min, (whole, theirs, first, second, start_only))
        # The preparation alone: Strata's without the start of the program (loading libtorch), TRL's without its imports.
        alone = first - start_only
        print(f"| {'packed' if packing else 'rows'} | {whole:.2f} | {first:.3f} | {whole / first:.1f} | {theirs:.2f} | {alone:.3f} "
              f"| {theirs / alone:.1f} | {second:.3f} | {start_only:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=["tokenizers", "preparation"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.only != "preparation":
            bench_tokenizers(pathlib.Path(folder), arguments.seconds)
        if arguments.only != "tokenizers":
            bench_preparation(pathlib.Path(folder), arguments.rounds)


if __name__ == "__main__":
    main()
