"""Checks the prose of the project: pages, comments and messages. `make lint` runs it.

Pages are checked for the length of sentences and lines, for turns and openings that the style
refuses, and for links that lead nowhere. Cells of tables are checked like sentences. Comments and
texts of code, docstrings, and comments of build files and configurations are checked for turns and
openings. The last commit's subject may not be too long. The rules are in `tools/prose.toml`, the
reasons in CONTRIBUTING.md.

    python tools/prose.py                 # everything; exits with 1 where something is found
    python tools/prose.py --figures       # words and sentences of each page, as a table
    python tools/prose.py README.md       # these files alone, pending or not
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RULES = tomllib.loads((ROOT / "tools/prose.toml").read_text())
LIMITS = RULES["limits"]

#: Files with comments: code, and the files that build and configure it.
CODE = ("*.rs", "*.py")
CONFIGURATION = (
    "*.toml",
    "*.sh",
    "*.yml",
    "*.yaml",
    "*Makefile",
    "*Dockerfile",
    ".ci/*",
    ".*ignore",
)


@dataclass(frozen=True)
class Found:
    """Something to mend."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Sentence:
    """A sentence and the line that it begins in."""

    line: int
    text: str

    @property
    def words(self) -> int:
        """How many words it has."""
        return len(re.findall(r"[^\W_][\w'.,/-]*", self.text))


def tracked(*patterns: str) -> list[Path]:
    """The project's files of these patterns."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).exists()]


# -- text


def paragraphs(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The paragraphs and list items of a page, each with its first line.

    Code, tables and headings are left out.
    """
    fence: str | None = None
    begun = 0
    held: list[str] = []
    for number, line in enumerate([*lines, ""], 1):
        text = line.strip()
        if fence is not None:
            fence = None if text.startswith(fence) and not text.strip("`~:") else fence
            continue
        opening = re.match(r"(`{3,}|~{3,}|:{3,})", text)
        is_apart = not text or text.startswith(("|", "#", "<!--", "---")) or opening is not None
        is_item = re.match(r"([-*+]|\d+[.)]) ", text) is not None
        if held and (is_apart or is_item):
            yield begun, " ".join(held)
            held = []
        if opening is not None and not text.startswith(":::"):
            fence = opening[1]
        if is_apart:
            continue
        if not held:
            begun = number
        held.append(re.sub(r"^([-*+]|\d+[.)]|>) +", "", text))


def cells(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The cells of a page's tables, each with its line."""
    fence: str | None = None
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if opening := re.match(r"(`{3,}|~{3,})", text):
            fence = None if fence and text.startswith(fence) else fence or opening[1]
        elif fence is None and text.startswith("|"):
            # A bar in code, or an escaped one, is part of a cell.
            text = re.sub(r"`[^`]*`", lambda code: code[0].replace("|", " "), text)
            yield from ((number, cell.strip()) for cell in re.split(r"(?<!\\)\|", text.strip("|")))


def subjects() -> Iterator[Found]:
    """The last commit's subject, if it is too long. An archive of the sources has no commits."""
    command = ["git", "log", "-1", "--format=%s"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    subject = done.stdout.strip()
    if done.returncode == 0 and len(subject) > LIMITS["subject"]:
        what = f"the last commit's subject has {len(subject)} characters, over {LIMITS['subject']}"
        yield Found(ROOT / ".git", 1, what)


ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|No|Fig|approx)\.$")


def sentences(text: str, line: int) -> Iterator[Sentence]:
    """The sentences of a paragraph; code counts as one word."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`+[^`]*`+", "code", text)
    text = re.sub(r"[*_]{1,2}(\S.*?\S|\S)[*_]{1,2}", r"\1", text)
    begun = 0
    for end in re.finditer(r"[.!?][\"')\]]*(?=\s+[\"'(\[]*[^\Wa-z_]|\s*$)", text):
        part = text[begun : end.end()]
        if ABBREVIATIONS.search(part) and end.end() < len(text):
            continue
        yield Sentence(line, part.strip())
        begun = end.end()
    if rest := text[begun:].strip():
        yield Sentence(line, rest)


def turns(text: str) -> Iterator[str]:
    """The refused turns of a text, each with its replacement."""
    for pattern, instead in RULES["terms"].items():
        if found := re.search(pattern, text, re.IGNORECASE):
            yield f"“{found[0]}”: {instead}"


def openings(sentence: str) -> Iterator[str]:
    """The refused opening of a sentence, with its replacement."""
    for pattern, instead in RULES["openings"].items():
        if re.match(pattern, sentence):
            yield f"begins with “{' '.join(sentence.split()[:3])}”: {instead}"


# -- pages


def headings(path: Path) -> set[str]:
    """The anchors of a page, as GitHub and MyST make them."""
    text = re.sub(r"^(```+|~~~+).*?^\1", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))
    for title in re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found


def links(path: Path) -> Iterator[Found]:
    """Links to files and headings that are not there."""
    code = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)
    text = code.sub(lambda found: "\n" * found[0].count("\n"), path.read_text())
    for found in re.finditer(r"\]\(([^)\s]+)\)", text):
        target = found[1]
        if re.match(r"[a-z]+:", target) or target.startswith("/"):
            continue
        name, _, anchor = target.partition("#")
        to = (path.parent / name).resolve() if name else path
        line = text[: found.start()].count("\n") + 1
        if not to.exists():
            yield Found(path, line, f"the link {target} leads nowhere")
        elif anchor and to.suffix == ".md" and anchor not in headings(to):
            yield Found(path, line, f"{name or path.name} has no heading #{anchor}")


def page(path: Path) -> Iterator[Found]:
    """The findings on a page."""
    name = str(path.relative_to(ROOT))
    lines = path.read_text().splitlines()
    counts = []
    in_code = False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith(("```", "~~~")):
            in_code = not in_code
        is_free = in_code or line.lstrip().startswith(("|", "#", "<", "[")) or "](" in line
        if len(line) > LIMITS["line"] and not is_free:
            yield Found(path, number, f"a line of {len(line)} characters, over {LIMITS['line']}")
    for number, text in paragraphs(lines):
        for sentence in sentences(text, number):
            counts.append(sentence.words)
            if sentence.words > LIMITS["longest"]:
                begin = " ".join(sentence.text.split()[:6])
                yield Found(path, number, f"a sentence of {sentence.words} words: “{begin} …”")
            for what in [*openings(sentence.text), *turns(sentence.text)]:
                yield Found(path, number, what)
    # The table of terms has the refused ones, and tables of lab notes have words of data.
    is_apart = name == "CONTRIBUTING.md" or "lab" in path.parts
    for number, text in cells(lines):
        for sentence in sentences(text, number):
            if sentence.words > LIMITS["longest"]:
                begin = " ".join(sentence.text.split()[:6])
                yield Found(path, number, f"a sentence of {sentence.words} words: “{begin} …”")
            for what in turns(sentence.text) if not is_apart else ():
                yield Found(path, number, what)
    mean = sum(counts) / max(len(counts), 1)
    if mean > LIMITS["mean"]:
        yield Found(path, 1, f"{mean:.1f} words a sentence, over {LIMITS['mean']}")
    is_guide = name.startswith("docs/")
    is_guide = is_guide and not {"internals", "lab", "reference"} & set(path.parts)
    if is_guide and len(lines) > LIMITS["page"]:
        yield Found(path, 1, f"{len(lines)} lines, over {LIMITS['page']}")
    if (most := RULES["words"].get(name)) and (words := sum(counts)) > most:
        yield Found(path, 1, f"{words} words, over {most}")


# -- comments and messages


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """The comments, docstrings and longer texts of a file, by paragraph."""
    is_rust, is_python = path.suffix == ".rs", path.suffix == ".py"
    marks = r"\s*(?://[/!]?) ?(.*)" if is_rust else r"\s*# ?(.*)"
    held: list[str] = []
    begun = 0
    lines = path.read_text().splitlines()
    for number, line in enumerate([*lines, ""], 1):
        found = re.fullmatch(marks, line)
        if found and found[1].strip():
            if not held:
                begun = number
            held.append(found[1].strip())
        elif held:
            yield begun, " ".join(held)
            held = []
        if not found:
            for text in re.finditer(r'"((?:[^"\\]|\\.)*)"', line):
                if len(text[1].split()) > 2:
                    yield number, text[1]
            if not is_rust and (
                after := re.fullmatch(r"[^#\"']*(?:\"[^\"]*\"[^#\"']*)*\s# (.+)", line)
            ):
                yield number, after[1]
    if is_python:
        whole = path.read_text()
        for string in re.finditer(r'"""(.*?)"""', whole, re.DOTALL):
            first = whole[: string.start()].count("\n") + 1
            for number, part in paragraphs(string[1].splitlines()):
                if not part.startswith((">>>", "...")):
                    yield first + number - 1, part


def code(path: Path) -> Iterator[Found]:
    """The findings in comments and messages of a file."""
    for number, text in comments(path):
        for sentence in sentences(text, number):
            for what in [*openings(sentence.text), *turns(sentence.text)]:
                yield Found(path, number, what)


# -- what is run


def is_pending(path: Path, kind: str) -> bool:
    """Whether a file is still to be rewritten."""
    name = str(path.relative_to(ROOT))
    return any(name == of or name.startswith(of.rstrip("/") + "/") for of in RULES["pending"][kind])


def figures(paths: list[Path]) -> None:
    """Prints the words of pages and of their sentences."""
    print(f"{'page':44} {'lines':>6} {'words':>6} {'mean':>6} {'longest':>8}")
    for path in paths:
        lines = path.read_text().splitlines()
        found = [s for number, text in paragraphs(lines) for s in sentences(text, number)]
        counts = [sentence.words for sentence in found] or [0]
        mean = sum(counts) / len(counts)
        name = path.relative_to(ROOT)
        print(f"{name!s:44} {len(lines):6} {sum(counts):6} {mean:6.1f} {max(counts):8}")


def main() -> int:
    """Checks what the arguments say; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", help="files, else all that are not pending")
    parser.add_argument("--figures", action="store_true", help="print words and sentences by page")
    given = parser.parse_args()
    named = [Path(path).resolve() for path in given.paths]
    pages = [path for path in named if path.suffix == ".md"] if named else tracked("*.md")
    pages = [path for path in pages if "corpus" not in path.parts or named]
    if given.figures:
        figures(pages)
        return 0
    sources = [path for path in named if any(map(path.match, (*CODE, *CONFIGURATION)))]
    if not named:
        sources = tracked(*CODE, *CONFIGURATION)
    found: list[Found] = [] if named else list(subjects())
    for path in pages:
        found.extend(links(path))
        if named or not is_pending(path, "pages"):
            found.extend(page(path))
    for path in sources:
        if named or not is_pending(path, "comments"):
            found.extend(code(path))
    found = list(dict.fromkeys(found))
    for one in found:
        print(one)
    if found:
        print(f"{len(found)} places to mend; CONTRIBUTING.md says why", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
