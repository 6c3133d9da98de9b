# Oracle: transformers' apply_chat_template, generate and decode for the same turns; for wrong
# input, a message that names it and the exit code.
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import time

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, LlamaForCausalLM

from running import PROGRAM, environment
from terminal import escaped

NEW_TOKENS = 8
TURNS = ["the cat 東", "café", "we"]


def chat(*words, stdin="", **variables):
    return subprocess.run([PROGRAM, "chat", *map(str, words)], input=stdin, capture_output=True,
                          text=True, timeout=60, env={**environment(), **variables})


def reference_answers(folder, turns, system=None, new_tokens=NEW_TOKENS):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    messages = [{"role": "system", "content": system}] if system else []
    answers = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True,
                                               return_tensors="pt", return_dict=True)
        ids = model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False)[0]
        answers.append(tokenizer.decode(ids[inputs["input_ids"].shape[1]:],
                                        skip_special_tokens=True))
        messages.append({"role": "assistant", "content": answers[-1]})
    return answers


def as_output(answers):
    return "".join(a if a.endswith("\n") else a + "\n" for a in answers)


@pytest.fixture(scope="module")
def model(inputs):
    return inputs.model("plain")


def test_one_answer_on_standard_output(model):
    run = chat("--model_name_or_path", model, "--prompt", TURNS[0], "--max-new-tokens", NEW_TOKENS)
    assert run.returncode == 0, run.stderr
    assert run.stdout == as_output(reference_answers(model, TURNS[:1]))
    assert run.stderr == ""


def test_the_model_may_stand_before_the_flags(model, tmp_path):
    expected = as_output(reference_answers(model, TURNS[:1]))
    flags = ["--prompt", TURNS[0], "--max-new-tokens", NEW_TOKENS]
    assert chat(model, *flags).stdout == expected
    (tmp_path / "m").symlink_to(model)
    at_home = chat("--model_name_or_path=~/m", *flags, HOME=str(tmp_path))
    assert at_home.stdout == expected, at_home.stderr


def test_several_prompts_are_one_conversation(model):
    words = [word for turn in TURNS for word in ("--prompt", turn)]
    run = chat("--model_name_or_path", model, "--max_new_tokens", NEW_TOKENS, "--system", "sat",
               *words)
    assert run.stdout == as_output(reference_answers(model, TURNS, system="sat")), run.stderr


def test_lines_of_standard_input_are_turns(model):
    run = chat("--model_name_or_path", model, "--max_new_tokens", NEW_TOKENS,
               stdin=f"{TURNS[0]}\n\n{TURNS[1]}")
    assert run.stdout == as_output(reference_answers(model, TURNS[:2])), run.stderr


def test_commands_on_standard_input(model):
    run = chat("--model_name_or_path", model, "--max_new_tokens", NEW_TOKENS,
               stdin=f"{TURNS[0]}\n/reset\n{TURNS[1]}\n{TURNS[2]}\n/exit\n{TURNS[0]}\n")
    expected = reference_answers(model, TURNS[:1]) + reference_answers(model, TURNS[1:])
    assert run.stdout == as_output(expected), run.stderr
    words = [word for turn in (TURNS[0], "/reset", TURNS[1]) for word in ("--prompt", turn)]
    run = chat("--model_name_or_path", model, "--max_new_tokens", NEW_TOKENS, *words)
    assert run.stdout == as_output([expected[0], reference_answers(model, TURNS[1:2])[0]])


def test_blanks_behind_a_command(model):
    """As the command without them; behind a turn they are said."""
    flags = ["--model_name_or_path", model, "--max_new_tokens", NEW_TOKENS]
    run = chat(*flags, stdin=f"{TURNS[0]}\n/reset \n/a b \n/exit\t \n{TURNS[1]}\n")
    expected = reference_answers(model, TURNS[:1]) + reference_answers(model, ["/a b "])
    assert run.stdout == as_output(expected), run.stderr
    assert chat(*flags, "--prompt", TURNS[0], "--prompt", "/exit ", "--prompt", TURNS[1]).stdout == as_output(expected[:1])
    assert "/adapter: found an unknown command" in chat(*flags, "--prompt", "/adapter ").stderr


def test_lines_that_are_no_turns_are_errors(model):
    flags = ["--model_name_or_path", model, "--max_new_tokens", NEW_TOKENS]
    expected = as_output(reference_answers(model, TURNS[:1]))
    for word in ("/quit", "/help", "/foo"):
        run = chat(*flags, stdin=f"{TURNS[0]}\n{word}\n{TURNS[1]}\n")
        assert run.returncode == 2 and run.stdout == expected
        assert f"error: {word}: found an unknown command, expected /reset, /exit" in run.stderr
        assert chat(*flags, "--prompt", word).returncode == 2
    # With a blank before it, it is one.
    assert chat(*flags, stdin=" /quit\n").returncode == 0
    run = subprocess.run([PROGRAM, "chat", *map(str, flags)], input=b"fine\nab\xffc\n", capture_output=True,
                         timeout=60, env=environment())
    assert run.returncode == 1
    assert b"error: standard input:2: found a byte 0xff that is not UTF-8 after 2 bytes" in run.stderr


def test_same_seed_same_answer(model):
    words = ["--model_name_or_path", model, "--prompt", "mat", "--do_sample", "--temperature", 2,
             "--max_new_tokens", 30]
    first, again, other = (chat(*words, "--seed", seed) for seed in (5, 5, 6))
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout != other.stdout


def test_without_a_template_the_text_is_continued(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    inputs = tokenizer("the cat sat", return_tensors="pt")
    ids = reference.generate(input_ids=inputs["input_ids"],
                             attention_mask=inputs["attention_mask"], max_new_tokens=NEW_TOKENS,
                             do_sample=False)[0]
    expected = tokenizer.decode(ids[inputs["input_ids"].shape[1]:], skip_special_tokens=True)
    run = chat("--model_name_or_path", folder, "--prompt", "the cat sat", "--max_new_tokens",
               NEW_TOKENS)
    assert run.stdout == as_output([expected])
    assert run.stderr.count("no chat template") == 1
    run = chat("--model_name_or_path", folder, "--prompt", "a", "--system", "b")
    assert run.returncode == 2 and "system: found a message and a model without" in run.stderr


@pytest.mark.parametrize("in_front, expected", [
    (0, "context of 128 tokens (max_position_embeddings)\n"),
    (20, "context of 108 tokens in addition to 20 virtual tokens (max_position_embeddings is 128)\n")])
def test_the_answer_ends_at_the_context_with_a_note(model, tmp_path, in_front, expected):
    # Without an end token no answer ends before.
    folder = shutil.copytree(model, tmp_path / "model")
    for name, key in (("config.json", "eos_token_id"), ("generation_config.json", "eos_token_id"),
                      ("tokenizer_config.json", "eos_token")):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**settings, key: None}))
    words = ["--model_name_or_path", folder]
    if in_front:
        width = json.loads((model / "config.json").read_text())["hidden_size"]
        (tmp_path / "adapter_config.json").write_text(json.dumps(dict(
            peft_type="PROMPT_TUNING", task_type="CAUSAL_LM", num_virtual_tokens=in_front,
            token_dim=width)))
        save_file({"prompt_embeddings": torch.zeros(in_front, width)},
                  tmp_path / "adapter_model.safetensors")
        words += ["--adapter_name_or_path", tmp_path]
    run = chat(*words, "--prompt", "a", "--max_new_tokens", 5000)
    assert run.returncode == 0, run.stderr
    assert expected in run.stderr, run.stderr


def test_settings_of_the_model_are_named_or_used(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    file = folder / "generation_config.json"
    settings = json.loads(file.read_text())
    settings.update(do_sample=True, temperature=0.6, no_repeat_ngram_size=2)
    file.write_text(json.dumps(settings))
    run = chat("--model_name_or_path", folder, "--prompt", "a", "--max_new_tokens", 2)
    assert run.returncode == 0
    assert "no_repeat_ngram_size 2 is not applied" in run.stderr
    assert "asks for sampling" in run.stderr


def with_settings(model, folder, name, **settings):
    folder = shutil.copytree(model, folder)
    file = folder / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    return folder


def test_settings_of_a_model_without_a_file_of_its_own(model, tmp_path):
    """transformers reads them in config.json then."""
    folder = with_settings(model, tmp_path / "model", "config.json", repetition_penalty=3.0, no_repeat_ngram_size=2, do_sample=True)
    (folder / "generation_config.json").unlink()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer.apply_chat_template([{"role": "user", "content": TURNS[0]}], add_generation_prompt=True,
                                           return_tensors="pt", return_dict=True)
    reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = reference.generate(**inputs, max_new_tokens=20, do_sample=False, no_repeat_ngram_size=0)[0]
    expected = tokenizer.decode(ids[inputs["input_ids"].shape[1]:], skip_special_tokens=True)
    assert [expected] != reference_answers(model, TURNS[:1], new_tokens=20)
    run = chat("--model_name_or_path", folder, "--prompt", TURNS[0], "--max_new_tokens", 20)
    assert run.stdout == as_output([expected])
    assert "config.json: no_repeat_ngram_size 2 is not applied" in run.stderr
    assert "note: config.json asks for sampling" in run.stderr


def test_greedy_answers_do_not_feel_what_shapes_a_draw(model, tmp_path):
    folder = with_settings(model, tmp_path / "model", "generation_config.json", temperature=0, top_k=-1, top_p=7, min_p=-1)
    run = chat("--model_name_or_path", folder, "--prompt", TURNS[0], "--max_new_tokens", NEW_TOKENS)
    assert run.stdout == as_output(reference_answers(model, TURNS[:1])), run.stderr
    run = chat("--model_name_or_path", folder, "--prompt", TURNS[0], "--do_sample", "--temperature", 1)
    assert run.returncode == 2 and "top_k: found -1" in run.stderr


@pytest.mark.parametrize("words,code,message", [
    (["--model_name_or_path", "M", "--promt", "a"], 2, "--promt: found an unknown flag, expected a "
                                                       "known one; did you mean --prompt?"),
    (["--model_name_or_path", "M", "--learning_rate", "1"], 2, "--learning_rate: found an unknown"),
    (["--model_name_or_path", "M", "--prompt", ""], 2, "--prompt: found an empty text"),
    (["--model_name_or_path", "M", "--prompt"], 2, "--prompt: found no value"),
    (["--model_name_or_path", "M", "a"], 2, "a: found a word that belongs to no flag"),
    (["--model_name_or_path", "M", "--temperature", "0.5", "--prompt", "a"], 2,
     "--temperature: found with do_sample off"),
    (["--model_name_or_path", "M", "--seed", "3", "--prompt", "a"], 2, "--seed: found with do_sample off"),
    (["--model_name_or_path", "M", "--do_sample", "--temperature", "0", "--prompt", "a"], 2,
     "temperature: found 0"),
    (["--model_name_or_path", "M", "--do_sample", "--top_p", "1.5"], 2, "--top_p: found \"1.5\""),
    (["--model_name_or_path", "M", "--max_new_tokens", "0"], 2, "--max_new_tokens: found \"0\""),
    (["--model_name_or_path", "M", "--seed", "1", "--seed", "2", "--dtype", "int4"], 2,
     "--seed: found 2 after --seed 1, the same setting; the last one wins"),
    (["--model_name_or_path", "M", "--dtype", "int4"], 2, "--dtype: found \"int4\""),
    (["--model_name_or_path", "M", "--prompt", "a " * 500], 2, "prompt: found "),
    (["--model_name_or_path", "M", "--prompt", "/merge"], 2, "/merge: found no adapters to choose from"),
    (["--prompt", "a"], 2, "model_name_or_path: found nothing"),
    (["--model_name_or_path", "no/such/folder", "--prompt", "a"], 1,
     "model_name_or_path: found nothing at no/such/folder"),
    (["--model_name_or_path", "M", "--adapter_name_or_path", "no/adapter", "--prompt", "a"], 1,
     "adapter_name_or_path: found nothing at no/adapter"),
    (["--model_name_or_path", "M", "--adapter_name_or_path", "M", "--prompt", "a"], 2,
     "adapter_name_or_path: found a model in "),
])
def test_wrong_input_is_named(model, words, code, message):
    run = chat(*[str(model) if word == "M" else word for word in words])
    assert run.returncode == code, run.stderr
    assert message in run.stderr
    assert run.stdout == ""


def test_a_full_disk_at_the_output_is_an_error(model):
    with open("/dev/full", "w") as full:
        run = subprocess.run([PROGRAM, "chat", "--model_name_or_path", model, "--prompt", "a"],
                             stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert run.returncode == 1 and "standard output:" in run.stderr


class Terminal:
    """The program behind a pseudo-terminal."""

    def __init__(self, *words):
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.execve(PROGRAM, [str(PROGRAM), "chat", *map(str, words)], environment())
        self.text = ""

    def read_until(self, mark, seconds=30):
        """What came up to and with `mark`."""
        end = time.monotonic() + seconds
        while mark not in self.text:
            ready, _, _ = select.select([self.file], [], [], max(0, end - time.monotonic()))
            assert ready, self.text
            self.text += os.read(self.file, 4096).decode(errors="replace")
        found, self.text = self.text.split(mark, 1)
        return found + mark

    def send(self, text):
        os.write(self.file, text.encode())

    def wait(self, again="", seconds=30):
        """The exit code. `again` is typed until the program ends: a terminal that hands out Ctrl-C
        throws away what was typed before the program took the signal."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if again:
                self.send(again)
            time.sleep(0.2)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(f"still running after {seconds} s: {self.text}")


def test_a_conversation_on_a_terminal(model):
    terminal = Terminal("--model_name_or_path", model, "--max_new_tokens", NEW_TOKENS)
    assert "/reset" in terminal.read_until("> ")
    # Signs that the terminal would obey are shown.
    first, second = map(escaped, reference_answers(model, TURNS[:2]))
    seen = []
    for line in (TURNS[0], TURNS[1], "/reset", TURNS[0], "a " * 500, "/quit"):
        terminal.send(line + "\n")
        terminal.read_until("\n")  # the echo
        seen.append(terminal.read_until("> "))
    plain = [text.replace("\r\n", "\n") for text in seen]
    assert plain[0].startswith(first) and plain[1].startswith(second)
    assert plain[2] == "> "
    assert plain[3] == plain[0]
    assert "error: prompt: found" in plain[4]
    assert "error: /quit: found an unknown command, expected /reset, /exit" in plain[5]
    terminal.send("\x03")  # at the prompt: a new one
    terminal.read_until("> ")
    assert terminal.wait(again="\x04") == 0


def test_what_a_template_refuses_ends_no_conversation(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    template = folder / "chat_template.jinja"
    template.write_text("{% if messages[-1].content == 'no' %}{{ raise_exception('not that') }}{% endif %}" + template.read_text())
    terminal = Terminal("--model_name_or_path", folder, "--max_new_tokens", NEW_TOKENS)
    terminal.read_until("> ")
    seen = []
    for line in (TURNS[0], "no", TURNS[1]):
        terminal.send(line + "\n")
        terminal.read_until("\n")  # the echo
        seen.append(terminal.read_until("> ").replace("\r\n", "\n"))
    first, second = map(escaped, reference_answers(model, TURNS[:2]))
    assert seen[0].startswith(first) and seen[2].startswith(second)
    assert seen[1].startswith("error: ") and "not that" in seen[1]
    terminal.send("/exit\n")
    assert terminal.wait() == 0


def test_ctrl_c_stops_the_answer_alone(model, tmp_path):
    # A context that takes minutes to fill.
    folder = shutil.copytree(model, tmp_path / "model")
    for name, changes in (("config.json", dict(max_position_embeddings=2000000, eos_token_id=None)),
                          ("generation_config.json", dict(eos_token_id=None))):
        file = folder / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    terminal = Terminal("--model_name_or_path", folder, "--max_new_tokens", 1000000, "--do_sample",
                        "--temperature", 5, "--top_k", 0)
    terminal.read_until("> ")
    terminal.send("cat\n")
    terminal.read_until("\n")
    time.sleep(1)
    os.kill(terminal.pid, signal.SIGINT)
    terminal.read_until("\n> ")
    terminal.send("/exit\n")
    assert terminal.wait() == 0
