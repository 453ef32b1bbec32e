"""The command `wecfl`. Bad input ends in one line on standard error and exit code 2.

At the top, a module of this room imports only what its flags and its lines of text need: cyclopts,
rich, and modules of `wecfl` that do not load NumPy. A command imports the rest in its body. So
`--help` and a misspelt flag are answered at once.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

from cyclopts import App, CycloptsError
from pydantic import ValidationError
from rich.box import SIMPLE_HEAD
from rich.table import Table

from wecfl import __version__
from wecfl.cli import terminal
from wecfl.cli.assign import assign
from wecfl.cli.data import data, partition
from wecfl.cli.deploy import deploy
from wecfl.cli.export import export
from wecfl.cli.flags import flag_of
from wecfl.cli.report import check, compare, report
from wecfl.cli.reproduce import reproduce
from wecfl.cli.run import resume, run
from wecfl.cli.serve import serve
from wecfl.config import Config
from wecfl.errors import WecflError
from wecfl.validation import one_line

__all__ = ["app", "main"]

app = App(
    name="wecfl",
    help="Clustered federated learning: find which clients learn alike, and train one good model "
    "per group.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # main() reports it
)
"""The command `wecfl` with its subcommands."""
for command in (
    run, resume, assign, export, serve, compare, check, report, data, partition, reproduce, deploy,
):  # fmt: skip
    app.command(command)


@app.command
def methods() -> None:
    """List the methods by family: what each is, how it differs from FedAvg, and its options."""
    from wecfl.methods import FAMILIES, differences, named
    from wecfl.methods import options as options_of

    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    table.add_column("method", style="bold", no_wrap=True)
    for head in ("what it is", "differs from FedAvg by", "options"):
        table.add_column(head)
    for family, members in FAMILIES.items():
        table.add_section()
        table.add_row(f"[italic]{family}[/italic]")
        for name, make in members.items():
            known = options_of(name)
            method = named(name, **({"k": 10} if "k" in known else {}))
            about = (make.__doc__ or "FedAvg: one model, the mean of all.").splitlines()[0]
            differing = "\n".join(f"{part} {value}" for part, value in differences(method).items())
            table.add_row(name, about, differing or "–", "  ".join(map(flag_of, known)) or "–")
    terminal.wide(table)


def main() -> None:
    """The entry point: every expected failure is one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no ± shows ?
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        terminal.fail(_flag_problem(error))
    except WecflError as error:
        terminal.fail(str(error))
    except KeyboardInterrupt:
        terminal.say("interrupted")
        sys.exit(130)
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has stopped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # a full disk, a name too long
        terminal.fail(str(error))


def _flag_problem(error: CycloptsError) -> str:
    cause = error.__cause__
    return (
        one_line(cause, Config.model_fields) if isinstance(cause, ValidationError) else str(error)
    )
