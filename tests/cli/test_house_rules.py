# Oracle: small trees with one breach each, of which tools/check_includes must name exactly that one.
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def check(folder, files, names_files=True):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if names_files:
            (path.parent / "README.md").write_text(" ".join(pathlib.Path(n).name for n in files))
    run = subprocess.run([ROOT / "tools/check_includes", folder], capture_output=True, text=True)
    return run.returncode, run.stdout.splitlines()


@pytest.mark.parametrize(
    "name, line, complaint",
    [
        ("base/a.h", '#include "strata/hf/b.h"', "base may not include hf"),
        ("shard/a.h", '#include "strata/train/b.h"', "shard may not include train"),
        ("report/a.h", '#include "strata/text/b.h"', "report may not include text"),
        ("nn/a.h", "#include <torch/torch.h>", "torch/torch.h is never included"),
        ("data/a.h", "#include <ATen/core/Tensor.h>", "data is built without libtorch"),
        ("shard/a.cpp", "#include <cuda_runtime.h>", "CUDA headers belong in"),
        ("ops/a.h", "inline void f() { std::cout << 1; }", "never prints or exits"),
        ("train/a.h", "inline void f() { std::exit(1); }", "never prints or exits"),
        ("hf/a.h", 'inline void f() { printf("x"); }', "never prints or exits"),
        ("wrong/a.h", "", "not in the order"),
        ("base/a.h", '#include "strata/base/b.h"\n#include "strata/base/c.h"\n#include <string>', "before ours, found string"),
    ],
)
def test_each_breach_is_found(tmp_path, name, line, complaint):
    code, lines = check(tmp_path, {name: f"// Owns a test.\n{line}\n"})
    assert code == 1
    assert len(lines) == 2 and complaint in lines[0] and name in lines[0]


def test_a_file_without_head_comment_is_found(tmp_path):
    code, lines = check(tmp_path, {"base/a.h": "#pragma once\n"})
    assert code == 1 and "base/a.h:1: has no comment" in lines[0]


def test_a_header_that_no_readme_names_is_found(tmp_path):
    files = {"nn/parts/a.h": "// Owns a.\n", "nn/b.h": "// Owns b.\n", "nn/README.md": "`a.h` and ab"}
    code, lines = check(tmp_path, files, names_files=False)
    assert code == 1 and len(lines) == 2 and "nn/b.h: no README" in lines[0]


def test_what_is_allowed_passes(tmp_path):
    files = {
        "base/a.h": "// Owns a.\n#include <string>\n",
        "train/b.h": '// Owns b.\n#include "strata/report/r.h"\n// std::cout in a comment\n',
        "cli/c.cpp": '// Owns c.\n#include "strata/train/b.h"\nvoid f() { std::exit(1); }\n',
        "comm/nccl_group.cpp": "// Owns d.\n#include <nccl.h>\n",
        "base/f.cpp": '// Owns f.\n#include "strata/base/f_and_g.h"\n#include <string>\n#include "strata/base/error.h"\n',
        "hf/e.cpp": '// Owns e.\nconst char* text = "std::exit(1)";\n',
    }
    code, lines = check(tmp_path, files)
    assert code == 0 and lines == ["check_includes: 6 files, 0 breaches"]
