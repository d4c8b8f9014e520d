"""The tokenizer and chat template that a run folder holds: only where they are, not what they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradian.run.artefact import MAX_CONFIG_BYTES, ArtefactError, read_json_object, read_text

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
TEMPLATE_FILE = "chat_template.jinja"


def has_tokenizer(folder: Path) -> bool:
    """True when a tokenizer can be loaded from the folder."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def read_chat_template(folder: Path) -> tuple[str, str] | None:
    """The chat template of a folder and the file that holds it; None without one. Raises ArtefactError.

    `chat_template.jinja` wins over the field of tokenizer_config.json, as in transformers. Of several named
    templates the one called `default` is taken.
    """
    if (folder / TEMPLATE_FILE).exists():
        return read_text(folder / TEMPLATE_FILE, MAX_CONFIG_BYTES), TEMPLATE_FILE
    if not (folder / "tokenizer_config.json").exists():
        return None
    template: Any = read_json_object(folder / "tokenizer_config.json", 64 * MAX_CONFIG_BYTES).get(
        "chat_template"
    )
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise ArtefactError("has a chat_template that is not text")
    return (template, "tokenizer_config.json") if template else None
