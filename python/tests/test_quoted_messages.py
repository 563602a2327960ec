"""The messages that pages quote are those of the sources.

A quoted message is inline code of at least three words. Some of its words stand for other text:
words in capitals, `…`, numbers, words in quotation marks, types, settings, and names of the page's
programs. All other words must be in one text of the sources, in the same order. A message may also
be made of several texts: at `: ` or `; `, or where one of them has a placeholder.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tidemill.config import ALL

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import messages  # noqa: E402

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if not {"internals", "lab"} & set(path.parts)
)

#: Inline code that is no message: expressions, options and requests.
CODE = re.compile(
    r"[=({]|--|->| [-+*/%&<>|]+ |^[A-Z]{3,} /|^[a-z]+\[|^(del|import) |^key in |^a if "
)

#: The first words of commands, and of statements of Python.
COMMANDS = {"tidemill", "make", "pip", "cargo", "python", "du", "if", "with", "for"}

#: Texts of other programs.
FOREIGN = {"tidemill: command not found"}

#: The parts of a quoted message that stand for other text.
VALUE = "|".join(
    [
        "…",
        r"'[^']*'",
        r'"[^"]*"',
        r'\b\w+\[[\w"]+\]',
        r"\b[A-Z]+s?\b|\b[b-z]\b",
        r"\S*\d\S*",
        r"\S*\w[./*]\w\S*",
        r"\S+/\S*",
        r"\b(?:int|str|float|bool|bytes|timestamp)\b",
        rf"\b(?:{'|'.join(sorted(ALL))})\b",
    ]
)


def quoted(page: str) -> Iterator[tuple[int, str]]:
    """The messages that a page quotes, with their lines."""
    text = re.sub(r"^```.*?^```", lambda at: "\n" * at[0].count("\n"), page, flags=re.M | re.S)
    for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
        code = found[1].replace("\\|", "|")
        words = re.findall(r"(?<![\w.])[A-Za-z']{2,}(?![\w.])", code)
        if len(words) < 3 or CODE.search(code) or code.split()[0] in COMMANDS or code in FOREIGN:
            continue
        yield text[: found.start()].count("\n") + 1, code


def programs(page: str) -> str:
    """The programs of a page in Python."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S))


@cache
def texts() -> list[str]:
    """The texts of the sources, with each placeholder as one character."""
    found = [message.text for path in messages.sources() for message in messages.literals(path)]
    found.append((ROOT / "Makefile").read_text())
    return sorted({re.sub(r"\{[^{}]*\}", "\0", text) for text in found if " " in text})


def pattern(part: str, value: re.Pattern[str]) -> str:
    """The expression that finds a part of a message in a text."""
    pieces = [piece.strip(" ,.:;()'") for piece in value.split(part)]
    return ".*".join(re.escape(piece) for piece in pieces if piece)


def has(expression: str) -> bool:
    """Whether a text of the sources matches."""
    return any(map(re.compile(expression).search, texts()))


def is_in(part: str, value: re.Pattern[str]) -> bool:
    """Whether a part of a message is in one text, or in two of which one is put into the other."""
    if has(pattern(part, value)):
        return True
    words = part.split(" ")
    for at in range(2, len(words) - 1):
        first, second = (pattern(" ".join(half), value) for half in (words[:at], words[at:]))
        if not first or not second:
            continue
        if has(rf"{first}[\W\0]*\0") and has(rf"^[\W\0]*{second}"):
            return True
        if has(rf"{first}[\W\0]*$") and has(rf"\0[\W\0]*{second}"):
            return True
    return False


def missing(page: str) -> list[tuple[int, str]]:
    """The messages of a page that no source has."""
    own = programs(page)
    names = {name for pair in re.findall(r'"(\w+)"|def (\w+)', own) for name in pair if name}
    value = re.compile("|".join([VALUE, *(rf"\b{name}\b" for name in sorted(names))]))
    return [
        (line, message)
        for line, message in quoted(page)
        if not all(part in own or is_in(part, value) for part in re.split(r"[:;] ", message))
    ]


@pytest.mark.parametrize("name", PAGES)
def test_quoted_messages_are_in_the_sources(name: str) -> None:
    found = missing((ROOT / name).read_text())
    assert not found, "\n".join(f"{name}:{line}: {message}" for line, message in found)


@pytest.mark.parametrize(
    "message",
    [
        "table TABLE has no keys",
        "stock x has no value for the column",
        "the data directory was written by an older version",
        "PATH has N bytes: its rows were seen before",
        "function NAME failed at row N of source SOURCE",
    ],
)
def test_a_message_that_no_source_has_is_found(message: str) -> None:
    page = f"A page.\n\nIt says `{message}`, and `PATH has no column 'NAME'`.\n"
    assert missing(page) == [(3, message)]


def test_messages_of_several_texts_are_found() -> None:
    page = "`PATH, line N: the row is not complete: a quote is not closed before the end`"
    assert list(quoted(page)) == [(1, page.strip("`"))]
    assert not missing(page)
