"""Nothing is swallowed without a word.

Where code drops an error, a comment beside it says why that is harmless.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Code that drops an error, or takes a default for a value that could not be read.
RUST = [
    # But for a parameter that a default method does not use, and text that is written into memory.
    re.compile(r"\blet _ = (?!\(?[a-z_, ]+\)?;)(?!write(ln)?!)"),
    re.compile(r"^(?!.*(=|return)).*\.ok\(\);"),
    re.compile(r"\b(parse|from_str|from_str_radix|from_slice|to_value)\(.*\.unwrap_or"),
    re.compile(r"\b(store|stored_output|apply)\(.*\.(ok\(\)|unwrap_or)"),
]
PYTHON = [
    re.compile(r"\bexcept( \(?(Base)?Exception\b.*)?:"),
    re.compile(r"\bsuppress\("),
]
# Folders that do not ship, or only for measurements and tests.
OTHER = {"tests", "target", "bench", "sim", ".venv"}
# How far above the line its reason may stand.
ABOVE = 6


def sources(pattern: str) -> Iterator[Path]:
    """The files of what ships."""
    for path in sorted(ROOT.glob(pattern)):
        parts = path.relative_to(ROOT).parts
        is_test = OTHER & {*parts} or path.stem in ("tests", "contract", "loom_tests")
        if not is_test:
            yield path


def unexplained(path: Path, patterns: list[re.Pattern[str]], comment: str) -> Iterator[str]:
    """The lines that drop something without a comment on them or just above."""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.strip() == "#[cfg(test)]" and path.suffix == ".rs":
            return
        if line.lstrip().startswith(comment) or not any(p.search(line) for p in patterns):
            continue
        near = lines[max(0, number - ABOVE) : number + 2]
        raises = comment == "#" and any("raise" in text for text in lines[number : number + 5])
        if not raises and not any(comment in text for text in near):
            yield f"{path.relative_to(ROOT)}:{number + 1}: {line.strip()}"


def test_rust_drops_no_error_without_a_reason() -> None:
    found = [line for path in sources("*/src/**/*.rs") for line in unexplained(path, RUST, "//")]
    assert not found, "\n".join(found)


def test_python_catches_nothing_without_a_reason() -> None:
    found = [
        line
        for path in sources("python/tidemill/**/*.py")
        for line in unexplained(path, PYTHON, "#")
    ]
    assert not found, "\n".join(found)
