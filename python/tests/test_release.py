"""`make release` and `make audit`: what they refuse, change and report. Nothing is built here."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

CARGO = """[workspace]
members = ["core"]

[workspace.package]
edition = "2021"
version = "0.1.0"
rust-version = "1.95"

[workspace.dependencies]
csv = { version = "0.1.0" }
"""

LOCK = """version = 4

[[package]]
name = "csv"
version = "0.1.0"
source = "registry+https://github.com/rust-lang/crates.io-index"

[[package]]
name = "tidemill-core"
version = "0.1.0"
dependencies = [
 "csv",
]
"""

CHANGELOG = """# Changes

## Next, not yet released

### Added

- A thing.

## 0.1.0, 2026-01-31

- The first version.
"""

PYPROJECT = """[project]
name = "tidemill"
dynamic = ["version"]
dependencies = ["httpx==1.0"]
"""

BENCH = """[project]
name = "tidemill-bench"
dependencies = ["tidemill==0.1.0"]
"""


def git(at: Path, *arguments: str) -> None:
    options = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *options, *arguments], cwd=at, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small copy of the repository, committed."""
    at = tmp_path / "repository"
    for name, text in {
        "Cargo.toml": CARGO,
        "Cargo.lock": LOCK,
        "CHANGELOG.md": CHANGELOG,
        "README.md": "# Tidemill\n\nVersion 0.1 is not on PyPI yet.\n",
        "python/pyproject.toml": PYPROJECT,
        "bench/python/pyproject.toml": BENCH,
        ".gitignore": "/dist\n/target\n",
    }.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(text)
    (at / "tools").mkdir()
    shutil.copy(ROOT / "tools/release.py", at / "tools")
    git(at, "init", "--quiet")
    git(at, "add", "--all")
    git(at, "commit", "--quiet", "--message", "First")
    return at


def release(at: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(at / "tools/release.py"), "--date", "2026-02-03", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def texts(at: Path) -> dict[str, str]:
    names = ("Cargo.toml", "Cargo.lock", "CHANGELOG.md", "bench/python/pyproject.toml")
    return {name: (at / name).read_text() for name in names}


def test_a_release_sets_the_version_and_the_date(repository: Path) -> None:
    done = release(repository, "0.2.0", "--without-wheels")
    assert done.returncode == 0, done.stderr
    changed = texts(repository)
    assert changed["Cargo.toml"] == CARGO.replace('\nversion = "0.1.0"', '\nversion = "0.2.0"')
    before = 'name = "tidemill-core"\nversion = "0.1.0"'
    assert changed["Cargo.lock"] == LOCK.replace(before, before.replace("0.1.0", "0.2.0"))
    assert changed["CHANGELOG.md"] == CHANGELOG.replace(
        "## Next, not yet released", "## 0.2.0, 2026-02-03"
    )
    bench = changed["bench/python/pyproject.toml"]
    assert bench == BENCH.replace("tidemill==0.1.0", "tidemill==0.2.0")
    assert not (repository / "dist").exists()
    for step in (
        "README.md:3: Version 0.1 is not on PyPI yet.",
        "git commit --all --message 'Tidemill 0.2.0'",
        "git tag --sign v0.2.0",
        "gpg --armor --detach-sign dist/SHA256SUMS",
        "twine upload",
    ):
        assert step in done.stdout
    made = subprocess.run(["git", "log", "--oneline"], cwd=repository, capture_output=True)
    assert len(made.stdout.splitlines()) == 1


def test_a_dry_run_shows_all_and_changes_nothing(repository: Path) -> None:
    before = texts(repository)
    done = release(repository, "0.2.0-rc.1", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert texts(repository) == before
    assert not (repository / "dist").exists()
    for part in (
        '+version = "0.2.0-rc.1"',
        "+## 0.2.0-rc.1, 2026-02-03",
        "make wheel",
        "sdist",
        "httpx==1.0",
        "tidemill-0.2.0-rc.1.python.cdx.json",
        "SHA256SUMS",
        "git tag --sign v0.2.0-rc.1",
    ):
        assert part in done.stdout


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.2", "'0.2' is not a version: write 1.2.3, or 1.2.3-rc.1"),
        ("v0.2.0", "is not a version"),
        ("0.02.0", "is not a version"),
        ("0.2.0+local", "is not a version"),
        ("0.1.0", "0.1.0 is not newer than 0.1.0, which is released"),
        ("0.1.0-rc.2", "0.1.0-rc.2 is not newer than 0.1.0"),
        ("0.0.9", "0.0.9 is not newer than 0.1.0"),
    ],
)
def test_a_version_that_is_not_newer_is_refused(repository: Path, version: str, said: str) -> None:
    done = release(repository, version, "--without-wheels")
    assert done.returncode == 1
    assert said in done.stderr
    assert texts(repository)["Cargo.toml"] == CARGO


def test_a_tagged_version_is_released(repository: Path) -> None:
    git(repository, "tag", "v0.2.0-rc.10")
    done = release(repository, "0.2.0-rc.9", "--without-wheels")
    assert done.returncode == 1
    assert "0.2.0-rc.9 is not newer than 0.2.0-rc.10" in done.stderr
    assert release(repository, "0.2.0", "--without-wheels").returncode == 0


def test_the_first_release_has_the_version_of_the_workspace(repository: Path) -> None:
    first = CHANGELOG.partition("## 0.1.0")[0].replace("Next", "0.1.0")
    (repository / "CHANGELOG.md").write_text(first)
    git(repository, "commit", "--all", "--message", "Before the first release")
    done = release(repository, "0.0.1", "--without-wheels")
    assert "0.0.1 is older than 0.1.0, the version in Cargo.toml" in done.stderr
    done = release(repository, "0.2.0", "--without-wheels")
    assert "CHANGELOG.md announces 0.1.0, not 0.2.0" in done.stderr
    done = release(repository, "0.1.0", "--without-wheels")
    assert done.returncode == 0, done.stderr
    assert texts(repository) == {
        "Cargo.toml": CARGO,
        "Cargo.lock": LOCK,
        "CHANGELOG.md": first.replace("0.1.0, not yet released", "0.1.0, 2026-02-03"),
        "bench/python/pyproject.toml": BENCH,
    }


@pytest.mark.parametrize(
    ("changelog", "said"),
    [
        (CHANGELOG.replace("- A thing.\n", ""), "lists no changes of this release"),
        ("# Changes\n\n## 0.1.0, 2026-01-31\n\n- One.\n", "has no section for this release"),
        ("# Changes\n", "has no section for this release"),
    ],
)
def test_a_release_without_entries_is_refused(repository: Path, changelog: str, said: str) -> None:
    (repository / "CHANGELOG.md").write_text(changelog)
    git(repository, "commit", "--all", "--message", "Without entries")
    done = release(repository, "0.2.0", "--without-wheels")
    assert done.returncode == 1
    assert said in done.stderr


def test_a_tree_with_changes_is_refused_beside_all_other_reasons(repository: Path) -> None:
    (repository / "new.txt").write_text("")
    for arguments in (["--without-wheels"], ["--dry-run"]):
        done = release(repository, "0.1.0", *arguments)
        assert done.returncode == 1
        assert "the tree is not clean" in done.stderr
        assert "?? new.txt" in done.stderr
        assert "0.1.0 is not newer than 0.1.0" in done.stderr
        assert texts(repository)["CHANGELOG.md"] == CHANGELOG


def test_a_failed_build_restores_the_files(repository: Path) -> None:
    (repository / "Makefile").write_text("wheel:\n\tfalse\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--message", "A build that fails")
    before = texts(repository)
    done = release(repository, "0.2.0")
    assert done.returncode == 1
    assert "the changed files are restored" in done.stderr
    assert "make" in done.stderr
    assert "Traceback" not in done.stderr
    assert texts(repository) == before


def test_the_repository_has_the_forms_that_a_release_changes() -> None:
    tool = loaded("release")
    before = tool.current((ROOT / "Cargo.toml").read_text())
    version = tool.Version.of("99.0.0")
    lock = (ROOT / "Cargo.lock").read_text()
    crates = lock.count('name = "tidemill-')
    cargo = tool.cargo_with(version, (ROOT / "Cargo.toml").read_text())
    assert tool.current(cargo) == version
    assert tool.lock_with(version, lock, before).count('version = "99.0.0"') == crates
    bench = (ROOT / "bench/python/pyproject.toml").read_text()
    assert f'"tidemill=={before}"' in bench
    assert '"tidemill==99.0.0"' in tool.bench_with(version, bench)
    assert tool.HEADING.search((ROOT / "CHANGELOG.md").read_text())
    assert 'dynamic = ["version"]' in (ROOT / "python/pyproject.toml").read_text()


def test_sums_and_lists_of_components(tmp_path: Path) -> None:
    tool = loaded("release")
    wheel = tmp_path / "tidemill-0.2.0-cp311-abi3-linux.whl"
    listed = {"components": [{"bom-ref": f"path+file://{ROOT}/core#tidemill-core@0.2.0"}]}
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tidemill-0.2.0.dist-info/sboms/t.cyclonedx.json", json.dumps(listed))
    found = json.loads(tool.rust_sbom(wheel))
    assert found["components"] == [{"bom-ref": "path+file:///core#tidemill-core@0.2.0"}]
    packages = '{"metadata": {"component": {"name": "tidemill"}}}'
    component = json.loads(tool.with_version(packages, "0.2.0"))["metadata"]["component"]
    assert component == {"name": "tidemill", "version": "0.2.0"}
    (tmp_path / "SHA256SUMS").write_text("old")
    sums = tool.checksums(tmp_path)
    assert sums == f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}\n"
    (tmp_path / "SHA256SUMS").write_text(sums)
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, check=True)


def crate(folder: Path, name: str, **more: str | None) -> dict[str, Any]:
    """A crate as cargo describes it."""
    made = {
        "name": name,
        "version": "1.0.0",
        "license": "MIT",
        "links": None,
        "authors": ["A <a@b>"],
    }
    made |= {"repository": "", "homepage": "", "manifest_path": str(folder / name / "Cargo.toml")}
    (folder / name).mkdir()
    return made | more


def test_notices_have_each_text_once_and_the_licences_of_c_sources(tmp_path: Path) -> None:
    tool = loaded("notices")
    crates = [crate(tmp_path, name) for name in ("a", "b", "plain")]
    crates.append(crate(tmp_path, "zstd-sys", links="zstd"))
    for name, text in (("a/LICENSE", "The text\nof both"), ("b/COPYING", "The text of both")):
        (tmp_path / name).write_text(text)
    (tmp_path / "zstd-sys/zstd").mkdir()
    (tmp_path / "zstd-sys/zstd/LICENSE").write_text("The text of zstd")
    page = tool.page(list(tool.parts(crates)))
    assert "a 1.0.0 · MIT · [1]" in page
    assert "b 1.0.0 · MIT · [1]" in page
    assert page.count("of both") == 1
    assert "Copyright (c) A\n\nPermission is hereby granted" in page
    assert "zstd, in C, within zstd-sys" in page
    assert page.count("The text of zstd") == 1


def test_notices_refuse_what_has_no_licence(tmp_path: Path) -> None:
    tool = loaded("notices")
    with pytest.raises(tool.MissingError, match=r"new-sys 1\.0\.0 links 'new': name its C sources"):
        list(tool.parts([crate(tmp_path, "new-sys", links="new")]))
    with pytest.raises(tool.MissingError, match="rare has no licence file"):
        list(tool.parts([crate(tmp_path, "rare", license="MPL-2.0")]))
    with pytest.raises(tool.MissingError, match=r"zstd-sys 1\.0\.0 has no zstd/LICENSE"):
        list(tool.parts([crate(tmp_path, "zstd-sys", links="zstd")]))


@pytest.mark.parametrize(
    ("report", "strict", "status", "said"),
    [
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', True, 0, "passed:"),
        ("", False, 0, "NOT CHECKED: known vulnerabilities of Python packages: no database: why"),
        ("", True, 1, "NOT CHECKED"),
        (
            '{"dependencies": [{"name": "a", "skip_reason": "gone"}]}',
            True,
            1,
            "NOT CHECKED: known vulnerabilities of Python packages: not in the database: a",
        ),
        (
            '{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1"}]}]}',
            False,
            1,
            "FAILED: known vulnerabilities of Python packages: a 1: PYSEC-1",
        ),
    ],
)
def test_an_audit_says_what_it_did_not_check(
    report: str, strict: bool, status: int, said: str
) -> None:
    tool = loaded("audit")
    outcome = tool.Outcome()
    tool.packages(report, "why", outcome)
    assert outcome.exit_status(strict) == status
    assert said in str(outcome)


def loaded(name: str) -> ModuleType:
    """A program of the folder `tools`, as a module."""
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / f"tools/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
