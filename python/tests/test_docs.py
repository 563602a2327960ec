"""The pages run: each block of Python and each command that a user would copy.

Blocks of a page run in order, in one empty folder. A comment before a block says more:

- `<!-- file: app.py -->`: the block is written into this file, and commands run it;
- `<!-- output -->`: the block is what the block before has printed;
- `<!-- not run: REASON -->`: the block needs what a test has not, such as a broker.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidemill.cli import parser

ROOT = Path(__file__).parents[2]

#: The pages for users; pages about internals and experiments are for readers of the sources.
PAGES = [
    "README.md",
    "python/README.md",
    "bench/python/README.md",
    *sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "docs").rglob("*.md")
        if not {"internals", "lab"} & set(path.parts)
    ),
]


@dataclass(frozen=True)
class Block:
    """A block of a page."""

    line: int
    language: str
    code: str
    #: The comment before it: `file`, `output` or `not run`, and what it says.
    mark: str
    value: str


def blocks(name: str) -> Iterator[Block]:
    """The blocks of a page."""
    text = (ROOT / name).read_text()
    pattern = re.compile(
        r"(?:^<!-- (file|output|not run):? ?(.*?) ?-->\n+)?^( *)```(\w*)\n(.*?)^\3```$",
        re.MULTILINE | re.DOTALL,
    )
    for found in pattern.finditer(text):
        line = text[: found.start(5)].count("\n") + 1
        code = re.sub(rf"^{found[3]}", "", found[5], flags=re.MULTILINE)
        yield Block(line, found[4], code, found[1] or "", found[2] or "")


def run(command: str, folder: Path) -> str:
    """The output of a command of a page; it must succeed."""
    bin = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{bin}:{os.environ['PATH']}", "COLUMNS": "100"}
    ended = subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    printed = ""
    for block in blocks(name):
        at = f"{name}:{block.line}"
        if block.mark == "not run":
            assert len(block.value) > 8, f"{at}: say why it is not run"
        elif block.mark == "output":
            assert printed.strip() == block.code.strip(), at
        elif block.mark == "file":
            path = tmp_path / block.value
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code)
        elif block.language == "python":
            # A traced function's source is looked up by its file, so the block becomes one.
            path = tmp_path / f"{Path(name).stem}_{block.line}.py"
            path.write_text(block.code)
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.code, str(path), "exec"), namespace)
            printed = out.getvalue()
        elif block.language in ("sh", "bash"):
            printed = run(block.code, tmp_path)


#: All pages with commands, also those whose blocks do not run.
TRACKED = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()


def commands(code: str) -> Iterator[list[str]]:
    """The words of each command of a block of a shell, with its variables put in."""
    variables: dict[str, str] = {}
    for line in code.replace("\\\n", " ").splitlines():
        line = re.sub(r"\$(\w+)", lambda found: variables.get(found[1], found[0]), line)
        # Placeholders for numbers, further arguments, and redirections.
        line = re.sub(r"(?<=[ =])[A-Z](?= |$)", "1", line)
        line = re.sub(r" (…|\.\.\.|2>&1)(?= |$)", "", line)
        words = shlex.split(line, comments=True)
        if words and (found := re.fullmatch(r"(\w+)=(.*)", words[0])):
            variables[found[1]] = found[2]
            words = words[1:]
        while words:
            end = next(
                (n for n, word in enumerate(words) if word in ("|", "||", "&&", "&", ">", ";")),
                None,
            )
            yield words[:end]
            words = words[end + 1 :] if end is not None and words[end] != ">" else []


@pytest.mark.parametrize("name", TRACKED)
def test_each_command_of_a_page_exists(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for block in blocks(name):
        if block.language not in ("sh", "bash"):
            continue
        for words in commands(block.code):
            at = f"{name}:{block.line}: {' '.join(words)}"
            if words[0] == "tidemill" and not {"--help", "--version"} & set(words):
                try:
                    _, left = parser().parse_known_args(words[1:])
                except SystemExit:
                    pytest.fail(f"{at}: {capsys.readouterr().err}")
                assert not left, at
            elif words[0] == "make":
                named = [word for word in words[1:] if "=" not in word and word[0] != "-"]
                assert set(named) <= set(targets), at
            elif words[0] == "python" and words[1].endswith(".py") and "/" in words[1]:
                assert (ROOT / words[1]).exists(), at


@pytest.mark.parametrize("name", ["python/README.md", "bench/python/README.md"])
def test_links_of_a_package_work_where_the_package_index_shows_them(name: str) -> None:
    project = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
    repository = project["urls"]["Repository"]
    targets = re.findall(r"\]\(([^)\s]+)\)", (ROOT / name).read_text())
    assert targets
    for target in targets:
        path, _, anchor = target.removeprefix(f"{repository}/blob/main/").partition("#")
        assert target == repository or (path != target and (ROOT / path).is_file()), target
        assert not anchor, "tools/prose.py does not check it"


def test_the_demo_is_what_the_readme_says(tmp_path: Path) -> None:
    said = re.search(
        r"<!-- demo -->\n+```text\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S
    )
    assert said
    ended = subprocess.run(
        [sys.executable, "-m", "tidemill.cli", "run", str(ROOT / "python/tidemill/demo/ledger.py")]
        + ["--fresh", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = json.loads(ended.stdout.splitlines()[-1])
    for line in said[1].splitlines():
        name, value = line.split()
        assert str(found[name]) == value.replace(",", ""), name
    assert found["events"] == 49_113
    assert found["refused"] == 5
    assert found["dead"] == 7
    assert re.fullmatch("[0-9a-f]{32}", found["state_hash"])
    assert re.fullmatch("[0-9a-f]{32}", found["output_hash"])
    assert (tmp_path / "out/ledger/posted.csv").stat().st_size > 1_000_000
