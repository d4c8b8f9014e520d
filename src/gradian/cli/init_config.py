"""`gradian init-config`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gradian.cli.flags import write_text
from gradian.config import Config, commented_config
from gradian.errors import ConfigError


def init_config(
    *,
    flags: Annotated[Config, Parameter(name="*", show=False)] = Config(),  # noqa: B008 - frozen
    output: Annotated[str, Parameter(name=["--output", "-o"], help="The file to write.")] = "gradian.yaml",
    overwrite: Annotated[bool, Parameter(negative="", help="Replace a file that is there.")] = False,
) -> int:
    """Write a gradian.yaml with every key explained. Any setting may be given as a flag: --base-model NAME."""
    from gradian.cli.flags import given

    if Path(output).exists() and not overwrite:
        raise ConfigError("this file exists already", where=output, fix="--output OTHER.yaml, or --overwrite")
    path = write_text(output, commented_config(**given(flags)))
    print(f"wrote {path}; next: gradian attribute --config {path}")
    return 0
