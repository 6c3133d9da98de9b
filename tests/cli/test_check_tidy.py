# Oracle: a small tree under git, and a stand-in for clang-tidy that finds one thing in each source and one in each header
# that the source includes: which sources tools/check_tidy gives it, and what it makes of the findings.
import json
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = {
    "base/a.h": "",
    "base/a.cpp": '#include "strata/base/a.h"\n',
    "base/only.h": '#include "strata/base/inner.h"\n',
    "base/inner.h": "",
    "data/b.cpp": '#include "strata/base/a.h"\n#include "strata/base/only.h"\n',
    "ops/gpu_cuda.cpp": '#include "strata/ops/gpu_only.h"\n',
    "ops/gpu_only.h": "",
    "data/read_absent.cpp": "",
}
STAND_IN = r"""#!/usr/bin/env python3
import json, pathlib, re, sys
source = pathlib.Path(sys.argv[-1])
database = json.loads((pathlib.Path(sys.argv[sys.argv.index("-p") + 1]) / "compile_commands.json").read_text())
assert not any("pch" in entry["command"] for entry in database)
text = source.read_text()
if "broken" in text:
    sys.exit("no such option")
if "clean" not in text:
    print(f"{source.resolve()}:1:1: warning: found in {source} [a-check]\n  1 | the line\n    | ^")
for header in re.findall(r'"(strata/[^"]+)"', text):
    print(f"{pathlib.Path('src', header).resolve()}:2:3: warning: found in {header} [b-check]")
"""


@pytest.fixture
def tree(tmp_path):
    tree = tmp_path / "a checkout"
    build = tree / "build/release"
    for folder in [build, tree / "tools"]:
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "tools/check_tidy", tree / "tools")
    write_program(tree / "clang-tidy", STAND_IN)
    entries = []
    for name, text in FILES.items():
        path = tree / "src/strata" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.suffix == ".cpp" and not path.stem.endswith(("_cuda", "_absent")):
            for target in ["src/strata/x.dir", "fuzz/x.dir"]:
                pch = f'-fpch-preprocess -Winvalid-pch -include "{build}/cmake_pch.hxx"'
                command = f'c++ {pch} -o {target}/{name}.o -c "{path}"'
                entries.append({"directory": str(build), "command": command, "file": str(path)})
    (build / "compile_commands.json").write_text(json.dumps(entries))
    (tree / ".gitignore").write_text("/build/\n")
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "all")
    return tree


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def git(tree, *words):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tree, check=True)


def check(tree, *words, program="clang-tidy"):
    environment = os.environ | {"CLANG_TIDY": str(tree / program)}
    run = subprocess.run([tree / "tools/check_tidy", *words], cwd=tree, env=environment, capture_output=True, text=True)
    return run.returncode, run.stdout.splitlines(), run.stderr


A = "src/strata/base/a.cpp:1:1: warning: found in src/strata/base/a.cpp [a-check]"
A_HEADER = "src/strata/base/a.h:2:3: warning: found in strata/base/a.h [b-check]"
B = "src/strata/data/b.cpp:1:1: warning: found in src/strata/data/b.cpp [a-check]"


def test_what_differs_from_the_last_commit_is_checked(tree):
    assert check(tree) == (0, ["check_tidy: 0 sources, 0 findings"], "")
    (tree / "src/strata/base/a.cpp").write_text('#include "strata/base/a.h"\nint a;\n')
    code, lines, _ = check(tree)
    assert code == 1
    assert lines == [A, "  1 | the line", "    | ^", A_HEADER, "check_tidy: 1 sources, 2 findings"]
    git(tree, "commit", "-q", "-a", "-m", "a")
    assert check(tree)[0] == 0
    assert A in check(tree, "--since", "HEAD~1")[1]


def test_a_header_is_checked_by_a_source_that_includes_it(tree):
    (tree / "src/strata/base/only.h").write_text("int only;\n")
    assert B in check(tree)[1] and A not in check(tree)[1]
    assert A in check(tree, "src/strata/base/a.h")[1]


def test_a_header_is_checked_by_a_source_that_includes_it_by_another_header(tree):
    (tree / "src/strata/base/inner.h").write_text("int inner;\n")
    code, lines, error = check(tree)
    assert code == 1 and error == "" and B in lines and lines[-1].startswith("check_tidy: 1 sources")


def test_a_headers_finding_is_told_once(tree):
    code, lines, _ = check(tree, "--all")
    assert code == 1 and lines.count(A_HEADER) == 1
    assert A in lines and B in lines and lines[-1] == "check_tidy: 2 sources, 4 findings"


def test_a_folder_without_findings_passes(tree):
    (tree / "src/strata/base/a.cpp").write_text("// clean\n")
    code, lines, error = check(tree, "src/strata/base/a.cpp", "src/strata/ops", "src/strata/data/read_absent.cpp")
    assert code == 0 and lines == ["check_tidy: 1 sources, 0 findings"]
    left_out = ["ops/gpu_cuda.cpp", "ops/gpu_only.h", "data/read_absent.cpp"]
    reason = "left out, it is no source of the release build and none includes it"
    assert error.splitlines() == [f"check_tidy: src/strata/{file}: {reason}" for file in left_out]


@pytest.mark.parametrize("name", ["new.cpp", "ä.cpp"])
def test_a_source_that_the_build_does_not_know_is_an_error(tree, name):
    for source in ["base/a.cpp", "data/b.cpp"]:
        (tree / "src/strata" / source).write_text("// clean\n")
    git(tree, "commit", "-q", "-a", "-m", "clean")
    (tree / "src/strata/base" / name).write_text("")
    for words in [[], ["--all"], [f"src/strata/base/{name}"]]:
        code, _, error = check(tree, *words)
        assert code == 1 and f"check_tidy: src/strata/base/{name}: found no command that compiles it" in error


def test_a_source_that_is_deleted_is_not_checked(tree):
    (tree / "src/strata/base/a.cpp").unlink()
    code, lines, _ = check(tree, "--all")
    assert code == 1 and B in lines and lines[-1].startswith("check_tidy: 1 sources")


def test_what_is_no_source_of_the_library_is_an_error(tree):
    (tree / "tests").mkdir()
    for name in ["../outside.cpp", "src/strata/ops/kernel.cu"]:
        (tree / name).write_text("")
    for name in ["tests", "../outside.cpp", "src/strata/ops/kernel.cu"]:
        code, lines, error = check(tree, name)
        assert (code, lines) == (1, []) and f"{name}: found what is not checked, expected a .h, a .cpp or" in error


def test_make_tidy_configures_for_a_new_source(tree):
    for name in ["Makefile", "tools/compile"]:
        shutil.copy(ROOT / name, tree / name)
    write_program(tree / "tools/prepare", "#!/bin/sh\n")
    (tree / "build/release/compile_commands.json").unlink()
    settings = {"CMAKE_EXPORT_COMPILE_COMMANDS": "ON", "CMAKE_CXX_COMPILER_WORKS": "ON"}
    preset = {"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build/release", "cacheVariables": settings}
    (tree / "CMakePresets.json").write_text(json.dumps({"version": 6, "configurePresets": [preset]}))
    project = "cmake_minimum_required(VERSION 3.25)\nproject(x LANGUAGES CXX)\nadd_subdirectory(src/strata)\n"
    (tree / "CMakeLists.txt").write_text(project)
    library = "file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cpp)\nadd_library(x STATIC ${sources})\n"
    (tree / "src/strata/CMakeLists.txt").write_text(library)
    environment = os.environ | {"CLANG_TIDY": str(tree / "clang-tidy"), "JOBS": "1"}
    for changed, count in [(None, 0), ("new.cpp", 1)]:
        if changed:
            (tree / "src/strata/base" / changed).write_text("// clean\n")
        run = subprocess.run(["make", "-s", "tidy"], cwd=tree, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
        assert run.stdout.splitlines()[-1] == f"check_tidy: {count} sources, 0 findings"
    assert not list(tree.glob("build/release/**/new.cpp.o"))  # configured, nothing compiled


def test_what_cannot_be_checked_is_an_error(tree):
    (tree / "src/strata/base/a.cpp").write_text("// broken\n")
    code, lines, _ = check(tree)
    assert code == 1 and "src/strata/base/a.cpp: clang-tidy failed: no such option" in lines
    code, _, error = check(tree, program="nowhere")
    assert code == 1 and "run tools/prepare tidy" in error
    assert "found no such file" in check(tree, "src/strata/nowhere.cpp")[2]
    assert "check_tidy: " in check(tree, "--since", "nowhere")[2]
    (tree / "build/release/compile_commands.json").unlink()
    assert "run tools/compile build.ninja" in check(tree, "--all")[2]
