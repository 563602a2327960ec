"""An app on several processes: a coordinator, and workers that own its rows.

Its settings begin with ``cluster_``. All processes of a cluster need the same settings, except for
the addresses at which they listen. ``tidemill run --processes`` starts all of them on this machine.
``tidemill coordinator`` and ``tidemill worker`` start one each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill import _native
from tidemill.config import apart
from tidemill.errors import SettingError

if TYPE_CHECKING:
    from tidemill.app import App


def secret_of(path: Path | str) -> bytes:
    """Returns the secret in a cluster's secret file."""
    try:
        return Path(path).read_bytes().strip()
    except OSError as error:
        raise SettingError(
            f"cluster_secret_file {path} can't be read: {error.strerror}",
            "give all processes of the cluster a file with the same secret: openssl rand -hex 32",
        ) from None


def folder_of(settings: Mapping[str, Any]) -> Path:
    """Returns the folder of a cluster in the data directory, apart from that of one process."""
    return Path(settings["data_dir"]) / "cluster"


def _made(app: App, settings: Mapping[str, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    engine, cluster = apart(settings)
    cluster.pop("secret_file", None)
    # Each process has its own data directory, and the cluster decides about its content.
    for name in ("data_dir", "durable"):
        engine.pop(name, None)
    cluster["fresh"] = bool(engine.pop("fresh", False))
    # Other programs may send events into any stream through the log.
    spec, opaques = app.spec(engine, keep_all=False, push=True)
    return json.dumps(spec), opaques, cluster


class Coordinator:
    """The coordinator of a cluster, in this process. Its log is in the data directory."""

    def __init__(self, app: App, settings: Mapping[str, Any], secret: bytes) -> None:
        spec, opaques, cluster = _made(app, settings)
        cluster["dir"] = str(folder_of(settings))
        self.native = _native.Cluster(spec, opaques, json.dumps(cluster), secret)
        self._scheme = "https" if "http_cert" in settings else "http"

    @property
    def address(self) -> str:
        """The address at which workers join."""
        return self.native.address

    @property
    def url(self) -> str | None:
        """The address for HTTP clients; None without ``http_port``."""
        return None if self.native.http is None else f"{self._scheme}://{self.native.http}"

    def status(self) -> dict[str, Any]:
        """Returns members, epochs, and the requests of each source that wait for a cut."""
        found: dict[str, Any] = json.loads(self.native.status())
        return found

    def stop(self, more_input: bool = True) -> bool:
        """Stops the coordinator.

        It waits a while for the replies of open requests, and then for a last snapshot. With
        ``more_input`` False no more input can arrive, as all files were read to their ends. Written
        files are complete then.

        Returns whether the snapshot has everything that was executed. If so, the next start has
        nothing to execute again.
        """
        return self.native.stop(more_input)


class Worker:
    """A worker of a cluster, in this process."""

    def __init__(self, app: App, settings: Mapping[str, Any], secret: bytes, join: str) -> None:
        spec, opaques, cluster = _made(app, settings)
        cluster["dir"] = str(folder_of(settings))
        self._native = _native.Worker(spec, opaques, json.dumps(cluster), secret, join)
        #: The worker's number, as the coordinator shows it.
        self.number = self._native.number
        #: The address for other workers.
        self.address = self._native.address
        self._scheme = "https" if "http_cert" in settings else "http"

    @property
    def url(self) -> str | None:
        """The address for HTTP clients; None without ``http_port``."""
        return None if self._native.http is None else f"{self._scheme}://{self._native.http}"

    def status(self) -> str:
        """Returns the worker's state as text."""
        return self._native.status()

    def trouble(self) -> str | None:
        """Returns the log or store that does not answer, with which the worker is stuck."""
        return self._native.trouble()

    def stop(self) -> None:
        """Stops the worker; the others continue without it."""
        self._native.stop()

    def wait(self, seconds: float) -> tuple[str, str] | None:
        """Waits for the worker's end.

        Returns its kind (``stopped``, ``refused`` or ``failed``) and the reason, or None while the
        worker runs.
        """
        return self._native.wait(seconds)
