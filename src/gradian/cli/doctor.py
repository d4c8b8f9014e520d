"""`gradian doctor`."""

import json as json_module
from typing import Annotated, Literal

from cyclopts import Parameter

from gradian.cli.flags import Json, format_of


def doctor(
    *,
    format: Annotated[Literal["text", "json"], Parameter(help="What to print on stdout.")] = "text",
    json: Json = False,
) -> int:
    """Show versions, devices, cache and network state, and what is missing with the command that installs it."""
    from gradian.verbs.doctor import examine

    state = examine()
    if format_of(format, json) == "json":
        print(json_module.dumps(state.as_json(), indent=2))
    else:
        print(state.as_text())
    return 1 if state.missing else 0
