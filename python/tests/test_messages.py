"""`tools/messages.py` lists the texts of errors with their places."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import messages  # noqa: E402

RUST = r"""
/// A "comment" is no text.
fn check<'a>(name: &'a str) -> Result<()> {
    let quote = '"';
    if name.is_empty() {
        return Err(Error::input(format!("a name is \"empty\"")).help("give one that \
            has letters"));
    }
    assert!(name.len() < 9, "developers read this text");
    Err(Error::new(Kind::Io, r#"reading "raw" {name}"#)) // not "this" one
}

#[cfg(test)]
mod tests {
    const TEXT: &str = "a text of a test";
}
"""

PYTHON = '''
"""A docstring of a module."""

def check(name):
    """A docstring of a function."""
    if not name:
        raise SettingError(f"{name!r} is " f"no name of {len(name)}", "give one")
    assert name, "developers read this text"
    return "a line of the output"
'''


def listed(path: Path, text: str) -> list[tuple[int, str, str]]:
    path.write_text(text)
    found = [one for one in messages.literals(path) if messages.is_listed(one, False)]
    return [(one.line, one.kind, one.text) for one in found]


def test_texts_of_rust_have_kinds_and_lines(tmp_path: Path) -> None:
    assert listed(tmp_path / "check.rs", RUST) == [
        (6, "input", 'a name is "empty"'),
        (6, "help", "give one that has letters"),
        (10, "error", 'reading "raw" {name}'),
    ]


def test_texts_of_python_have_kinds_and_lines(tmp_path: Path) -> None:
    assert listed(tmp_path / "check.py", PYTHON) == [
        (7, "SettingError", "{name} is no name of {len(name)}"),
        (7, "help", "give one"),
        (9, "text", "a line of the output"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["core"], "core/src/schema.rs:"),
        (["--errors", "python/tidemill/types.py"], "ProgramError: a list needs the type of its"),
    ],
)
def test_the_command_lists_a_folder(arguments: list[str], said: str) -> None:
    command = [sys.executable, ROOT / "tools/messages.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said in done.stdout
    assert "engine/src" not in done.stdout


def test_an_unknown_path_is_refused() -> None:
    command = [sys.executable, ROOT / "tools/messages.py", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "name a folder or file of the project" in done.stderr
