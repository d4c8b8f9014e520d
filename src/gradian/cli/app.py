"""The app: its commands by import path, so that `gradian --help` loads none of them, and what happens to errors."""

import io
import json
import os
import sys
import traceback
import warnings
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from gradian.errors import ConfigError, GradianError
from gradian.version import __version__

#: Command -> function. Loaded when the command is called.
COMMANDS = {
    "diagnose": "gradian.cli.diagnose:diagnose",
    "evaluate": "gradian.cli.evaluate:evaluate",
    "attribute": "gradian.cli.attribute:attribute",
    "index": "gradian.cli.index:index",
    "show-index": "gradian.cli.index:show_index",
    "show": "gradian.cli.show:show",
    "explain": "gradian.cli.explain:explain",
    "init-config": "gradian.cli.init_config:init_config",
    "doctor": "gradian.cli.doctor:doctor",
}
HELP = {
    "diagnose": "Find mechanical causes in rows, config, logs and adapter file: seconds, no GPU.",
    "evaluate": "Measure whether the capability got worse, on which items, beyond noise.",
    "attribute": "Say what broke the fine-tune: evaluate, audit, attribute to rows, report.",
    "index": "Compute the gradient of every training row, once.",
    "show-index": "Show what a gradient index holds.",
    "show": "Show a report again, in any format.",
    "explain": "Explain a check: what it means, why it hurts, how to fix it.",
    "init-config": "Write a commented gradian.yaml.",
    "doctor": "Show versions, devices, cache, and what is missing.",
}
INTERRUPTED = 130
CANNOT = 2


def make_app() -> App:
    """The command line, without any command loaded."""
    app = App(
        name="gradian",
        help="Find what broke a LoRA fine-tune, how sure that is, and what to change.",
        version=__version__,
        help_format="plaintext",
    )
    for name, path in COMMANDS.items():
        app.command(path, name=name, help=HELP[name])
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 ran, 1 found something at or above --fail-on, 2 could not be
    carried out, 130 interrupted.

    Args:
        argv: the arguments after the program's name; by default those of the process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments or os.environ.get("GRADIAN_DEBUG", "") not in ("", "0")
    arguments = [argument for argument in arguments if argument != "--debug"]
    if not debug:
        _quieten_libraries()
    as_json = "--json" in arguments
    _print_anything()
    try:
        result = make_app()(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except GradianError as error:
        return _report(error, as_json, debug)
    except CycloptsError as error:
        return _report(_as_config_error(error), as_json, debug, error)
    except KeyboardInterrupt:
        print(
            "\ninterrupted; what was computed is kept, and the same command goes on from there",
            file=sys.stderr,
        )
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away (gradian show ... | head). Nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _report(_unexpected(error), as_json, debug, error)
    return result if isinstance(result, int) else 0


def _report(error: GradianError, as_json: bool, debug: bool, raised: BaseException | None = None) -> int:
    """Print the error; `raised` is what it stands for, where that is another exception."""
    if debug:
        traceback.print_exception(raised or error.__cause__ or error.__context__ or error)
    if as_json:
        fields = {"what": error.what, "where": error.where, "why": error.why, "fix": error.fix}
        print(json.dumps({"error": fields}), file=sys.stderr)
    else:
        # A path or a row may hold anything: nothing of it may steer the terminal.
        text = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in str(error))
        print(f"error: {text}".encode(errors="replace").decode(), file=sys.stderr)
    return error.exit_code


def _as_config_error(error: CycloptsError) -> ConfigError:
    from pydantic import ValidationError

    from gradian.config import validation_error

    cause = error.__cause__
    if isinstance(cause, ValidationError):
        keys = {str(entry["loc"][0]) for entry in cause.errors() if entry["loc"]}
        return validation_error(cause, None, keys)
    return ConfigError(str(error).strip(), fix="gradian --help, or gradian COMMAND --help")


def _unexpected(error: Exception) -> GradianError:
    if isinstance(error, OSError) and error.strerror:
        where = str(error.filename) if error.filename else None
        return GradianError("the system refused", where=where, why=error.strerror)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return GradianError(
            "out of memory",
            why=str(error).splitlines()[0] if str(error) else None,
            fix="smaller batches: --eval-batch-size 4 --tokens-per-batch 512",
        )
    text = str(error).strip()
    return GradianError(
        f"internal error: {type(error).__name__}" + (f": {text.splitlines()[0]}" if text else ""),
        why="this is a fault of Gradian, not of your files",
        fix="run the command again with --debug and send us what it prints",
    )


def _print_anything() -> None:
    """Text of rows and models holds characters that a code page lacks: they are spelled out, and end no command."""
    for stream in (sys.stdout, sys.stderr):
        encoding = (getattr(stream, "encoding", None) or "").lower().replace("-", "").replace("_", "")
        if isinstance(stream, io.TextIOWrapper) and encoding != "utf8":
            stream.reconfigure(errors="backslashreplace")


def _quieten_libraries() -> None:
    # Their progress bars and notices would stand between the user and the result.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    warnings.simplefilter("ignore")
