"""Settings: from ``tidemill.toml`` < environment < flag. Unknown ones are errors.

>>> checked_settings({"workers": "2"}, "--set")
{'workers': 2}
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tidemill import _native
from tidemill.errors import SettingError

#: The engine's settings; see the page on configuration for what they mean.
SETTINGS: Final[Mapping[str, type]] = {
    "workers": int,
    "epoch_rows_max": int,
    "epoch_bytes_max": int,
    "epoch_us_max": int,
    "memory_bytes_max": int,
    "parked_bytes_max": int,
    "rerun_every": int,
    "fresh": bool,
    "keep_cuts": bool,
}

PREFIX: Final = "TIDEMILL_"
_BOOLS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def checked_settings(given: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """The settings, with their types; ``origin`` says where they were found, for errors."""
    return {name: _checked(name, value, origin) for name, value in given.items()}


def _checked(name: str, value: Any, origin: str) -> Any:
    kind = SETTINGS.get(name)
    if kind is None:
        near = _native.nearest(name, list(SETTINGS))
        raise SettingError(
            f"{origin}: there is no setting '{name}'",
            f"did you mean '{near}'?" if near else f"the settings are {', '.join(SETTINGS)}",
        )
    if kind is bool:
        found = value if isinstance(value, bool) else _BOOLS.get(str(value).lower())
        if found is None:
            raise SettingError(f"{origin}: {name}={value!r} is not true or false")
        return found
    try:
        if isinstance(value, bool | float):
            raise ValueError
        number = int(str(value).replace("_", ""))
    except ValueError:
        raise SettingError(f"{origin}: {name}={value!r} is not an integer") from None
    if number < 0:
        raise SettingError(f"{origin}: {name}={value!r} is negative")
    return number


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
