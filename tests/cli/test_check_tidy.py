# Oracle: a small tree under git, and a stand-in for clang-tidy that finds one thing in each source and one in each header
# that the source includes: which sources tools/check_tidy gives it, and what it makes of the findings.
import json
import os
import pathlib
import shutil
import subprocess

import pytest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/check_tidy"
FILES = {
    "base/a.h": "",
    "base/a.cpp": '#include "strata/base/a.h"\n',
    "base/only.h": "",
    "data/b.cpp": '#include "strata/base/a.h"\n#include "strata/base/only.h"\n',
    "ops/gpu_cuda.cpp": "",
}
STAND_IN = r"""#!/usr/bin/env python3
import json, pathlib, re, sys
source = pathlib.Path(sys.argv[-1])
database = json.loads((pathlib.Path(sys.argv[sys.argv.index("-p") + 1]) / "compile_commands.json").read_text())
assert not any("-include" in entry["command"] or "-fpch-preprocess" in entry["command"] for entry in database)
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
    (tmp_path / "tools").mkdir()
    shutil.copy(TOOL, tmp_path / "tools/check_tidy")
    stand_in = tmp_path / "clang-tidy"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    build = tmp_path / "build/release"
    build.mkdir(parents=True)
    entries = []
    for name, text in FILES.items():
        path = tmp_path / "src/strata" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.suffix == ".cpp" and "_cuda" not in name:
            for target in ["src/strata/x.dir", "fuzz/x.dir"]:
                command = f"c++ -fpch-preprocess -Winvalid-pch -include /x/cmake_pch.hxx -o {target}/{name}.o -c {path}"
                entries.append({"directory": str(build), "command": command, "file": str(path)})
    (build / "compile_commands.json").write_text(json.dumps(entries))
    (tmp_path / ".gitignore").write_text("/build/\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "all")
    return tmp_path


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


def test_a_headers_finding_is_told_once(tree):
    code, lines, _ = check(tree, "--all")
    assert code == 1 and lines.count(A_HEADER) == 1
    assert A in lines and B in lines and lines[-1] == "check_tidy: 2 sources, 4 findings"


def test_a_folder_without_findings_passes(tree):
    (tree / "src/strata/base/a.cpp").write_text("// clean\n")
    code, lines, error = check(tree, "src/strata/base/a.cpp", "src/strata/ops")
    assert code == 0 and lines == ["check_tidy: 1 sources, 0 findings"]
    assert "src/strata/ops/gpu_cuda.cpp: left out, the release build does not compile it" in error


def test_what_cannot_be_checked_is_an_error(tree):
    (tree / "src/strata/base/a.cpp").write_text("// broken\n")
    code, lines, _ = check(tree)
    assert code == 1 and "src/strata/base/a.cpp: clang-tidy failed: no such option" in lines
    code, _, error = check(tree, program="nowhere")
    assert code == 1 and "run tools/prepare tidy" in error
    assert "found no such file" in check(tree, "src/strata/nowhere.cpp")[2]
    assert "check_tidy: " in check(tree, "--since", "nowhere")[2]
    (tree / "build/release/compile_commands.json").unlink()
    assert "run cmake --preset release" in check(tree, "--all")[2]
