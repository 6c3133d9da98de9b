# Oracle: small trees with one breach each, of which tools/check_includes must name exactly that one.
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGETS = """# A comment with strata_library(none DEPS strata_nobody).
strata_library(base DEPS yaml-cpp)
strata_library(report DEPS strata_base)
strata_library(libtorch TORCH)
strata_library(hf)
strata_library(ops TORCH)
strata_library(train TORCH DEPS strata_base
               strata_report)
strata_library(cli TORCH DEPS strata_train)
"""
# Files by which every dependency of TARGETS is used.
USES = {
    "base/error.h": "// Owns errors.\n",
    "report/page.h": '// Owns a page.\n#include "strata/base/error.h"\n',
    "train/run.h": '// Owns a run.\n#include "strata/base/error.h"\n#include "strata/report/page.h"\n',
    "cli/main.cpp": '// Owns main.\n#include "strata/train/run.h"\n',
}


def check(folder, files, names_files=True, targets=TARGETS):
    (folder / "CMakeLists.txt").write_text(targets)
    files = USES | files
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if names_files:
            (folder / pathlib.Path(name).parts[0] / "README.md").write_text(" ".join(pathlib.Path(n).name for n in files))
    run = subprocess.run([ROOT / "tools/check_includes", folder], capture_output=True, text=True)
    return run.returncode, run.stdout.splitlines()


@pytest.mark.parametrize(
    "name, line, complaint",
    [
        ("base/a.h", '#include "strata/hf/b.h"', "base may not include hf"),
        ("cli/a.h", '#include "strata/base/b.h"', "cli may not include base"),
        ("report/a.h", '#include "strata/text/b.h"', "includes unknown folder text"),
        ("report/a.h", '#include "strata/libtorch/b.h"', "report may not include libtorch"),
        ("ops/a.h", "#include <torch/torch.h>", "torch/torch.h is never included"),
        ("hf/a.h", "#include <ATen/core/Tensor.h>", "hf is built without libtorch"),
        ("train/a.cpp", "#include <cuda_runtime.h>", "CUDA headers belong in"),
        ("ops/a.h", "inline void f() { std::cout << 1; }", "never prints or exits"),
        ("train/a.h", "inline void f() { std::exit(1); }", "never prints or exits"),
        ("hf/a.h", 'inline void f() { printf("x"); }', "never prints or exits"),
        ("train/a.cpp", "void f() { at::parallel_for(0, 8, 1, g); }", "serial without OpenMP"),
        ("train/a_cpu.cpp", "#include <ATen/Parallel.h>\nvoid f() { at::parallel_for(0, 8, 1, g); }", "serial without OpenMP"),
        ("wrong/a.h", "", "is no target"),
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
    readmes = {"base/README.md": "error", "report/README.md": "page", "train/README.md": "run"}
    files = {"ops/parts/a.h": "// Owns a.\n", "ops/b.h": "// Owns b.\n", "ops/README.md": "`a.h` and ab"}
    code, lines = check(tmp_path, readmes | files, names_files=False)
    assert code == 1 and len(lines) == 2 and "ops/b.h: no README" in lines[0]


@pytest.mark.parametrize("old, new, complaint", [
    ("strata_library(hf)", "strata_library(hf DEPS strata_base)", "no file of hf includes base"),
    ("DEPS strata_train", "DEPS strata_train strata_later", "cli uses later, which does not stand above it"),
])
def test_dependencies_that_are_wrong_themselves_are_found(tmp_path, old, new, complaint):
    code, lines = check(tmp_path, {}, targets=TARGETS.replace(old, new))
    assert code == 1 and any(complaint in line and "CMakeLists.txt" in line for line in lines)


def test_what_is_allowed_passes(tmp_path):
    files = {
        "base/a.h": "// Owns a.\n#include <string>\n",
        "train/b.h": '// Owns b.\n#include "strata/report/r.h"\n// std::cout in a comment\n',
        "cli/c.cpp": '// Owns c.\n#include "strata/train/b.h"\nvoid f() { std::exit(1); }\n',
        "ops/nccl_group.cpp": "// Owns d.\n#include <nccl.h>\n",
        "base/f.cpp": '// Owns f.\n#include "strata/base/f_and_g.h"\n#include <string>\n#include "strata/base/error.h"\n',
        "train/g.cpp": '// Owns g.\n#include "strata/libtorch/parallel_for.h"\nvoid f() { at::parallel_for(0, 8, 1, g); }\n',
        "ops/h_cpu.cpp": "// Owns h.\n#include <ATen/Parallel.h>\nvoid f() { at::parallel_for(0, 8, 1, g); }\n",
        "hf/e.cpp": '// Owns e.\nconst char* text = "std::exit(1)";\n',
    }
    code, lines = check(tmp_path, files)
    assert code == 0 and lines == ["check_includes: 12 files, 0 breaches"]
