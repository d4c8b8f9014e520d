"""training_args.bin is read without executing any of it, whatever is in it."""

from __future__ import annotations

import collections
import contextlib
import io
import os
import pickle
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradian.run.artefact import ArtefactError
from gradian.run.training_args import MAX_FILE_BYTES, read_training_args

GLOBAL_ARGS = b"\x80\x02ctransformers.training_args\nTrainingArguments\n)\x81}X\x04\x00\x00\x00seedK\x07sb."


class RunsMkdir:
    """Pickles to a call of os.mkdir."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.folder,)


def zipped(pickled: bytes, name: str = "training_args/data.pkl", extra: int = 0) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, pickled)
        archive.writestr("training_args/version", "3")
        for number in range(extra):
            archive.writestr(f"training_args/data/{number}", "")
    return buffer.getvalue()


def write(folder: Path, data: bytes) -> Path:
    path = folder / "training_args.bin"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("fixture", "class_name", "length_key"),
    [
        ("trl-0.15.2", "trl.trainer.sft_config.SFTConfig", "max_seq_length"),
        ("trl-0.19.1", "trl.trainer.sft_config.SFTConfig", "max_length"),
        ("trl-0.24.0", "trl.trainer.sft_config.SFTConfig", "max_length"),
        ("trl-1.16.0", "trl.trainer.sft_config.SFTConfig", "max_length"),
        ("transformers-4.49.0", "transformers.training_args.TrainingArguments", None),
        ("transformers-5.24.0", "transformers.training_args.TrainingArguments", None),
    ],
)
def test_reads_what_real_trainers_wrote(
    runs: Path, fixture: str, class_name: str, length_key: str | None
) -> None:
    args = read_training_args(runs / fixture / "training_args.bin")
    assert args.class_name == class_name
    assert args.unsafe == ()
    assert args.values["learning_rate"] == 2e-4
    assert args.values["lr_scheduler_type"] == "linear"
    assert args.values["eval_strategy"] == "epoch"
    assert args.values["accelerator_config"]["even_batches"] is True
    assert args.values["seed"] == 7
    if length_key:
        assert args.values[length_key] == 64


def test_a_plain_pickle_of_the_old_format_is_read(tmp_path: Path) -> None:
    """torch.save before 1.6: magic number, protocol version, system information, then the object."""
    preamble = b"".join(
        pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
    )
    args = read_training_args(write(tmp_path, preamble + GLOBAL_ARGS + pickle.dumps([], 2)))
    assert args.class_name == "transformers.training_args.TrainingArguments"
    assert args.values == {"seed": 7}


def test_an_own_subclass_is_accepted(tmp_path: Path) -> None:
    pickled = GLOBAL_ARGS.replace(b"transformers.training_args\nTrainingArguments", b"__main__\nMyArguments")
    args = read_training_args(write(tmp_path, zipped(pickled)))
    assert args.class_name == "__main__.MyArguments"
    assert args.values == {"seed": 7}


def test_a_call_is_not_made(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    args = read_training_args(write(tmp_path, zipped(pickle.dumps(RunsMkdir(str(canary)), 2))))
    assert not canary.exists()
    assert args.unsafe == ("posix.mkdir",) or args.unsafe == ("nt.mkdir",)
    assert args.values == {}


def test_a_call_hidden_in_a_field_is_not_made_and_nothing_is_used(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    call = pickle.dumps(RunsMkdir(str(canary)), 2)[2:-1]
    pickled = GLOBAL_ARGS[:-2] + b"X\x04\x00\x00\x00evil" + call + b"sb."
    args = read_training_args(write(tmp_path, zipped(pickled)))
    assert not canary.exists()
    assert len(args.unsafe) == 1
    assert args.values == {}


@pytest.mark.parametrize(
    "module_and_name",
    [
        b"builtins\neval", b"builtins\ngetattr", b"os\nsystem", b"subprocess\nPopen", b"torch\nload",
        b"transformers.training_args\n__builtins__.eval", b"collections\nnamedtuple", b"my_module\nhelper",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "protocol", [b"\x80\x02c%s\n(X\x01\x00\x00\x001tR.", b"\x80\x02c%s\n)\x81.", b"(c%s\no."]
)
def test_names_outside_the_known_set_are_unsafe(
    tmp_path: Path, module_and_name: bytes, protocol: bytes
) -> None:
    args = read_training_args(write(tmp_path, zipped(protocol % module_and_name)))
    assert args.unsafe == (module_and_name.replace(b"\n", b".").decode(),)


def test_an_unsafe_name_before_damage_is_still_told(tmp_path: Path) -> None:
    args = read_training_args(write(tmp_path, zipped(b"\x80\x02cos\nsystem\n\xff")))
    assert args.unsafe == ("os.system",)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b"not a pickle", "not a readable pickle"),
        (zipped(b"\x80\x02]."), "holds a list"),
        (zipped(GLOBAL_ARGS, name="x/other"), "without data.pkl"),
        (zipped(GLOBAL_ARGS, extra=200), "entries"),
        (zipped(GLOBAL_ARGS)[:60], "damaged zip"),
        (zipped(b"(" * 2_000_000), "not a readable pickle"),
        (b"\x00" * (MAX_FILE_BYTES + 1), "larger than 4 MB"),
        (zipped(b"\x00" * (MAX_FILE_BYTES + 1)), "larger than 4 MB"),
        (zipped(b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f."), "not a readable pickle"),
    ],
    ids=[
        "empty",
        "text",
        "list",
        "no data.pkl",
        "many entries",
        "cut zip",
        "deep",
        "large",
        "bomb",
        "length",
    ],
)
def test_damage_is_one_clause(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(ArtefactError, match=why):
        read_training_args(write(tmp_path, data))


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02]r\xff\xff\xff\x7f.",  # a memo index of two thousand million
        b"\x80\x05\x96\x00\x00\x00\x00\x10\x00\x00\x00.",  # a bytearray of 64 GB
        b"\x80\x04\x8e\x00\x00\x00\x00\x10\x00\x00\x00.",  # bytes of 64 GB
    ],
    ids=["memo", "bytearray", "bytes"],
)
def test_claims_of_size_take_no_memory(tmp_path: Path, pickled: bytes) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArtefactError):
        read_training_args(write(tmp_path, zipped(pickled)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_a_value_that_refers_to_itself_ends(tmp_path: Path) -> None:
    loop: list[object] = []
    loop.append(loop)
    call = pickle.dumps(loop, 2)[2:-1]
    args = read_training_args(
        write(tmp_path, zipped(GLOBAL_ARGS[:-2] + b"X\x04\x00\x00\x00loop" + call + b"sb."))
    )
    assert args.values["seed"] == 7


def test_containers_are_plain(tmp_path: Path) -> None:
    value = {"a": collections.OrderedDict(x=1), "b": {3, 1, 2}, "c": (1.5, None)}
    call = pickle.dumps(value, 2)[2:-1]
    args = read_training_args(
        write(tmp_path, zipped(GLOBAL_ARGS[:-2] + b"X\x01\x00\x00\x00v" + call + b"sb."))
    )
    assert args.values["v"]["c"] == [1.5, None]


@settings(max_examples=200, deadline=None)
@given(
    data=st.binary(max_size=400),
    wrap=st.booleans(),
    start=st.sampled_from([b"", b"\x80\x02", GLOBAL_ARGS[:40]]),
)
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, wrap: bool, start: bytes
) -> None:
    path = write(tmp_path_factory.mktemp("args"), zipped(start + data) if wrap else start + data)
    with contextlib.suppress(ArtefactError):
        args = read_training_args(path)
        assert not (args.unsafe and args.values)
