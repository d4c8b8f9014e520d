"""A tokenizer with its special tokens and chat template, without transformers.

Reads what `save_pretrained` writes. Ids are those of `AutoTokenizer` of transformers 5 (a test holds them
equal): the pipeline of `tokenizer.json`, whose post-processor alone decides about BOS and EOS, and the tokens
that only the configuration names added to it. (transformers 4 also read `add_bos_token` for some classes.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from gradian.errors import ModelError
from gradian.rows.template import ChatTemplate, TemplateRenderError
from gradian.rows.tokenizer_files import TokenizerFiles, find_folder, read_tokenizer_files

#: Above this, `model_max_length` is transformers' way to write "no limit" (it writes 1e30).
NO_LIMIT = 1_000_000
_PROBE = "Xgradianprobe"  # letters only: every tokenizer has them, no template trims or escapes them


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Text to ids and back, and everything that decides how a conversation is tokenised.

    Attributes:
        name_or_path: as the user gave it.
        backend: the `tokenizers` pipeline.
        special_tokens: `bos_token`, `eos_token`, ... by name; only those that exist.
        templates: chat templates by name; `default` is used, and `tool_use` where a row has tools.
        model_max_length: length limit in tokens that the tokenizer states, None without one.
        max_position_embeddings: context of the model in tokens, None when `config.json` is not there.
        model_vocab_size: rows of the embedding as `config.json` states them, None when it is not there.
        generation_eos_ids: the ids at which `generation_config.json` stops.
    """

    name_or_path: str
    backend: tokenizers.Tokenizer
    special_tokens: Mapping[str, str]
    templates: Mapping[str, ChatTemplate] = field(default_factory=dict)
    model_max_length: int | None = None
    max_position_embeddings: int | None = None
    model_vocab_size: int | None = None
    generation_eos_ids: tuple[int, ...] = ()

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of a text; `add_special_tokens` adds what the post-processor adds (BOS, EOS)."""
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Ids of every text, in order."""
        if not texts:
            return []
        encode = getattr(self.backend, "encode_batch_fast", self.backend.encode_batch)  # fast: no offsets
        return [item.ids for item in encode(list(texts), add_special_tokens=add_special_tokens)]

    def encode_with_offsets(
        self, texts: Sequence[str], add_special_tokens: bool
    ) -> list[tokenizers.Encoding]:
        """Encodings of every text, in order: `ids`, and the `[start, end)` characters of each id."""
        if not texts:
            return []
        encoded: list[tokenizers.Encoding] = self.backend.encode_batch(
            list(texts), add_special_tokens=add_special_tokens
        )
        return encoded

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of ids."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def id_of(self, token: str) -> int | None:
        """The id of one token, None when the vocabulary lacks it."""
        token_id: int | None = self.backend.token_to_id(token)
        return token_id

    def _special_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.id_of(token)

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens.get("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._special_id("eos_token")

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens.get("bos_token")

    @property
    def bos_token_id(self) -> int | None:
        return self._special_id("bos_token")

    @property
    def pad_token(self) -> str | None:
        return self.special_tokens.get("pad_token")

    @property
    def pad_token_id(self) -> int | None:
        return self._special_id("pad_token")

    @property
    def unk_token(self) -> str | None:
        return self.special_tokens.get("unk_token")

    @property
    def unk_token_id(self) -> int | None:
        return self._special_id("unk_token")

    @property
    def template(self) -> ChatTemplate | None:
        """The chat template that is used; None for a tokenizer without one."""
        return self.templates.get("default")

    def template_for(self, tools: Sequence[Any] | None) -> ChatTemplate | None:
        """The template for a row with these tools, chosen as `apply_chat_template` does."""
        if tools is not None and "tool_use" in self.templates:
            return self.templates["tool_use"]
        return self.template

    def with_template(self, source: str) -> Tokenizer:
        """The same tokenizer with another chat template (the run's instead of the base model's)."""
        return Tokenizer(
            name_or_path=self.name_or_path,
            backend=self.backend,
            special_tokens=self.special_tokens,
            templates={"default": ChatTemplate(source, self.special_tokens)},
            model_max_length=self.model_max_length,
            max_position_embeddings=self.max_position_embeddings,
            model_vocab_size=self.model_vocab_size,
            generation_eos_ids=self.generation_eos_ids,
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included (transformers' `len(tokenizer)`)."""
        size: int = self.backend.get_vocab_size(with_added_tokens=True)
        return size

    @cached_property
    def added_tokens(self) -> Mapping[int, str]:
        """Added tokens by id, special or not, ascending."""
        decoder = self.backend.get_added_tokens_decoder()
        return {token_id: decoder[token_id].content for token_id in sorted(decoder)}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the added tokens that are marked special."""
        decoder = self.backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in decoder.items() if token.special)

    @cached_property
    def _empty_ids(self) -> list[int]:
        return self.encode("", add_special_tokens=True)

    @property
    def adds_bos(self) -> bool:
        """The post-processor writes BOS before a text."""
        return self.bos_token_id is not None and self._empty_ids[:1] == [self.bos_token_id]

    @property
    def adds_eos(self) -> bool:
        """The post-processor writes EOS after a text."""
        ids = self._empty_ids[1:] if self.adds_bos else self._empty_ids
        return self.eos_token_id is not None and ids[-1:] == [self.eos_token_id]

    @cached_property
    def turn_end_id(self) -> int | None:
        """The added token that the template writes right after an assistant turn, None without one."""
        if self.template is None:
            return None
        user = {"role": "user", "content": "hello"}
        assistant = {"role": "assistant", "content": _PROBE}
        # Some templates end the last turn otherwise than those before it, or not at all.
        for messages in ([user, assistant, user], [user, assistant]):
            try:
                text = self.template.render(messages)
            except TemplateRenderError:
                continue
            if _PROBE not in text:  # the template rewrites or leaves out what the assistant says
                continue
            tail = text.rpartition(_PROBE)[2].lstrip()
            ids = self.encode(tail, add_special_tokens=False) if tail else []
            first = next((i for i in ids if self.decode([i]).strip()), None)
            if first is not None and first in self.added_tokens:
                return first
        return None

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an answer: EOS, those of `generation_config.json`, the template's end of turn."""
        ids = {self.eos_token_id, self.turn_end_id, *self.generation_eos_ids}
        return frozenset(token_id for token_id in ids if token_id is not None)

    @cached_property
    def sha256(self) -> str:
        """Digest of what decides ids: the pipeline, the special tokens, the templates."""
        digest = hashlib.sha256(self.backend.to_str().encode())
        for name, token in sorted(self.special_tokens.items()):
            digest.update(f"\0{name}={token}".encode())
        for name, template in sorted(self.templates.items()):
            digest.update(f"\0{name}\0{template.source}".encode())
        return digest.hexdigest()


def load_tokenizer(name_or_path: str | Path, *, revision: str | None = None) -> Tokenizer:
    """The tokenizer of a folder, or of a hub id that is already in the huggingface cache. Never downloads.

    Raises:
        ModelError: no such folder or cached model, no tokenizer in it, or a damaged file.
    """
    folder = find_folder(str(name_or_path), revision)
    files = read_tokenizer_files(folder)
    backend = _backend(folder, files)
    _add_named_tokens(backend, files)
    backend.no_truncation()
    backend.no_padding()
    limit = files.config.get("model_max_length")
    return Tokenizer(
        name_or_path=str(name_or_path),
        backend=backend,
        special_tokens=files.special_tokens,
        templates={name: ChatTemplate(text, files.special_tokens) for name, text in files.templates.items()},
        model_max_length=int(limit) if isinstance(limit, int | float) and 0 < limit < NO_LIMIT else None,
        max_position_embeddings=_model_number(files.model_config, "max_position_embeddings"),
        model_vocab_size=_model_number(files.model_config, "vocab_size"),
        generation_eos_ids=files.generation_eos_ids,
    )


def _backend(folder: Path, files: TokenizerFiles) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        return _backend_of_transformers(folder)
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelError(
            "the tokenizer file cannot be read",
            where=str(path),
            why=str(error),
            fix="copy tokenizer.json from the base model again",
        ) from None


def _backend_of_transformers(folder: Path) -> tokenizers.Tokenizer:
    """A tokenizer without `tokenizer.json` (SentencePiece, tiktoken): transformers converts it."""
    try:
        from transformers import AutoTokenizer

        slow = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            "the folder holds no usable tokenizer",
            where=str(folder),
            why=f"no tokenizer.json, and transformers cannot convert the rest: {_first_line(error)}",
            fix="pass the folder of the base model, or copy its tokenizer files into this one",
        ) from None
    backend = getattr(slow, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ModelError(
            "the tokenizer has no fast form",
            where=str(folder),
            why=f"{type(slow).__name__} is written in Python only",
            fix="convert it to tokenizer.json with transformers' `convert_slow_tokenizer`",
        )
    return backend


def _add_named_tokens(backend: tokenizers.Tokenizer, files: TokenizerFiles) -> None:
    """Add what the configuration names and the pipeline lacks, as transformers does on loading."""
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing: list[tokenizers.AddedToken] = []
    for content, options in files.added_tokens.items():
        if content not in present:
            missing.append(tokenizers.AddedToken(content, **options))
            present.add(content)
    if missing:
        backend.add_tokens(missing)


def _model_number(config: Mapping[str, Any], key: str) -> int | None:
    """A number of `config.json`; multimodal models keep the text model's under `text_config`."""
    for values in (config, config.get("text_config")):
        if isinstance(values, Mapping) and isinstance(values.get(key), int):
            return int(values[key])
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
