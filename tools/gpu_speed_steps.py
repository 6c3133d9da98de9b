"""Steps of tools/check_gpu that time: ops, attention, and the cases of bench/gpu beside their references. Each is a function of
(check, seconds), as gpu_check.Step has it."""

import hashlib
import json
import shutil
import sys

from gpu_check import PLAN_TOLERANCE, ROOT, has_room_for_a_model, last_lines


def op_speed(check, seconds):
    passed, _, text, _ = check.run("op-speed", [check.programs / "test_ops", "--perf", "cuda"], seconds)
    return passed and "cuda" in text, last_lines(text)


def attention_speed(check, seconds):
    """Of libtorch's kernels, which the choice between them rests on."""
    passed, _, text, _ = check.run("attention-speed", [sys.executable, ROOT / "bench/gpu/attention.py"], seconds)
    if passed:
        check.facts["attention"] = json.loads(text.strip().splitlines()[-1])
    return passed, last_lines(text)


def thin_speed(check, seconds):
    """Of cuBLAS on the products of LoRA's branches, beside the chip's rates."""
    passed, _, text, _ = check.run("thin-speed", [sys.executable, ROOT / "bench/gpu/thin.py"], seconds)
    if passed:
        check.facts["thin"] = json.loads(text.strip().splitlines()[-1])
    return passed, last_lines(text)


def inputs_of(check, case):
    """A folder for the checkpoint of the case's model, which all its cases share. Others go where they leave no room."""
    digest = hashlib.sha256(repr((case.model_config, case.length)).encode()).hexdigest()[:12]
    folder = check.checkpoints / f"inputs-{digest}"
    others = sorted(set(check.checkpoints.glob("inputs-*")) - {folder}, key=lambda other: other.stat().st_mtime)
    while others and not folder.exists() and not has_room_for_a_model(check.checkpoints):
        shutil.rmtree(others.pop(0))
    return folder


def last_result(text):
    """Of run.py's output: the last line that is one, which a run that was stopped has too; None without one."""
    for line in reversed(text.splitlines()):
        if line.startswith('{"case"'):
            return json.loads(line)
    return None


def bench(case, *more, label="", **variables):
    def work(check, seconds):
        sys.path.insert(0, str(ROOT / "bench" / "gpu"))
        from cases import CASES

        passed, _, text, code = check.run(f"bench-{case}{label}", [sys.executable, ROOT / "bench/gpu/run.py", case,
                                                                   "--strata", check.programs / "strata", "--folder",
                                                                   inputs_of(check, CASES[case]), *more], seconds,
                                          **variables)
        result = last_result(text)
        if result is None:
            return False, f"exit {code}: {last_lines(text)}"
        check.facts.setdefault("bench", {})[case + label] = result
        ours, wanted = result["strata"], CASES[case]
        if "tokens_per_second" not in ours:
            return False, f"{ours}"
        # A variant has no reference of its own: that of the case.
        theirs = check.facts["bench"].get(case, {}).get("peer", {})
        if theirs.get("rows") == ours["rows"]:
            result.setdefault("speed_ratio", ours["tokens_per_second"] / theirs["tokens_per_second"])
        problems = [] if passed else [f"the reference: exit {code}"]
        if not ours.get("breakdown_ms"):
            problems.append("no breakdown")
        if ours["tokens_per_second"] < wanted.wanted_tokens:
            problems.append(f"wanted {wanted.wanted_tokens:.0f} tokens/s")
        if "speed_ratio" in result and result["speed_ratio"] < wanted.wanted_ratio:
            problems.append(f"wanted {wanted.wanted_ratio} times the reference")
        if result.get("model_flops_share", 0) < wanted.wanted_share:
            problems.append(f"wanted {wanted.wanted_share} of the matrix rate")
        if "error" in result.get("peer", {}):
            problems.append(f"the reference: {result['peer']['error']}")
        # A tiny model's memory is that of libraries.
        if case != "tiny" and result.get("memory_ratio", 0) > 0.7:
            problems.append("wanted 0.7 of the reference's memory")
        if case != "tiny" and not abs(ours.get("plan_error_percent", 100.0)) <= PLAN_TOLERANCE:
            problems.append(f"plan: {ours.get('planned', 'none')}")
        shown = {k: round(result[k], 3) for k in ("speed_ratio", "memory_ratio", "model_flops_share") if k in result}
        text = f"{ours['tokens_per_second']:.0f} tokens/s, {ours['peak_mb'] / 1e3:.2f} GB, {shown}"
        return not problems, "; ".join([text, *problems, *ours["warnings"]])
    return work
