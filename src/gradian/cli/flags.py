"""Flags that several commands share, and the way from flags to settings."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter
from pydantic import BaseModel

from gradian.config import resolve, to_yaml
from gradian.errors import ConfigError

SettingsT = TypeVar("SettingsT", bound=BaseModel)

ConfigFile = Annotated[
    str | None, Parameter(name="--config", help="A gradian.yaml; flags override it (gradian init-config).")
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Short for --format json.")]
Quiet = Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="No progress on stderr.")]


def settings_of(kind: type[SettingsT], flags: BaseModel, config: str | None) -> SettingsT:
    """Defaults, then the config file, then the flags that were given on the command line."""
    return resolve(kind, given(flags), config)


def given(flags: BaseModel) -> dict[str, Any]:
    """The settings that were given, not those left at their default."""
    return {key: getattr(flags, key) for key in flags.model_fields_set}


def format_of(format: str, json: bool) -> str:
    """`--json` is `--format json`."""
    return "json" if json else format


def write_text(path: str | Path, text: str) -> Path:
    """Write a file for the user, whole or not at all.

    Raises:
        ConfigError: the place cannot be written.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8", errors="surrogatepass")
        draft.replace(target)
    except OSError as error:
        raise ConfigError("cannot write", where=str(path), why=error.strerror or str(error)) from None
    return target


def write_resolved(settings: BaseModel, folder: str | Path) -> Path:
    """The resolved settings beside the result: `--config` with this file replays the run."""
    return write_text(Path(folder) / "gradian.yaml", to_yaml(settings))
