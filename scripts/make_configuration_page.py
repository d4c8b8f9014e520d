"""Write docs/configuration.md from the config model. A test holds the page to it.

python scripts/make_configuration_page.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args, get_origin

from pydantic.fields import FieldInfo

from gradian.config import SECTIONS, BuildIndexSettings, Config, DiagnoseSettings, EvaluateSettings

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
HEAD = """# Configuration

Every setting is a flag (`--eval-batch-size 4`) and a key of a config file (`eval_batch_size: 4`). Flags override
the file, the file overrides the defaults. A file with every key explained:

```console
$ gradian init-config --base-model ./base-model
$ gradian attribute --config gradian.yaml --help
```

One file serves every command: keys that a command does not use are left alone. An unknown key is an error that
names the nearest known one. Every run writes its resolved settings beside its result, and `--config` with that
file replays the run. (This page is written by `scripts/make_configuration_page.py`.)
"""
COMMANDS = {
    "attribute": Config,
    "evaluate": EvaluateSettings,
    "index": BuildIndexSettings,
    "diagnose": DiagnoseSettings,
}


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for section in SECTIONS:
        lines += [
            f"## {(section.__doc__ or '').rstrip('.')}",
            "",
            "| key | default | meaning | used by |",
            "|---|---|---|---|",
        ]
        for key, field in section.model_fields.items():
            users = ", ".join(name for name, model in COMMANDS.items() if key in model.model_fields)
            lines.append(f"| `{key}` | {_default(field)} | {field.description}{_choices(field)} | {users} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return (
        ""
        if value is None or value in ([], {})
        else f"`{str(value).lower() if isinstance(value, bool) else value}`"
    )


def _choices(field: FieldInfo) -> str:
    if str(get_origin(field.annotation)) != "typing.Literal":
        return ""
    return " One of " + ", ".join(f"`{choice}`" for choice in get_args(field.annotation)) + "."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE, file=sys.stderr)
