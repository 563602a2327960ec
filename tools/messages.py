"""Lists the texts of errors and other messages, with file and line, to review their wording.

    python tools/messages.py                   # all of them
    python tools/messages.py engine kafka      # those of these folders and files
    python tools/messages.py --errors          # texts of errors alone, with their remedies

A line has the place, the kind and the text. The kind is that of the error (`input`, `InputError`),
`help` for a remedy, or `text` for any other literal with at least three words. Such a text becomes
part of an error elsewhere, or is an abort's reason, or a line of a command's output. Placeholders
are in braces. Tests, benchmarks and simulations are left out.

A reason of an abort or of a bad row is part of the hashes of outputs, so its words never change.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

#: Files whose texts no user reads.
LEFT_OUT = re.compile(
    r"(^|/)(tests?|bench|sim|fuzz|fixture|simulated|workloads)(/|\.rs$)|^servers/|_test\.rs$"
)

#: The least number of words of a literal that is listed without being part of an error.
WORDS_MIN = 3

#: Macros whose texts only developers read.
INTERNAL = {"assert", "assert_eq", "assert_ne", "debug_assert", "debug_assert_eq", "expect"}
INTERNAL |= {"unreachable", "panic", "cfg", "feature", "doc", "todo", "query_row"}

RUST = re.compile(
    r"""//[^\n]*                                        # a comment
    | /\*.*?\*/
    | b?r(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)       # a raw text
    | b?"(?P<text>(?:[^"\\]|\\.)*)"
    | b?'(?:[^'\\]|\\(?:u\{[^}]*\}|x..|.))'             # a character, and no lifetime
    | (?P<call>[A-Za-z_][\w:]*)\s*!?\s*(?=\()           # what the next bracket calls
    | (?P<open>[(\[{]) | (?P<close>[)\]}])
    """,
    re.DOTALL | re.VERBOSE,
)

#: A line break in a text, which continues at the next visible character.
CONTINUED = re.compile(r"\\\n\s*")

KIND = re.compile(r"(?:^|::)Error::(program|setting|input|resource|io|internal|new)$")


class Message(NamedTuple):
    """A text, with the line that it begins in."""

    path: Path
    line: int
    #: The kind of the error, `help`, or `text`.
    kind: str
    text: str

    def __str__(self) -> str:
        text = self.text.replace("\n", "\\n")
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.kind}: {text}"


def unescaped(text: str) -> str:
    """A literal of Rust as the program sees it, as far as messages need this."""
    text = CONTINUED.sub("", text)
    return text.replace('\\"', '"').replace("\\'", "'").replace("\\n", "\n").replace("\\\\", "\\")


def rust(path: Path) -> Iterator[Message]:
    """The literals of a file of Rust, without those of its unit tests."""
    code = path.read_text()
    tests = re.search(
        r"^#\[cfg\((?:all\()?test\b.*\]\n(?:#\[.*\]\n)*mod \w+ \{", code, re.MULTILINE
    )
    code = code[: tests.start()] if tests else code
    calls: list[str] = []
    called = ""
    for found in RUST.finditer(code):
        if found["call"]:
            called = found["call"]
            continue
        if found["open"]:
            calls.append(called if found["open"] == "(" else "")
        elif found["close"] and calls:
            calls.pop()
        elif found["text"] is not None or found["raw"] is not None:
            text = unescaped(found["text"]) if found["raw"] is None else found["raw"]
            yield Message(path, code.count("\n", 0, found.start()) + 1, of(calls), text)
        called = ""


def of(calls: list[str]) -> str:
    """The kind of a literal, by the calls that it is an argument of."""
    for call in reversed(calls):
        name = call.rpartition("::")[2]
        if name in INTERNAL:
            return "internal text"
        if name in ("help", "refuse"):
            return "help" if name == "help" else "refusal"
        if kind := KIND.search(call):
            return "error" if kind[1] == "new" else kind[1]
        if call.startswith("Refusal::"):
            return "refusal"
    return "text"


def literal(node: ast.AST) -> str | None:
    """The text of a literal of Python, with placeholders in braces; None for other nodes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (
            str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
            for part in node.values
            if isinstance(part, ast.Constant | ast.FormattedValue)
        )
        return "".join(parts)
    return None


def python(path: Path) -> Iterator[Message]:
    """The literals of a file of Python, without docstrings."""
    yield from walk(path, ast.parse(path.read_text()), "text")


def walk(path: Path, node: ast.AST, kind: str) -> Iterator[Message]:
    """The literals of a part of a file, in the order of lines."""
    text = literal(node)
    if text is not None:
        yield Message(path, getattr(node, "lineno", 0), kind, text)
        return
    body = getattr(node, "body", None)
    docstring = body[0] if isinstance(body, list) and body else None
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func).rpartition(".")[2]
        if called.endswith("Error") or called in ("Untraceable", "Abort", "NotTraced"):
            for index, argument in enumerate(node.args):
                yield from walk(path, argument, "help" if index == 1 else called)
            return
    if isinstance(node, ast.Assert):
        return
    for child in ast.iter_child_nodes(node):
        is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if not (is_docstring and (child is docstring or isinstance(node, ast.ClassDef))):
            yield from walk(path, child, kind)


def sources() -> list[Path]:
    """The files whose texts users may read."""
    listed = subprocess.run(
        ["git", "ls-files", "*.rs", "python/tidemill/*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split() if not LEFT_OUT.search(name)]


def literals(path: Path) -> Iterator[Message]:
    """All literals of a file, whatever their length."""
    return python(path) if path.suffix == ".py" else rust(path)


def is_listed(message: Message, only_errors: bool) -> bool:
    """Whether a literal is a message."""
    if message.kind == "internal text":
        return False
    if message.kind != "text":
        return bool(re.search(r"[A-Za-z]{2}", message.text))
    words = [word for word in message.text.split() if re.fullmatch(r"['(]?[A-Za-z]{2,}\W*", word)]
    return not only_errors and len(words) >= WORDS_MIN


def main() -> int:
    """Prints the messages; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", help="the folders or files to list; the default is all")
    parser.add_argument("--errors", action="store_true", help="list texts of errors only")
    given = parser.parse_args()
    wanted = [(ROOT / name).resolve() for name in given.paths]
    for path in wanted:
        if not path.exists():
            print(f"there is no {path}: name a folder or file of the project", file=sys.stderr)
            return 1
    for path in sources():
        if wanted and not any(path.is_relative_to(one) for one in wanted):
            continue
        for message in literals(path):
            if is_listed(message, given.errors):
                print(message)
    return 0


if __name__ == "__main__":
    sys.exit(main())
