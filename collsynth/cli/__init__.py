"""The command line: one thin file a verb, loaded when it is called."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module

import click

from .. import __version__
from ..errors import CollsynthError

#: verb -> (module in this package, attribute, one-line help for the list)
_VERBS = {
    "topo": ("topo", "topo", "Show and list machine descriptions."),
    "bound": ("bound", "bound", "Provable lower bound on a collective's time, and why."),
    "synth": ("synth", "synth", "Make one verified schedule and write it in a runtime's format."),
    "verify": ("verify", "verify", "Prove a program: data, reduction, races, deadlock, limits."),
    "inspect": ("inspect", "inspect", "What a program is and when a runtime selects it."),
    "convert": ("convert", "convert", "From one format to another; says what is lost."),
    "simulate": ("simulate", "simulate", "Predicted time of programs and schedules on a machine."),
    "run": ("run", "run", "Run a program on real buffers and check the result."),
    "launch": ("launch", "launch", "Start a command under mpirun with what Open MPI needs."),
    "doctor": ("doctor", "doctor", "What is installed and usable here, and how to get what is not."),
}


class _Verbs(click.Group):
    """A group whose verbs are imported on first use, so that `--help` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _VERBS:
            return None
        module, attribute, _ = _VERBS[name]
        command = getattr(import_module(f"{__name__}.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, _, text) in _VERBS.items()])


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="collsynth")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Collective schedules for the machine you have: synthesized, proven, simulated, run.

    A topology (-t) is a built-in name with parameters (dgx-a100:nodes=2), a file in a supported
    format, or - for standard input.
    """
    ctx.ensure_object(dict)
    ctx.obj["debug"] = debug


#: What a shell reports of a process that SIGPIPE ended: whoever read our output has gone.
_READER_GONE = 141


def main(args: list[str] | None = None) -> None:
    """Entry point: run the command line; every expected error is one message and an exit code."""
    arguments = sys.argv[1:] if args is None else args
    debug = "--debug" in arguments
    if sys.stderr is None:  # closed by the caller: a file opened later must not become standard error
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for the life of the process)
    if sys.stdout is None:
        _complain("standard output is closed; expected a place to print to; try > /dev/null")
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a name that is no text (or no ASCII) must not end in a traceback
            stream.reconfigure(errors="backslashreplace")
    output = sys.stdout
    try:
        code = cli.main(args=arguments, prog_name="collsynth", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except click.ClickException as error:
        error.show()
        code = 2
    except click.Abort:
        _complain("interrupted")
        code = 130
    except CollsynthError as error:
        if debug:
            traceback.print_exc()
        _complain(str(error))
        code = error.exit_code
    except SystemExit as exit_:
        code = exit_.code
    except OSError as error:
        if debug:
            traceback.print_exc()
        _complain(f"{error.filename or 'input/output'}: {error.strerror or error}")
        code = 2
    except MemoryError:
        _complain("out of memory; try a smaller machine or fewer pieces")
        code = 2
    except Exception as error:
        if debug:
            traceback.print_exc()
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        _complain(
            f"internal error, a fault of collsynth, not of your input: {type(error).__name__}: {error} ({where}); "
            "try collsynth --debug ..., and report what it shows"
        )
        code = 2
    if sys.stdout is not output and type(sys.stdout).__module__.startswith("click"):
        # Click hides a broken pipe behind a wrapper and exit code 1, which would say "the answer is no".
        sys.stdout = output
        code = _READER_GONE
    sys.exit(_flush(code if isinstance(code, int) else 0))


def _complain(message: str) -> None:
    """The message on standard error, if anybody listens."""
    try:
        click.echo(f"collsynth: {message}", err=True)
    except OSError:
        return


def _flush(code: int) -> int:
    """Write out what is buffered; the exit code, which is another one where that cannot be done."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _READER_GONE
    except OSError as error:
        _complain(f"standard output: {error.strerror or error}")
        code = 2
    else:
        return code
    # What is left in the buffer goes nowhere: the interpreter would complain about it once more at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
