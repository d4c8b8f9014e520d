"""`gradian index` and `gradian show-index`."""

import json as json_module
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from gradian.cli.console import ConsoleListener
from gradian.cli.flags import ConfigFile, Json, Quiet, format_of, settings_of, write_resolved
from gradian.config import BuildIndexSettings
from gradian.safe_text import one_line

Format = Annotated[Literal["text", "json"], Parameter(help="What to print on stdout.")]


def index(
    *,
    flags: Annotated[BuildIndexSettings, Parameter(name="*")] = BuildIndexSettings(),  # noqa: B008 - frozen
    config: ConfigFile = None,
    format: Format = "text",
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Compute the gradient of every training row and keep it, so that questions are answered from disk.

    Stopped at any moment, the same command goes on where it stopped. Adding rows computes only the new ones.
    """
    from gradian.verbs.index import build_index

    settings = settings_of(BuildIndexSettings, flags, config)
    with ConsoleListener(quiet) as listener:
        built = build_index(settings, listener)
    write_resolved(settings, settings.out or built.folder)
    counts = {"computed": built.computed, "copied": built.copied, "found": built.found}
    _print(str(built.folder), built.manifest, counts, format_of(format, json))
    return 0


def show_index(
    path: Annotated[
        str, Parameter(help="An index folder, or the folder that holds exactly one.")
    ] = ".gradian",
    *,
    format: Format = "text",
    json: Json = False,
) -> int:
    """Show what a gradient index holds and where it comes from."""
    from gradian.verbs.index import load_index

    found = load_index(path)
    _print(str(found.folder), found.manifest, {}, format_of(format, json))
    return 0


def _print(folder: str, manifest: dict[str, Any], counts: dict[str, int], format: str) -> None:
    from gradian.verbs.index import summary_of

    if format == "json":
        brief = {key: value for key, value in manifest.items() if key != "layout"}
        print(json_module.dumps({"folder": folder, **brief, **counts}, indent=2))
        return
    for name, value in summary_of(folder, manifest, counts):
        print(f"{name:<14}{one_line(value)}")
