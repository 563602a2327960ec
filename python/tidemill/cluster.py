"""An app on several processes: a coordinator, and workers that own its rows.

What is chosen is a setting that begins with ``cluster_``; all processes of a cluster are given the
same, but for where they listen. ``tidemill run --processes`` starts all of them on this machine,
``tidemill coordinator`` and ``tidemill worker`` one each.
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
    """What is in the file of a cluster's secret."""
    try:
        return Path(path).read_bytes().strip()
    except OSError as error:
        raise SettingError(
            f"cluster_secret_file {path} can't be read: {error.strerror}",
            "give all processes of the cluster a file with the same secret: openssl rand -hex 32",
        ) from None


def folder_of(settings: Mapping[str, Any]) -> Path:
    """Where what a cluster keeps is: beside what one process would."""
    return Path(settings["data_dir"]) / "cluster"


def _made(app: App, settings: Mapping[str, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    engine, cluster = apart(settings)
    cluster.pop("secret_file", None)
    # Each process has its own; what a directory is for is the cluster's business.
    for name in ("data_dir", "durable"):
        engine.pop(name, None)
    cluster["fresh"] = bool(engine.pop("fresh", False))
    # Others may send events into any stream, by the log.
    spec, opaques = app.spec(engine, keep_all=False, push=True)
    return json.dumps(spec), opaques, cluster


class Coordinator:
    """The coordinator of a cluster, in this process. ``data_dir`` is where its log is."""

    def __init__(self, app: App, settings: Mapping[str, Any], secret: bytes) -> None:
        spec, opaques, cluster = _made(app, settings)
        cluster["dir"] = str(folder_of(settings))
        self.native = _native.Cluster(spec, opaques, json.dumps(cluster), secret)
        self._scheme = "https" if "http_cert" in settings else "http"

    @property
    def address(self) -> str:
        """Where workers join."""
        return self.native.address

    @property
    def url(self) -> str | None:
        """Where clients are answered, if they are."""
        return None if self.native.http is None else f"{self._scheme}://{self.native.http}"

    def status(self) -> dict[str, Any]:
        """Members, epochs, and for each source how many requests wait for a cut."""
        found: dict[str, Any] = json.loads(self.native.status())
        return found

    def stop(self, may_come: bool = True) -> bool:
        """Ends: waits a while for the replies that clients wait for, then for a last snapshot.

        Where all that comes was read from files, to their ends, and nothing else ``may_come``,
        files that are written are whole then.

        Whether all that was executed is in that snapshot: whoever starts the cluster again has
        nothing to do again then.
        """
        return self.native.stop(may_come)


class Worker:
    """A worker of a cluster, in this process."""

    def __init__(self, app: App, settings: Mapping[str, Any], secret: bytes, join: str) -> None:
        spec, opaques, cluster = _made(app, settings)
        cluster["dir"] = str(folder_of(settings))
        self._native = _native.Worker(spec, opaques, json.dumps(cluster), secret, join)
        #: Its number, as the coordinator shows it.
        self.number = self._native.number
        #: Where other workers reach it.
        self.address = self._native.address

    def status(self) -> str:
        """What it is doing, in words."""
        return self._native.status()

    def trouble(self) -> str | None:
        """What it waits for that does not come: a log or a store that does not answer."""
        return self._native.trouble()

    def stop(self) -> None:
        """Ends it: the others go on without it."""
        self._native.stop()

    def wait(self, seconds: float) -> tuple[str, str] | None:
        """Waits for its end: what ended it (``stopped``, ``refused`` or ``failed``), and why."""
        return self._native.wait(seconds)
