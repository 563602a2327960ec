"""Writes the licences of all software in the libraries of the wheels.

    python tools/notices.py            # writes THIRD-PARTY.txt into the folder of each package

`make wheel` runs this, and each wheel contains the file. It lists every crate that a library is
linked from, with the licence files of the crate and of the C sources in it. Each text is there
once. A crate that links C sources which this file does not know is refused.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NAME = "THIRD-PARTY.txt"
#: The manifest of each library, and the folder of its package.
LIBRARIES = {"python/extension/Cargo.toml": "python", "bench/python/Cargo.toml": "bench/python"}
#: The targets of the wheels. Crates for other systems are not in them.
TARGETS = ("x86_64-unknown-linux-gnu", "x86_64-unknown-linux-musl", "aarch64-unknown-linux-gnu")
#: The features of the wheels.
FEATURES = "kafka-tls-vendored"

#: Names of files with licences and notices.
FILES = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)
#: The C sources in crates: name, licence, and the files with its text.
SOURCES = {
    "libmimalloc-sys": ("mimalloc", "MIT", "c_src/mimalloc/*/LICENSE"),
    "openssl-src": ("OpenSSL", "Apache-2.0", "openssl/LICENSE.txt"),
    "rdkafka-sys": ("librdkafka", "BSD-2-Clause and others", "librdkafka/LICENSES.txt"),
    "zstd-sys": ("zstd", "BSD-3-Clause", "zstd/LICENSE"),
}
#: Crates that link with C in other ways: to Python itself, to the sources of another crate, or with
#: sources under the crate's own licence.
KNOWN = {"openssl-sys", "pyo3", "pyo3-ffi", "ring"}

APACHE = "Apache-2.0"
MIT = """Permission is hereby granted, free of charge, to any person obtaining a copy of this
software and associated documentation files (the "Software"), to deal in the Software
without restriction, including without limitation the rights to use, copy, modify, merge,
publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons
to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or
substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED,
INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR
PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE
FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER
DEALINGS IN THE SOFTWARE.
"""


class MissingError(Exception):
    """A licence that was not found."""


@dataclass(frozen=True)
class Part:
    """A crate, or other software, with its licence."""

    name: str
    licence: str
    address: str
    texts: tuple[str, ...]


def metadata(manifest: str, target: str) -> dict[str, Any]:
    """The packages that a library may be linked from, as cargo has resolved them."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--manifest-path"]
    command += [str(ROOT / manifest), "--features", FEATURES, "--filter-platform", target]
    done = subprocess.run(command, capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def linked(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The packages from elsewhere whose code is in the library.

    Packages for the build alone are left out, except for those that only have C sources.
    """
    packages = {package["id"]: package for package in found["packages"]}
    edges = {node["id"]: node["deps"] for node in found["resolve"]["nodes"]}
    reached: dict[str, dict[str, Any]] = {}
    todo: list[str] = [found["resolve"]["root"]]
    while todo:
        package = packages[todo.pop()]
        is_macro = any("proc-macro" in target["kind"] for target in package["targets"])
        if package["id"] in reached or is_macro:
            continue
        reached[package["id"]] = package
        for edge in edges[package["id"]]:
            is_linked = any(kind["kind"] is None for kind in edge["dep_kinds"])
            if is_linked or packages[edge["pkg"]]["name"] in SOURCES:
                todo.append(edge["pkg"])
    return [package for package in reached.values() if package["source"]]


def files(package: dict[str, Any]) -> list[str]:
    """The texts of a crate's licence files."""
    folder = Path(package["manifest_path"]).parent
    found = [path for path in sorted(folder.iterdir()) if path.is_file() and FILES.match(path.name)]
    return [path.read_text(errors="replace") for path in found]


def without_file(package: dict[str, Any], others: list[dict[str, Any]]) -> list[str]:
    """The texts for a crate without a licence file, from its declared licence."""
    licences = re.split(r" OR |/", package["license"] or "")
    if APACHE in licences:
        return [(ROOT / "LICENSE").read_text()]
    if "MIT" in licences:
        holders = ", ".join(re.sub(r" <.*?>", "", author) for author in package["authors"])
        return [f"Copyright (c) {holders or 'the authors of ' + package['name']}\n\n{MIT}"]
    for other in others:
        if other["license"] == package["license"] and (texts := files(other)):
            return texts
    raise MissingError(
        f"{package['name']} has no licence file, and no other crate has {package['license']}: add "
        "the text to tools/notices.py"
    )


def parts(packages: list[dict[str, Any]]) -> Iterator[Part]:
    """All crates, each followed by the C sources in it, and the libraries of the compilers."""
    ordered = sorted(packages, key=lambda package: (package["name"], package["version"]))
    for package in ordered:
        name = package["name"]
        texts = files(package) or without_file(package, ordered)
        address = package["repository"] or package["homepage"] or ""
        crate = f"{name} {package['version']}"
        yield Part(crate, package["license"] or "see below", address, tuple(texts))
        if name in SOURCES:
            title, licence, pattern = SOURCES[name]
            found = sorted(Path(package["manifest_path"]).parent.glob(pattern))
            if not found:
                raise MissingError(f"{crate} has no {pattern}: mend SOURCES in tools/notices.py")
            texts = [path.read_text(errors="replace") for path in found]
            yield Part(f"{title}, in C, within {name}", licence, address, tuple(texts))
        elif package["links"] and name not in KNOWN:
            raise MissingError(
                f"{crate} links '{package['links']}': name its C sources in tools/notices.py"
            )
    apache = ((ROOT / "LICENSE").read_text(),)
    yield Part("Rust's standard library", "MIT OR Apache-2.0", "https://www.rust-lang.org", apache)
    exceptions = [
        texts
        for one in ordered
        if "LLVM-exception" in (one["license"] or "") and (texts := files(one))
    ]
    llvm = tuple(exceptions[0]) if exceptions else apache
    yield Part("LLVM's libunwind", "Apache-2.0 WITH LLVM-exception", "https://llvm.org", llvm)


def page(found: list[Part]) -> str:
    """The list of all parts, followed by each text once."""
    numbers: dict[str, int] = {}
    texts: list[str] = []
    lines = [
        "Tidemill's library contains this software. The numbers are those of the texts below.",
        "",
    ]
    for part in found:
        own = []
        for text in part.texts:
            key = " ".join(text.split())
            if key not in numbers:
                numbers[key] = len(texts) + 1
                texts.append(text.strip("\n"))
            own.append(numbers[key])
        shown = ", ".join(f"[{number}]" for number in dict.fromkeys(own))
        lines.append(" · ".join(filter(None, [part.name, part.licence, part.address, shown])))
    for number, text in enumerate(texts, 1):
        lines += ["", f"{f' [{number}] ':-^100}", "", text]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes the files; gives the exit status."""
    for manifest, folder in LIBRARIES.items():
        packages: dict[str, dict[str, Any]] = {}
        for target in TARGETS:
            packages |= {package["id"]: package for package in linked(metadata(manifest, target))}
        try:
            found = list(parts(list(packages.values())))
        except MissingError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        path = ROOT / folder / NAME
        path.write_text(page(found))
        print(f"notices: {len(found)} parts in {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
