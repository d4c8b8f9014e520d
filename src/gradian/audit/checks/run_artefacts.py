"""The files of the run folder: none known, damaged, unsafe, left unread, two models in one folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.wording import plural
from gradian.run.adapter import PICKLE_NAMES, WEIGHTS_NAME

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext


@check(
    "run.not_found",
    title="Nothing of a training run in the folder",
    severity=Severity.ERROR,
    needs=(Need.RUN,),
    explain="""
The folder given as `--run` holds no file that a trainer writes: no adapter, no log, no settings. Usually it
is the folder above or below the right one.

**Fix.** The trainer's `output_dir`, one of its `checkpoint-N` folders, or the adapter's folder.
""",
)
def not_found(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    if run.artefacts or run.problems or run.full_weights or run.checkpoints:
        return
    yield Observation(
        title=f"No artefact of a training run in {context.inputs.run}",
        fix=Fix(
            text="give the trainer's output_dir, one of its checkpoint-N folders, or the adapter's folder"
        ),
    )


@check(
    "run.unknown_trainer",
    title="The trainer is not known",
    severity=Severity.INFO,
    needs=(Need.RUN,),
    explain="""
No file says which trainer wrote the run, so that the rules for cutting rows, for EOS and for the loss mask
are assumed to be those of the latest TRL. The findings that depend on it say so.

**Fix.** `--trainer`, for example `--trainer trl==0.16.0`.
""",
)
def unknown_trainer(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    if context.profile.trainer != "unknown" or not run.artefacts:
        return
    yield Observation(
        title="No file says which trainer wrote the run; the rules of the latest TRL are assumed",
        values={"read": list(run.artefacts[:20])},
        fix=Fix(text="--trainer NAME==VERSION"),
    )


@check(
    "run.unsafe_pickle",
    title="A pickle that refers to unknown code",
    severity=Severity.WARNING,
    needs=(Need.RUN,),
    explain="""
`training_args.bin` is a pickle: loading it with `torch.load` or `pickle.load` calls whatever it names. This
one names something that trainers do not write. Gradian reads pickles without executing anything, and does
not use the values of such a file.

It may be harmless (an argument of a class of your own) or an attack. Do not load it before you know.

**Fix.** If it is yours, keep a `training_args` that holds plain values; if not, delete it.

Source: Python documentation, `pickle` (warning).
""",
)
def unsafe_pickle(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    for problem in run.problems:
        if problem.kind == "unsafe_pickle":
            yield Observation(
                title=f"{problem.path} {problem.why}",
                values={"file": problem.path},
                locations=(problem.path,),
                fix=Fix(text=f"do not load {problem.path}; delete it if you do not know where it is from"),
            )


@check(
    "run.unreadable",
    title="A file of the run cannot be read",
    severity=Severity.WARNING,
    needs=(Need.RUN,),
    explain="""
A file that a trainer writes is there and is damaged, so that its part of the diagnosis is missing: cut short
by a full disk, not the format that its name says, or without permission.

**Fix.** Copy the file again.
""",
)
def unreadable(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    found = [
        problem for problem in run.problems
        if problem.kind == "unreadable" and not problem.path.endswith(WEIGHTS_NAME)
    ]  # fmt: skip
    if not found:
        return
    yield Observation(
        title=f"{found[0].path} {found[0].why}" + (f", and {len(found) - 1} more" if len(found) > 1 else ""),
        message=" ".join(f"{problem.path} {problem.why}." for problem in found[1:6]),
        count=len(found),
        values={"files": {problem.path: problem.why for problem in found}},
        locations=tuple(problem.path for problem in found[:20]),
        fix=Fix(text="copy the file again from where it was trained"),
    )


@check(
    "run.not_read",
    title="Files of the run were left unread",
    severity=Severity.INFO,
    needs=(Need.RUN,),
    explain="""
What was found and deliberately not used: more files than are looked at, or the configuration of another
trainer than the one that was detected first.
""",
)
def not_read(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    found = [
        problem
        for problem in run.problems
        if problem.kind == "not_read" and not problem.path.endswith(PICKLE_NAMES)
    ]
    if not found:
        return
    yield Observation(
        title=f"{plural(len(found), 'file')} left unread: {found[0].path} {found[0].why}",
        count=len(found),
        values={"files": {problem.path: problem.why for problem in found[:50]}},
        locations=tuple(problem.path for problem in found[:20]),
    )


@check(
    "run.remote_code",
    title="Code from the model's repository was run",
    severity=Severity.INFO,
    needs=(Need.SETTINGS,),
    explain="""
`trust_remote_code: true` runs Python files from the model's repository. The model may behave otherwise than
its type in transformers suggests, and the result depends on a revision of code that is not in the run
folder. Gradian never runs such code.

**Fix.** Pin the revision; leave it off for models that transformers has.
""",
)
def remote_code(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    if run.settings.flag("trust_remote_code") is not True:
        return
    setting = run.settings.setting("trust_remote_code")
    assert setting is not None
    yield Observation(
        title=f"trust_remote_code is on in {setting.file}",
        values={"trust_remote_code": True},
        locations=(setting.file,),
        fix=Fix.change("trust_remote_code", True, False, file=setting.file),
    )


@check(
    "run.merged_and_adapter",
    title="Full weights and an adapter in one folder",
    severity=Severity.INFO,
    needs=(Need.ADAPTER,),
    explain="""
The folder holds both a whole model and an adapter. `from_pretrained` on it loads one of them depending on
the library. Gradian looks at the adapter. A merged model with the adapter loaded on top has the update twice.

**Fix.** Two folders.
""",
)
def merged_and_adapter(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    assert run.adapter is not None
    if not run.full_weights or run.adapter.name != ".":
        raise NotApplicableError("no full weights beside the adapter")
    yield Observation(
        title=f"{run.full_weights[0]} lies beside the adapter; the adapter was inspected",
        values={"full_weights": list(run.full_weights)},
        locations=run.full_weights[:5],
        fix=Fix(text="keep the merged model in another folder"),
    )
