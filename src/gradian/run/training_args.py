"""The settings in `training_args.bin`, read without executing anything.

The file is a pickle written by `torch.save`: a zip archive with `<stem>/data.pkl`, or before torch 1.6 a bare
stream of pickles. Loading a pickle calls whatever it names, so here every name becomes an inert stand-in
class and nothing of the file's choosing is ever imported or called. Names outside the set that trainers
write make the file *unsafe*: it is reported and its values are not used.

Defaults are not filled in: a field that the file does not hold is absent.
"""

from __future__ import annotations

import io
import pickle
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from gradian.run.artefact import ArtefactError, read_bytes

MAX_FILE_BYTES = 4 * 1024 * 1024  # the real ones are 2 to 10 kB
MAX_ZIP_ENTRIES = 100
LEGACY_PREAMBLE = 3  # magic number, protocol version, system information come before the object

#: What trainers' argument files refer to besides the argument class itself. `module` -> names.
KNOWN_NAMES: Mapping[str, frozenset[str]] = {
    "transformers.trainer_utils": frozenset(
        {"IntervalStrategy", "SchedulerType", "HubStrategy", "SaveStrategy", "FSDPOption",
        "EvaluationStrategy",
         "ShardedDDPOption"}
    ),
    "transformers.training_args": frozenset({"OptimizerNames", "ParallelMode"}),
    "transformers.trainer_pt_utils": frozenset({"AcceleratorConfig"}),
    "transformers.utils.quantization_config": frozenset({"BitsAndBytesConfig", "QuantizationMethod"}),
    "transformers.debug_utils": frozenset({"DebugOption"}),
    "transformers.deepspeed": frozenset({"HfTrainerDeepSpeedConfig"}),
    "transformers.integrations.deepspeed": frozenset({"HfTrainerDeepSpeedConfig"}),
    "accelerate.state": frozenset({"PartialState"}),
    "accelerate.parallelism_config": frozenset({"ParallelismConfig"}),
    "accelerate.utils.dataclasses": frozenset(
        {"DistributedType", "DeepSpeedPlugin", "FullyShardedDataParallelPlugin", "GradientAccumulationPlugin"}
    ),
    "accelerate.utils.deepspeed": frozenset({"HfDeepSpeedConfig"}),
    "peft.tuners.lora.config": frozenset({"LoraConfig", "LoraRuntimeConfig"}),
    "peft.utils.peft_types": frozenset({"PeftType", "TaskType"}),
    "torch": frozenset({"device", "float16", "float32", "bfloat16", "dtype", "Size"}),
    "torch.distributed.fsdp": frozenset({"ShardingStrategy", "BackwardPrefetch"}),
    "torch.distributed.fsdp.api": frozenset({"ShardingStrategy", "StateDictType"}),
    "torch.distributed.fsdp.fully_sharded_data_parallel": frozenset({"ShardingStrategy", "BackwardPrefetch"}),
    "datetime": frozenset({"timedelta"}),
    "collections": frozenset({"OrderedDict", "defaultdict"}),
    "pathlib": frozenset({"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"}),
    "builtins": frozenset({"set", "frozenset", "dict", "list", "object", "int", "float", "str", "bool"}),
    "__builtin__": frozenset({"set", "frozenset", "dict", "list", "object"}),  # written under protocol 2
    "copyreg": frozenset({"_reconstructor"}),
    "copy_reg": frozenset({"_reconstructor"}),
    "_codecs": frozenset({"encode"}),
}  # fmt: skip

#: Argument classes. Others are accepted when they are the root object and no part of the standard library:
#: people subclass TrainingArguments in their own modules.
ARGUMENT_CLASS = re.compile(
    r"^(transformers\.training_args(_seq2seq)?|trl\.trainer\.\w+_config|trl\.experimental\.[\w.]+"
    r"|Unsloth\w+Trainer|(unsloth|llamafactory|llmtuner|axolotl|swift)\.[\w.]+)$"
)
_IDENTIFIER = re.compile(r"^[A-Za-z_][\w.]*$")


@dataclass(frozen=True)
class TrainingArgs:
    """What a training_args.bin says.

    Attributes:
        class_name: `module.Class` of the arguments, e.g. `trl.trainer.sft_config.SFTConfig`; "" when there
        is none.
        values: field -> value for the fields whose value is plain data (enums as their text).
        unsafe: names outside the known set, sorted; not empty means `values` is empty.
    """

    class_name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    unsafe: tuple[str, ...] = ()


class Inert:
    """Stands in for every class and function that a pickle names. It keeps its arguments and state as
    data.
    """

    pickled_name = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Inert:
        self = super().__new__(cls)
        self.arguments = args
        self.state = {}
        self.items = []
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.arguments: tuple[Any, ...]
        self.state: dict[Any, Any]
        self.items: list[Any]

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.state.update(part)

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))


#: Opcodes that trainers' files do not hold and that could allocate what they claim, or look into a registry.
REFUSED_OPCODES = (
    pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER, pickle.EXT1, pickle.EXT2, pickle.EXT4,
)  # fmt: skip


class InertUnpickler(pickle._Unpickler):
    """An unpickler that imports nothing: `find_class` makes a stand-in of the name and records it.

    It is the one written in Python. The one in C keeps its memo in an array, which a file of twenty bytes can make
    tens of gigabytes long (`LONG_BINPUT` with a large index); here the memo is a dict.
    """

    dispatch: ClassVar[dict[int, Callable[[pickle.Unpickler], None]]] = {
        opcode: load for opcode, load in pickle._Unpickler.dispatch.items()
        if opcode not in {refused[0] for refused in REFUSED_OPCODES}
    }  # fmt: skip

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.names: list[tuple[str, str]] = []

    def find_class(self, module: str, name: str) -> type[Inert]:
        self.names.append((module, name))
        return type("Inert", (Inert,), {"pickled_name": f"{module}.{name}", "__slots__": ()})

    def persistent_load(self, pid: Any) -> None:
        return None


def read_training_args(path: Path) -> TrainingArgs:
    """Reads a `training_args.bin`. Raises ArtefactError when it is damaged, too large or no such file."""
    data = read_bytes(path, MAX_FILE_BYTES)
    if not data:
        raise ArtefactError("is empty")
    stream = io.BytesIO(_zip_member(data)) if data[:4] == b"PK\x03\x04" else io.BytesIO(data)
    names: list[tuple[str, str]] = []
    try:
        root = _load(stream, names)
        if isinstance(root, int) and data[:4] != b"PK\x03\x04":
            for _ in range(LEGACY_PREAMBLE):
                root = _load(stream, names)
    except Exception as error:
        # The file decides what goes wrong here (a bad opcode, a hostile length, deep nesting), and an unsafe
        # name met before the damage is the more useful thing to say.
        unsafe = _unsafe_names(names, None)
        if unsafe:
            return TrainingArgs("", unsafe=unsafe)
        raise ArtefactError(f"is not a readable pickle ({type(error).__name__})") from None
    unsafe = _unsafe_names(names, root)
    class_name = root.pickled_name if isinstance(root, Inert) else ""
    if unsafe:
        return TrainingArgs(class_name, unsafe=unsafe)
    if not isinstance(root, Inert):
        raise ArtefactError(f"holds a {type(root).__name__}, not training arguments")
    values = {
        key: plain for key, value in root.state.items() if isinstance(key, str)
        for plain in [_plain(value, depth=0)] if plain is not _NOT_PLAIN
    }  # fmt: skip
    return TrainingArgs(class_name, values)


def _zip_member(data: bytes) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            if len(infos) > MAX_ZIP_ENTRIES:
                raise ArtefactError(
                    f"is a zip archive of {len(infos)} entries, training arguments have about 6"
                )
            member = next((info for info in infos if info.filename.rsplit("/", 1)[-1] == "data.pkl"), None)
            if member is None:
                raise ArtefactError("is a zip archive without data.pkl")
            with archive.open(member) as stream:
                pickled = stream.read(MAX_FILE_BYTES + 1)
    except ArtefactError:
        raise
    except Exception as error:  # zipfile raises a dozen kinds on damaged archives
        raise ArtefactError(f"is a damaged zip archive ({type(error).__name__})") from None
    if len(pickled) > MAX_FILE_BYTES:
        raise ArtefactError("holds a data.pkl larger than 4 MB, which no trainer writes")
    return pickled


def _load(stream: io.BytesIO, names: list[tuple[str, str]]) -> Any:
    unpickler = InertUnpickler(stream)
    unpickler.names = names
    return unpickler.load()


def _unsafe_names(names: list[tuple[str, str]], root: Any) -> tuple[str, ...]:
    """Names outside the known set. An argument class of the user's own is accepted as the root object
    only.
    """
    root_name = root.pickled_name if isinstance(root, Inert) and root.state and not root.arguments else None
    unsafe = set()
    for module, name in names:
        if name in KNOWN_NAMES.get(module, ()):
            continue
        full = f"{module}.{name}"
        well_formed = bool(_IDENTIFIER.match(module) and _IDENTIFIER.match(name)) and "." not in name
        if well_formed and ARGUMENT_CLASS.match(module):
            continue
        standard_library = module.split(".", 1)[0] in sys.stdlib_module_names and module != "__main__"
        if well_formed and full == root_name and not standard_library:
            continue
        unsafe.add(full)
    return tuple(sorted(unsafe))


_NOT_PLAIN = object()


def _plain(value: Any, depth: int) -> Any:
    """Numbers, texts, booleans, None, and lists and dicts of them; an enum member as its text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth > 6:  # settings are shallow; self-referring containers would never end
        return _NOT_PLAIN
    if isinstance(value, Inert):
        known_enum = len(value.arguments) == 1 and isinstance(value.arguments[0], str) and not value.state
        if known_enum:
            return value.arguments[0]
        return _plain(dict(value.state), depth + 1) if value.state else _NOT_PLAIN
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_plain(item, depth + 1) for item in value]
        ordered = sorted(items, key=str) if isinstance(value, (set, frozenset)) else items
        return [item for item in ordered if item is not _NOT_PLAIN]
    if isinstance(value, dict):
        pairs = {key: _plain(item, depth + 1) for key, item in value.items() if isinstance(key, str)}
        return {key: item for key, item in pairs.items() if item is not _NOT_PLAIN}
    return _NOT_PLAIN
