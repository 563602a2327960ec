"""Checks licences, sources and known vulnerabilities of all dependencies: `make audit`.

    python tools/audit.py            # exits with 1 where a check finds something
    python tools/audit.py --strict   # and also where a database could not be reached

cargo-deny checks the crates of the workspace and of `bench/peers` by the rules in `deny.toml`.
pip-audit looks up each Python package of this environment in the OSV database. The databases of
vulnerabilities are on the internet. The last lines say which check did not happen.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: The release of cargo-deny that `deny.toml` is written for.
CARGO_DENY = "0.20.2"

#: The workspaces, with options. `bench/peers` does not need all exceptions of `deny.toml`.
WORKSPACES = {
    "Cargo.toml": [],
    "bench/peers/Cargo.toml": [
        *("--allow", "license-not-encountered"),
        *("--allow", "advisory-not-detected"),
    ],
}


@dataclass
class Outcome:
    """The outcome of all checks."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def exit_status(self, is_strict: bool) -> int:
        """Whether the audit fails: on findings, and with ``is_strict`` on checks left out."""
        return 1 if self.failed or (is_strict and self.unchecked) else 0

    def __str__(self) -> str:
        lines = [f"passed: {what}" for what in self.passed]
        lines += [f"FAILED: {what}" for what in self.failed]
        lines += [f"NOT CHECKED: {what}" for what in self.unchecked]
        return "\n".join(lines)


def last_line(text: str) -> str:
    """The last line of a text, which gives the reason of an error."""
    lines = text.strip().splitlines()
    return textwrap.shorten(lines[-1], 160) if lines else "no reason given"


# -- crates


def cargo_deny() -> str:
    """The path of cargo-deny. It is installed into target/tools if it is missing."""
    installed = ROOT / "target/tools/bin/cargo-deny"
    for path in (str(installed), shutil.which("cargo-deny")):
        if path is None or not Path(path).is_file():
            continue
        asked = subprocess.run([path, "--version"], capture_output=True, text=True)
        if asked.stdout.split()[-1:] == [CARGO_DENY]:
            return path
    print(f"audit: installing cargo-deny {CARGO_DENY} (once, some minutes)", file=sys.stderr)
    command = ["cargo", "install", "--quiet", "--locked", "--root", str(installed.parents[1])]
    subprocess.run([*command, f"cargo-deny@{CARGO_DENY}"], check=True)
    return str(installed)


def crates(outcome: Outcome) -> None:
    """Checks licences, duplicates, sources and vulnerabilities of crates."""
    deny = cargo_deny()
    fetched = subprocess.run([deny, "fetch", "db"], cwd=ROOT, capture_output=True, text=True)
    checks = ["licenses", "bans", "sources"]
    if fetched.returncode:
        why = last_line(fetched.stderr)
        outcome.unchecked.append(f"known vulnerabilities of crates: no database: {why}")
    else:
        checks.append("advisories")
    for manifest, options in WORKSPACES.items():
        command = [deny, "--manifest-path", manifest, "--config", str(ROOT / "deny.toml")]
        command += ["--locked", "check", "--hide-inclusion-graph", *options]
        done = subprocess.run([*command, *checks], cwd=ROOT)
        of = outcome.failed if done.returncode else outcome.passed
        of.append(f"{', '.join(checks)} of crates: {manifest}")


# -- Python packages


def packages(report: str, why: str, outcome: Outcome) -> None:
    """Takes the report of pip-audit, and its last words where it has none."""
    what = "known vulnerabilities of Python packages"
    try:
        found = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        outcome.unchecked.append(f"{what}: no database: {why}")
        return
    skipped = [one["name"] for one in found if "skip_reason" in one and one["name"] != "tidemill"]
    known = [
        f"{one['name']} {one['version']}: {vulnerability['id']}"
        for one in found
        for vulnerability in one.get("vulns", [])
    ]
    if skipped:
        outcome.unchecked.append(f"{what}: not in the database: {', '.join(skipped)}")
    if known:
        outcome.failed.append(f"{what}: {'; '.join(known)}")
    elif checked := sum("vulns" in one for one in found):
        outcome.passed.append(f"{what}: {checked} packages")


def python(outcome: Outcome, url: str | None) -> None:
    """Checks the vulnerabilities of the Python packages in this environment."""
    command = [sys.executable, "-m", "pip_audit", "--path", sysconfig.get_path("purelib")]
    command += ["--vulnerability-service", "osv", "--format", "json", "--progress-spinner", "off"]
    command += ["--osv-url", url] if url else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    packages(done.stdout, last_line(done.stderr), outcome)


def main() -> int:
    """Runs all checks; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strict", action="store_true", help="fail if a check is impossible here")
    parser.add_argument("--osv-url", help="the address of another OSV database")
    given = parser.parse_args()
    outcome = Outcome()
    crates(outcome)
    python(outcome, given.osv_url)
    print(outcome)
    return outcome.exit_status(given.strict)


if __name__ == "__main__":
    sys.exit(main())
