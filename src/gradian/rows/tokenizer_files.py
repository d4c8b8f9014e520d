"""The files beside a tokenizer: special tokens, added tokens, chat templates, limits.

Reads JSON and text only. Which of two sources wins follows transformers 5: `chat_template.jinja` over the key
in `tokenizer_config.json`, `tokenizer_config.json` over `special_tokens_map.json`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradian.errors import ModelError

SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "tekken.json",
    "spiece.model",
)


@dataclass(frozen=True)
class TokenizerFiles:
    """What the files beside `tokenizer.json` say.

    Attributes:
        config: `tokenizer_config.json`.
        special_tokens: the named special tokens that exist, in transformers' order.
        added_tokens: token text to the keyword arguments of `tokenizers.AddedToken`, in order of id; tokens
            that the configuration names and `tokenizer.json` may lack.
        templates: chat templates by name.
        generation_eos_ids: `eos_token_id` of `generation_config.json`.
        model_config: `config.json`.
    """

    config: Mapping[str, Any]
    special_tokens: Mapping[str, str]
    added_tokens: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)
    generation_eos_ids: tuple[int, ...] = ()
    model_config: Mapping[str, Any] = field(default_factory=dict)


def find_folder(name_or_path: str, revision: str | None) -> Path:
    """The folder of a path, or the cached snapshot of a hub id.

    Raises:
        ModelError: there is neither.
    """
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise ModelError(
            "a tokenizer is a folder, and this is a file",
            where=name_or_path,
            fix=f"pass the folder: {path.parent}",
        )
    if _HUB_ID.match(name_or_path):
        cached = _cached_snapshot(name_or_path, revision)
        if cached is not None:
            return cached
    close = _close_name(path)
    if close is not None:
        raise ModelError("there is no such folder", where=name_or_path, fix=f"did you mean {close}?")
    if not _HUB_ID.match(name_or_path):
        raise ModelError("there is no such folder", where=name_or_path, fix="check the path")
    option = f" --revision {revision}" if revision else ""
    raise ModelError(
        "the model is neither a folder here nor in the huggingface cache",
        where=name_or_path,
        why="Gradian downloads nothing by itself",
        fix=f"hf download {name_or_path}{option}",
    )


def _cached_snapshot(repo: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    for name in (*_TOKENIZER_FILES, "config.json"):
        try:
            found = try_to_load_from_cache(repo, name, revision=revision)
        except HFValidationError:
            return None
        if isinstance(found, str):
            return Path(found).parent
    return None


def _close_name(path: Path) -> Path | None:
    """A folder beside the missing one whose name is nearly the same."""
    try:
        names = sorted(item.name for item in path.parent.iterdir() if item.is_dir())
    except OSError:
        return None
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return path.parent / close[0] if close else None


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Everything that the folder says about its tokenizer.

    Raises:
        ModelError: there is no tokenizer, or a file of it is damaged.
    """
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(
            "the folder holds no tokenizer",
            where=str(folder),
            why="none of " + ", ".join(_TOKENIZER_FILES) + " is in it",
            fix="pass the folder of the base model, or copy its tokenizer files into this one",
        )
    config = _read_object(folder / "tokenizer_config.json")
    special_map = _read_object(folder / "special_tokens_map.json")
    special: dict[str, str] = {}
    for name in SPECIAL_TOKEN_NAMES:
        token = _token_text(config[name] if name in config else special_map.get(name))
        if token is not None:
            special[name] = token
    return TokenizerFiles(
        config=config,
        special_tokens=special,
        added_tokens=_added_tokens(folder, config, special_map, special),
        templates=_templates(folder, config),
        generation_eos_ids=_eos_ids(_read_object(folder / "generation_config.json")),
        model_config=_read_object(folder / "config.json"),
    )


def _added_tokens(
    folder: Path, config: Mapping[str, Any], special_map: Mapping[str, Any], special: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Tokens that the configuration names, in the order in which transformers adds them."""
    tokens: dict[str, dict[str, Any]] = {}
    decoder = config.get("added_tokens_decoder")
    if isinstance(decoder, Mapping):
        for _, entry in sorted((int(key), value) for key, value in decoder.items() if str(key).isdigit()):
            text = _token_text(entry)
            if text is not None:
                tokens[text] = {**_token_options(entry), "special": bool(entry.get("special", False))}
    by_id = sorted((value, key) for key, value in _read_object(folder / "added_tokens.json").items())
    for _, text in by_id:
        tokens.setdefault(text, {"special": text in special.values()})
    for name in special:
        value = config[name] if name in config else special_map.get(name)
        tokens.setdefault(special[name], {**_token_options(value), "special": True})
    for key in ("extra_special_tokens", "additional_special_tokens"):
        extra = config.get(key, special_map.get(key))
        values = extra.values() if isinstance(extra, Mapping) else extra
        for value in values if isinstance(values, list) or isinstance(extra, Mapping) else ():
            text = _token_text(value)
            if text is not None:
                tokens.setdefault(text, {**_token_options(value), "special": True})
    return tokens


def _token_text(value: Any) -> str | None:
    """A token is written as text or as `{"content": text, ...}`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _token_options(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {}
    names = ("lstrip", "rstrip", "single_word", "normalized")
    return {name: bool(value[name]) for name in names if name in value}


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; the files win over the configuration's key."""
    templates: dict[str, str] = {}
    value = config.get("chat_template")
    if isinstance(value, str):
        templates["default"] = value
    elif isinstance(value, list):
        for entry in value:
            if isinstance(entry, Mapping) and isinstance(entry.get("template"), str):
                templates[str(entry.get("name", "default"))] = entry["template"]
    legacy = _read_object(folder / "chat_template.json").get("chat_template")  # processors of transformers 4
    if isinstance(legacy, str):
        templates.setdefault("default", legacy)
    file = folder / "chat_template.jinja"
    extra = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    if file.is_file() or extra:
        templates = {"default": _read_text(file)} if file.is_file() else {}
        templates.update({path.stem: _read_text(path) for path in extra})
    return templates


def _eos_ids(generation_config: Mapping[str, Any]) -> tuple[int, ...]:
    value = generation_config.get("eos_token_id")
    values = value if isinstance(value, list) else [value]
    return tuple(item for item in values if isinstance(item, int) and not isinstance(item, bool))


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty when the file is not there."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(
            "the file is not JSON", where=str(path), why=str(error), fix="copy it from the base model again"
        ) from None
    if not isinstance(value, dict):
        raise ModelError(
            "the file holds no JSON object", where=str(path), fix="copy it from the base model again"
        )
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError("the file cannot be read", where=str(path), why=str(error)) from None
