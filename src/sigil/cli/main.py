"""The `sigil` command: what it offers, and how every outcome becomes an exit status.

Commands import torch and everything heavy inside their own functions, so that `sigil --help` and
shell completion answer at once.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from sigil import extras
from sigil.cli import attack, copies, data, detect, evidence, key, report, serve, train, verify
from sigil.cli.terminal import printable
from sigil.cli.train import Interrupted
from sigil.errors import SigilError
from sigil.version import __version__

INTERRUPTED = 130
PIPE_CLOSED = 141
BUG = 70
_NOTHING_MORE = "Interrupted: nothing more was done."

# Newer releases of typer carry their own copy of click; this finds the right class in all of them.
_UsageError = cast(
    type[typer.BadParameter],
    next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"),
)

app = typer.Typer(
    name="sigil",
    rich_markup_mode="rich",
    # A traceback with local variables could show a key's seed.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.add_typer(key.app, name="key")
app.command()(verify.verify)
copies.register(app)
app.add_typer(evidence.app, name="evidence")
app.add_typer(data.app, name="data")
for command in (train.train, serve.serve, serve.join, train.demo):
    app.command()(command)
attack.register(app)
app.command()(detect.detect)
report.register_reproduce(app)
app.command()(report.report)
app.command()(report.card)


def _version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        typer.echo(f"sigil {__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Prove who owns a model that was trained by split federated learning.

    Make a key and publish its commitment before training:
      sigil key new owner.key --owner "ACME" --shape 256,8,8
      sigil key commit owner.key

    Train with the mark, or see the whole story on embedded data:
      sigil train -o runs/a --key owner.key --set data.name=cifar10
      sigil demo

    Test a suspect model, and keep the result:
      sigil verify suspect.safetensors --key owner.key
      sigil verify suspect.safetensors --key owner.key --report page.html

    Check somebody else's evidence, offline and without their key:
      sigil evidence check case.json --statement published.txt

    Exit status: 0 done or owned, 1 not owned or a check failed, 2 bad input.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(argv: list[str] | None = None) -> int:
    """Run one `sigil` command and return its exit status.

    0 is done or owned, 1 not owned or a check that failed, 2 bad use or bad input with one sentence
    on standard error. Anything else is outside the contract on purpose, so that no accident can be
    taken for a verdict: 130 interrupted, 141 the reader of the output went away, 70 a bug in Sigil.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if any("\0" in argument for argument in arguments):
        _complain(
            "An argument contains a null character, which no name of a file or of anything else can have."
        )
        return 2
    try:
        command = typer.main.get_command(app)
        # The arguments are also the context's object: evidence records the command that made it.
        result = command.main(args=arguments, prog_name="sigil", standalone_mode=False, obj=tuple(arguments))
        sys.stdout.flush()
    except SigilError as error:
        _complain(str(error))
        return 2
    except _UsageError as error:
        if getattr(error, "possibilities", None):  # Click will suggest these itself, after typer did
            cast(Any, error).message = error.message.partition(" Did you mean")[0]
        error.show()
        return 2
    except Interrupted as stop:
        _complain(str(stop))
        return INTERRUPTED
    except (typer.Abort, KeyboardInterrupt):
        _complain(_NOTHING_MORE)
        return INTERRUPTED
    except BrokenPipeError:
        return _pipe_closed()
    except SystemExit as stop:
        # Typer answers a closed pipe with status 1, which here would read as "not owned".
        if isinstance(stop.__context__, BrokenPipeError):
            return _pipe_closed()
        raise
    except ModuleNotFoundError as error:
        missing = extras.explain(error)
        if missing is None:
            return _bug()
        _complain(str(missing))
        return 2
    except OSError as error:
        if not _refused(error, arguments):
            return _bug()
        which = "" if error.filename is None else f"{error.filename} cannot be used: "
        _complain(f"{which}{error.strerror}; choose another name or place.")
        return 2
    except Exception:
        return _bug()
    if result == INTERRUPTED:  # some releases of typer turn Ctrl-C into this, without a word
        _complain(_NOTHING_MORE)
    return result if isinstance(result, int) else 0


# What a system answers to a call that is right: no space, no right, a name of thousands of characters.
_REFUSALS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO),
        *(errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP),
    }
)


def _refused(error: OSError, arguments: Sequence[str]) -> bool:
    """Whether the system refused something that the caller asked for: anything else is a bug of ours.

    A file that does not exist, or is a folder, is the caller's if the call names it, to the letter. What lies
    beside or below a named place was our own doing.
    """
    if error.errno in _REFUSALS:
        return True
    named = {value for argument in arguments for value in (argument, argument.partition("=")[2])}
    return error.filename is not None and os.fsdecode(error.filename) in named


def _bug() -> int:
    """Show what went wrong inside Sigil itself."""
    traceback.print_exc()
    _complain("This is a bug in Sigil: please report the lines above.")
    return BUG


def _complain(sentence: str) -> None:
    """Print one sentence on standard error, without control characters from a file's name."""
    typer.echo(f"sigil: {printable(sentence)}", err=True)


def _pipe_closed() -> int:
    """Make sure that Python's own flush at exit does not complain a second time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED


if __name__ == "__main__":
    sys.exit(main())
