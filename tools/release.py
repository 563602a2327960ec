"""Prepares a release: sets the version, dates the changelog, and fills `dist`.

    make release VERSION=0.2.0               # or: python tools/release.py 0.2.0
    make release VERSION=0.2.0 DRY_RUN=1     # shows all changes and commands, and changes nothing

The version is in Cargo.toml only. The package, the site and the commands read it there. The script
never commits, tags, signs or uploads: its last lines say what remains for a person. If a build
fails, the changed files are restored. RELEASING.md has the whole checklist.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
WORK = ROOT / "target/release-env"

#: The stages of a prerelease, in their order. A final release comes after all of them.
STAGES = ("alpha", "beta", "rc")


class RefusedError(Exception):
    """A reason against the release, with what to do about it."""


@dataclass(frozen=True, order=True)
class Version:
    """A SemVer version, in a form that Python's package index also has."""

    major: int
    minor: int
    patch: int
    #: The index in STAGES; a final release has their number.
    stage: int = len(STAGES)
    number: int = 0

    @staticmethod
    def of(text: str) -> Version:
        """The version that a text names."""
        part = r"(0|[1-9]\d*)"
        stages = "|".join(STAGES)
        found = re.fullmatch(rf"{part}\.{part}\.{part}(?:-({stages})\.{part})?", text)
        if found is None:
            raise RefusedError(f"'{text}' is not a version: write 1.2.3, or 1.2.3-rc.1")
        major, minor, patch = int(found[1]), int(found[2]), int(found[3])
        if found[4] is None:
            return Version(major, minor, patch)
        return Version(major, minor, patch, STAGES.index(found[4]), int(found[5]))

    def __str__(self) -> str:
        base = f"{self.major}.{self.minor}.{self.patch}"
        return base if self.stage == len(STAGES) else f"{base}-{STAGES[self.stage]}.{self.number}"


# -- what the repository says


def git(*arguments: str) -> str:
    """The output of a git command that changes nothing."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RefusedError(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


def current(cargo: str) -> Version:
    """The version of the workspace."""
    return Version.of(tomllib.loads(cargo)["workspace"]["package"]["version"])


HEADING = re.compile(r"^## (\S+), (not yet released|\d{4}-\d{2}-\d{2})$", re.MULTILINE)


def released(changelog: str) -> list[Version]:
    """The versions that were released: those with a date, and those with a tag."""
    found = [Version.of(name) for name, when in HEADING.findall(changelog) if when[0].isdigit()]
    for tag in git("tag", "--list", "v*").split():
        try:
            found.append(Version.of(tag[1:]))
        except RefusedError:
            print(f"release: the tag {tag} is not the tag of a version", file=sys.stderr)
    return found


# -- changes


def cargo_with(version: Version, cargo: str) -> str:
    """Cargo.toml with the version of the workspace."""
    pattern = r'(\[workspace\.package\]\n(?:[^\[].*\n)*?version = ")[^"]*"'
    changed, count = re.subn(pattern, rf'\g<1>{version}"', cargo)
    if count != 1:
        raise RefusedError("Cargo.toml has no version in [workspace.package]")
    return changed


def lock_with(version: Version, lock: str, before: Version) -> str:
    """Cargo.lock with the version of the workspace's crates, which have no source."""
    parts = lock.split("[[package]]\n")
    for index, part in enumerate(parts):
        if "\nsource = " not in part:
            old = f'version = "{before}"\n'
            parts[index] = part.replace(old, f'version = "{version}"\n', 1)
    return "[[package]]\n".join(parts)


def bench_with(version: Version, project: str) -> str:
    """The benchmarks' pyproject.toml, which needs the engine of the same version."""
    changed, count = re.subn(r'"tidemill==[^"]*"', f'"tidemill=={version}"', project)
    if count != 1:
        raise RefusedError("bench/python/pyproject.toml does not name one version of tidemill")
    return changed


def changelog_with(version: Version, changelog: str, day: datetime.date) -> str:
    """CHANGELOG.md with the date of the release."""
    found = HEADING.search(changelog)
    if found is None or found[2] != "not yet released":
        raise RefusedError(
            "CHANGELOG.md has no section for this release: begin it with "
            "'## Next, not yet released' and list the changes"
        )
    if found[1] not in ("Next", str(version)):
        raise RefusedError(
            f"CHANGELOG.md announces {found[1]}, not {version}: change its first heading"
        )
    after = HEADING.search(changelog, found.end())
    section = changelog[found.end() : after.start() if after else None]
    if not re.search(r"^- \S", section, re.MULTILINE):
        raise RefusedError("CHANGELOG.md lists no changes of this release: add lines with '- '")
    return changelog[: found.start()] + f"## {version}, {day}" + changelog[found.end() :]


def changes(version: Version, day: datetime.date) -> tuple[dict[Path, str], list[str]]:
    """The new texts of the files to change, and the reasons against the release."""
    texts: dict[Path, str] = {}
    refused: list[str] = []
    names = ("Cargo.toml", "Cargo.lock", "CHANGELOG.md", "bench/python/pyproject.toml")
    cargo, lock, changelog, bench = (ROOT / name for name in names)
    before = current(cargo.read_text())
    if dirty := git("status", "--porcelain").splitlines():
        named = "\n".join([*dirty[:8], f" … {len(dirty)} files in all"][: len(dirty)])
        refused.append(f"the tree is not clean: commit or remove these files first\n{named}")
    newest = max(released(changelog.read_text()), default=None)
    if newest is not None and version <= newest:
        refused.append(f"{version} is not newer than {newest}, which is released")
    elif version < before:
        refused.append(f"{version} is older than {before}, the version in Cargo.toml")
    texts[cargo] = cargo_with(version, cargo.read_text())
    texts[lock] = lock_with(version, lock.read_text(), before)
    texts[bench] = bench_with(version, bench.read_text())
    try:
        texts[changelog] = changelog_with(version, changelog.read_text(), day)
    except RefusedError as error:
        refused.append(str(error))
    return {path: text for path, text in texts.items() if text != path.read_text()}, refused


def shown(texts: dict[Path, str]) -> str:
    """The changes, as a diff."""
    lines: list[str] = []
    for path, text in texts.items():
        name = str(path.relative_to(ROOT))
        old, new = path.read_text().splitlines(), text.splitlines()
        lines.extend(difflib.unified_diff(old, new, name, name, lineterm="", n=0))
    return "\n".join(lines)


# -- dist


def commands(version: Version) -> list[list[str]]:
    """The commands that build, without the one that follows from the wheel."""
    project = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
    bin, python = Path(sys.executable).parent, str(WORK / "bin/python")
    sbom = str(DIST / f"tidemill-{version}.python.cdx.json")
    return [
        ["make", "wheel"],
        *(
            [str(bin / "maturin"), "sdist", "--manifest-path", manifest, "--out", str(DIST)]
            for manifest in ("python/extension/Cargo.toml", "bench/python/Cargo.toml")
        ),
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(WORK)],
        [str(bin / "pip"), "--python", python, "install", "--quiet", *project["dependencies"]],
        [str(bin / "cyclonedx-py"), "environment", "--pyproject", "python/pyproject.toml"]
        + ["--mc-type", "library", "--output-reproducible", "--output-file", sbom, python],
    ]


def rust_sbom(wheel: Path) -> str:
    """The list of crates that maturin has put into a wheel, without the paths of this machine."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".cyclonedx.json")]
        if len(names) != 1:
            raise RefusedError(f"{wheel.name} has {len(names)} lists of crates, not one")
        text = archive.read(names[0]).decode()
    text = text.replace(f"path+file://{ROOT}/", "path+file:///")
    json.loads(text)
    return text


def with_version(sbom: str, version: Version) -> str:
    """A list of packages with the version of the project, which pyproject.toml does not have."""
    found = json.loads(sbom)
    found["metadata"]["component"]["version"] = str(version)
    return json.dumps(found, indent=2) + "\n"


def checksums(folder: Path) -> str:
    """The SHA-256 sums of the files in a folder, as `sha256sum --check` reads them."""
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files
    )


def build(version: Version) -> None:
    """Fills dist with wheels, the source distribution, both lists of components, and sums."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for command in commands(version):
        print(f"release: {shlex.join(command)}", flush=True)
        subprocess.run(command, cwd=ROOT, check=True)
    for package in ("tidemill", "tidemill_bench"):
        wheels = sorted(DIST.glob(f"{package}-*.whl"))
        if not wheels:
            raise RefusedError(f"`make wheel` has built no wheel of {package}")
        name = package.replace("_", "-")
        (DIST / f"{name}-{version}.rust.cdx.json").write_text(rust_sbom(wheels[0]))
    listed = DIST / f"tidemill-{version}.python.cdx.json"
    listed.write_text(with_version(listed.read_text(), version))
    (DIST / "SHA256SUMS").write_text(checksums(DIST))


# -- what remains


def naming() -> list[str]:
    """The lines of pages that name a version of Tidemill, which a person has to read."""
    found: list[str] = []
    for name in git("ls-files", "*.md").split("\n"):
        path = ROOT / name
        if not name or name in ("CHANGELOG.md", "RELEASING.md") or not path.is_file():
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"\bversion \d+\.\d", line, re.IGNORECASE):
                found.append(f"{name}:{number}: {line.strip()}")
    return found


def remaining(version: Version) -> str:
    """The steps for a person, in order."""
    steps = [
        "read the diff, and these lines that name a version:\n"
        + "\n".join(f"     {line}" for line in naming()),
        f"git commit --all --message 'Tidemill {version}'",
        ".venv/bin/python tools/try_wheel.py dist/*manylinux*.whl",
        f"git tag --sign v{version} --message 'Tidemill {version}'; push the commit and the tag",
        "gpg --armor --detach-sign dist/SHA256SUMS",
        "twine upload dist/*.whl dist/*.tar.gz",
        f"make a release of v{version} on the repository's page, with all files of dist",
    ]
    lines = (f"{number:2}. {step}" for number, step in enumerate(steps, 1))
    return "These steps remain for a person; RELEASING.md has the details:\n" + "\n".join(lines)


def main() -> int:
    """Prepares the release; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", nargs="?", help="the version, such as 0.2.0 or 0.2.0-rc.1")
    parser.add_argument("--dry-run", action="store_true", help="change nothing, show all")
    parser.add_argument(
        "--without-wheels", action="store_true", help="change the files and leave dist alone"
    )
    parser.add_argument(
        "--date",
        type=datetime.date.fromisoformat,
        default=datetime.datetime.now(datetime.UTC).date(),
        help="the date for the changelog; the default is today, in UTC",
    )
    given = parser.parse_args()
    if given.version is None:
        parser.error("which version? Run: make release VERSION=1.2.3")
    try:
        version = Version.of(given.version)
        texts, refused = changes(version, given.date)
    except RefusedError as error:
        texts, refused = {}, [str(error)]
    for reason in refused:
        print(f"error: {reason}", file=sys.stderr)
    if refused and not given.dry_run:
        return 1
    if not refused or texts:
        print(shown(texts))
    if given.dry_run:
        if texts:
            print(f"\nrelease: would empty {DIST.relative_to(ROOT)}, then run:")
            print("\n".join(f"  {shlex.join(command)}" for command in commands(version)))
            print(f"  and write tidemill[-bench]-{version}.rust.cdx.json and SHA256SUMS\n")
            print(remaining(version))
        return 1 if refused else 0
    old = {path: path.read_text() for path in texts}
    try:
        for path, text in texts.items():
            path.write_text(text)
        if given.without_wheels:
            print("\nrelease: dist is unchanged, because of --without-wheels")
        else:
            build(version)
    except BaseException as error:
        for path, text in old.items():
            path.write_text(text)
        print("release: the changed files are restored", file=sys.stderr)
        if isinstance(error, RefusedError | subprocess.CalledProcessError | OSError):
            print(f"error: {error}", file=sys.stderr)
            return 1
        raise
    print(f"\n{remaining(version)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
