"""Processes that show each other certificates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from .kill.cluster import APP, PATIENCE, Process, settings, wait_for, workers_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the app's tests are for Linux")

NEW = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def openssl(folder: Path, *args: str) -> None:
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)


def authority(folder: Path, name: str) -> None:
    """Creates an authority that signs certificates."""
    openssl(
        folder,
        *("req", "-x509", *NEW, "-days", "2", "-subj", f"/CN={name}"),
        *("-keyout", f"{name}.key", "-out", f"{name}.crt"),
    )


def certificate(folder: Path, name: str, by: str) -> list[str]:
    """The flags of a process with a certificate of its own, as the guide makes one."""
    openssl(
        folder,
        *("req", "-x509", "-CA", f"{by}.crt", "-CAkey", f"{by}.key", *NEW, "-days", "2"),
        *("-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:FALSE"),
        *("-keyout", f"{name}.key", "-out", f"{name}.crt"),
    )
    at = {"--certificate": f"{name}.crt", "--key": f"{name}.key", "--authority": f"{by}.crt"}
    return [part for flag, file in at.items() for part in (flag, str(folder / file))]


def test_processes_that_show_certificates_form_a_cluster(tmp_path: Path) -> None:
    (keys := tmp_path / "keys").mkdir()
    (secret := tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef")
    for name in ("authority", "other"):
        authority(keys, name)
    common = [str(APP), *settings(), "--secret-file", str(secret)]
    common += ["--snapshots", str(tmp_path / "snapshots")]
    coordinator = Process(
        tmp_path / "coordinator",
        *("coordinator", *common, *certificate(keys, "coordinator", "authority")),
        *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
    )
    with coordinator:
        at = coordinator.find(r"join at (\S+)")
        url = coordinator.find(r"http +(http://\S+)")

        def worker(name: str, *flags: str) -> Process:
            return Process(tmp_path / name, "worker", *common, "--join", at, *flags)

        with (
            worker("one", *certificate(keys, "one", "authority")),
            worker("two", *certificate(keys, "two", "authority")),
        ):
            wait_for("two workers", lambda: len(workers_of(url)) == 2)
            for key in range(0, 20, 2):
                body = {"id": key, "dst": key + 1, "amount": 5, "op": key}
                reply = httpx.post(f"{url}/call/account.transfer", json=body, timeout=30)
                assert reply.status_code == 200, reply.text
            # A worker that does not belong to the cluster gets the reason, and the coordinator
            # reports it.
            stranger = certificate(keys, "stranger", "other")
            half = ["--certificate", stranger[1]]
            mixed = [*stranger[:4], "--authority", str(keys / "authority.crt")]
            for name, flags, words in (
                ("clear", [], "it speaks TLS"),
                ("stranger", stranger, "not issued by the authority of the cluster"),
                ("mixed", mixed, "not issued by the authority of the cluster"),
                ("half", half, "cluster_certificate without cluster_key and cluster_authority"),
            ):
                with worker(name, *flags) as refused:
                    assert refused.process.wait(PATIENCE) == 1
                said = refused.errors.read_text()
                assert words in said, said
                assert "Traceback" not in said, said
            told = str(httpx.get(f"{url}/health", timeout=30).json()["turned_away"])
            assert "does not speak TLS" in told
            assert "another authority has issued it" in told
            assert len(workers_of(url)) == 2
            # They know no other secret inside, either.
            (wrong := tmp_path / "wrong-secret").write_text("fedcba9876543210fedcba9876543210")
            with worker("wrong", *certificate(keys, "wrong", "authority"),
                        "--secret-file", str(wrong)) as refused:  # fmt: skip
                assert refused.process.wait(PATIENCE) == 1
            assert "does not know the secret" in refused.errors.read_text()
        assert coordinator.stop() == 0
