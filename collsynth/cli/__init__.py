"""The command line: one thin file a verb, loaded when it is called."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module

import click

from .. import __version__
from ..errors import CollsynthError

#: verb -> (module in this package, attribute, one-line help for the list)
_VERBS = {
    "topo": ("topo", "topo", "Show, list and check machine descriptions."),
    "bound": ("bound", "bound", "Provable lower bound on a collective's time, and why."),
    "synth": ("synth", "synth", "Make one verified schedule and write it in a runtime's format."),
    "verify": ("verify", "verify", "Prove a program: data, reduction, races, deadlock, limits."),
    "inspect": ("inspect", "inspect", "What a program is and when a runtime selects it."),
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


def main(args: list[str] | None = None) -> None:
    """Entry point: run the command line; every expected error is one message and an exit code."""
    arguments = sys.argv[1:] if args is None else args
    debug = "--debug" in arguments
    try:
        code = cli.main(args=arguments, prog_name="collsynth", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except click.ClickException as error:
        error.show()
        code = 2
    except click.Abort:
        click.echo("collsynth: interrupted", err=True)
        code = 130
    except CollsynthError as error:
        if debug:
            traceback.print_exc()
        click.echo(f"collsynth: {error}", err=True)
        code = error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        code = 0
    except OSError as error:
        if debug:
            traceback.print_exc()
        click.echo(f"collsynth: {error.filename or 'input/output'}: {error.strerror or error}", err=True)
        code = 2
    except MemoryError:
        click.echo("collsynth: out of memory; try a smaller machine or fewer pieces", err=True)
        code = 2
    sys.exit(code if isinstance(code, int) else 0)
