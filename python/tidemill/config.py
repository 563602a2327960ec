"""Settings: from ``tidemill.toml`` < environment < flag. Unknown ones are errors.

>>> checked_settings({"workers": "2"}, "--set")
{'workers': 2}
>>> checked_settings({"data_dir": Path("here"), "durable": "log"}, "app.start()")
{'data_dir': 'here', 'durable': 'log'}
>>> checked_settings({"upgrade": "lossy", "renames": {"t.a": "t.b"}}, "tidemill.toml")
{'upgrade': 'lossy', 'renames': {'t.a': 't.b'}}
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tidemill import _native
from tidemill.errors import SettingError

#: What ``durable`` may be.
DURABLE: Final = ("none", "log", "log+snapshots")

#: What ``recovery`` may be.
RECOVERY: Final = ("weak", "strong")

#: What ``on_fault`` may be.
ON_FAULT: Final = ("stop", "abort")

#: What ``cluster_cuts`` may be.
CUTS: Final = ("log", "coordinator")

#: What to say where it is none of these.
_SAY: Final = {
    DURABLE: "say none to keep nothing, log to repeat everything at a start, or log+snapshots",
    RECOVERY: "say weak to log inputs, or strong to log each transaction, too",
    ON_FAULT: "say stop to end the run at the event, or abort to count it and go on",
    CUTS: "say log to have them in Kafka, or coordinator to have them on its disk",
}

#: What ``upgrade`` may be, beside true and false.
LOSSY: Final = "lossy"

#: The engine's settings; see the guide for what they mean.
SETTINGS: Final[dict[str, object]] = {
    "workers": int,
    "epoch_idle": bool,
    "epoch_rows_max": int,
    "epoch_bytes_max": int,
    "epoch_us_max": int,
    "memory_bytes_max": int,
    "parked_bytes_max": int,
    "strategy": str,
    "rerun_every": int,
    "fresh": bool,
    "data_dir": Path,
    "durable": DURABLE,
    "recovery": RECOVERY,
    "snapshot_us": int,
    "log_segment_bytes": int,
    "poison_after": int,
    "on_fault": ON_FAULT,
    "deadline_us": int,
    "tail_rows": int,
    "tail_bytes": int,
    "dlq_rows_max": int,
    "dlq_bytes_max": int,
    "http_port": int,
    "http_host": str,
    "http_tokens": Path,
    "http_cert": Path,
    "http_key": Path,
    "http_roles": dict,
    "http_connections_max": int,
    "http_calls_max": int,
    "http_body_bytes_max": int,
    "http_idle_us": int,
    "http_deadline_us": int,
    "http_requests_kept_us": int,
    "log_to": Path,
    "upgrade": LOSSY,
    "renames": dict,
    "keep_cuts": bool,
}

#: Settings of a cluster begin so.
CLUSTER_PREFIX: Final = "cluster_"

#: Those settings; see the guide for what they mean.
CLUSTER: Final[dict[str, object]] = {
    "cluster_name": str,
    "cluster_listen": str,
    "cluster_advertised": str,
    "cluster_secret_file": Path,
    "cluster_certificate": Path,
    "cluster_key": Path,
    "cluster_authority": Path,
    "cluster_log": str,
    "cluster_cuts": CUTS,
    "cluster_log_options": dict,
    "cluster_log_replication": int,
    "cluster_snapshots": str,
    "cluster_snapshots_allow_http": bool,
    "cluster_snapshots_timeout_us": int,
    "cluster_sources": int,
    "cluster_lease_us": int,
    "cluster_beat_us": int,
    "cluster_form_us": int,
    "cluster_epoch_rows_max": int,
    "cluster_together": int,
    "cluster_message_bytes_max": int,
    "cluster_snapshot_us": int,
    "cluster_snapshot_objects_max": int,
}

PREFIX: Final = "TIDEMILL_"
_BOOLS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def checked_settings(given: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """The settings, with their types; ``origin`` says where they were found, for errors."""
    return {name: _checked(name, value, origin) for name, value in given.items()}


def _checked(name: str, value: Any, origin: str) -> Any:
    known = SETTINGS | CLUSTER
    kind = known.get(name)
    if kind is None:
        near = _native.nearest(name, list(known))
        raise SettingError(
            f"{origin}: there is no setting '{name}'",
            f"did you mean '{near}'?" if near else f"the settings are {', '.join(known)}",
        )
    if kind is LOSSY and value == LOSSY:
        return value
    if kind is bool or kind is LOSSY:
        found = value if isinstance(value, bool) else _BOOLS.get(str(value).lower())
        if found is None:
            others = "true or false" if kind is bool else f"true, false or {LOSSY}"
            raise SettingError(f"{origin}: {name}={value!r} is not {others}")
        return found
    if kind is dict:
        return _names(name, value, origin)
    if kind is Path:
        return _path(name, value, origin)
    if kind is str:
        if not isinstance(value, str):
            raise SettingError(f"{origin}: {name}={value!r} is not a text")
        return value
    if isinstance(kind, tuple):
        if value not in kind:
            what = f"{origin}: {name}={value!r} is none of {', '.join(kind)}"
            raise SettingError(what, _SAY[kind])
        return value
    try:
        if isinstance(value, bool | float):
            raise ValueError
        number = int(str(value).replace("_", ""))
    except ValueError:
        raise SettingError(f"{origin}: {name}={value!r} is not an integer") from None
    if number < 0:
        raise SettingError(f"{origin}: {name}={value!r} is negative")
    return number


def _path(name: str, value: Any, origin: str) -> str:
    try:
        path = os.fspath(value)
    except TypeError:
        path = None
    if not isinstance(path, str) or not path:
        raise SettingError(f"{origin}: {name}={value!r} is not a path", "give the name of a folder")
    return path


def _names(name: str, value: Any, origin: str) -> dict[str, str]:
    """Names with what belongs to each (new names, roles), as a mapping or as text.

    >>> _names("renames", "accounts=clients, accounts.holder=clients.owner", "--set")
    {'accounts': 'clients', 'accounts.holder': 'clients.owner'}
    """
    if isinstance(value, str):
        pairs = (pair.partition("=") for pair in value.split(",") if pair.strip())
        value = {old.strip(): new.strip() for old, _, new in pairs}
    # Passwords may be among properties, and errors are shown and kept.
    shown = "…" if name == "cluster_log_options" else repr(value)
    if isinstance(value, Mapping) and any(isinstance(new, Mapping) for new in value.values()):
        raise SettingError(
            f"{origin}: {name}={shown} has names without quotes",
            f'put names with a dot in quotes: {name} = {{"accounts.holder" = "accounts.owner"}}',
        )
    if not isinstance(value, Mapping) or not all(
        isinstance(text, str) and text for pair in value.items() for text in pair
    ):
        what, help = "what has which name now", "old names with new ones: accounts=clients"
        if name == "http_roles":
            what, help = "which role is needed for what", "names with roles: transfer=teller"
        elif name == "cluster_log_options":
            what = "which property of librdkafka is what"
            help = "properties with texts: security.protocol=ssl"
        raise SettingError(f"{origin}: {name}={shown} does not say {what}", f"give {help}")
    return dict(value)


def apart(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of an engine, and those of a cluster without their prefix.

    >>> apart({"workers": 2, "cluster_lease_us": 3_000_000})
    ({'workers': 2}, {'lease_us': 3000000})
    """
    engine = {k: v for k, v in settings.items() if not k.startswith(CLUSTER_PREFIX)}
    cluster = {
        name.removeprefix(CLUSTER_PREFIX): value
        for name, value in settings.items()
        if name not in engine
    }
    return engine, cluster


def in_memory(settings: Mapping[str, Any]) -> bool:
    """Whether nothing is to outlive the process."""
    return settings.get("data_dir") is None or settings.get("durable") == "none"


def placed(settings: Mapping[str, Any], app: str) -> dict[str, Any]:
    """The settings with a data directory: ``<app>.tidemill`` in the present folder by default.

    >>> placed({"workers": 2}, "my app/1")
    {'workers': 2, 'data_dir': 'my_app_1.tidemill'}
    >>> placed({"durable": "none"}, "ledger")
    {'durable': 'none'}
    """
    found = dict(settings)
    if found.get("durable") != "none":
        found.setdefault("data_dir", default_data_dir(app))
    return found


def default_data_dir(app: str) -> str:
    """Where ``tidemill run`` keeps an app's data unless it is told."""
    return re.sub(r"[^\w.-]+", "_", app).lstrip(".") + ".tidemill"


def load(
    config: Path | None, app_folder: Path, flags: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, Any]:
    """All settings of a run: each from the last place that has it."""
    settings: dict[str, Any] = {}
    path = config or app_folder / "tidemill.toml"
    if config is not None or path.is_file():
        settings |= checked_settings(_file(path), str(path))
    settings |= _environment(environ)
    return settings | checked_settings(flags, "command line")


def _file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingError(f"{path} can't be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path} is not TOML: {error}") from None


def _environment(environ: Mapping[str, str]) -> dict[str, Any]:
    found = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(PREFIX)
    }
    return checked_settings(found, "environment (TIDEMILL_...)")
