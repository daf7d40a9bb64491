"""The command `kvlearn`."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import kvlearn
from kvlearn import doctor as examination

app = typer.Typer(
    help="Build the KV cache from a dot product up.", no_args_is_help=True, add_completion=False
)
STYLES = {examination.GOOD: "green", examination.NOTE: "yellow", examination.MISSING: "bold red"}


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kvlearn {kvlearn.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Build the KV cache from a dot product up, and run a real language model through your own code."""


@app.command()
def doctor() -> None:
    """Say what is on this machine, and what to do about what is not. Exit code 1: the course cannot run."""
    findings = list(examination.examine())
    table = Table("", "found", "", box=None, pad_edge=False)
    for finding in findings:
        found = Text(finding.found)  # as it is: a path may hold what rich takes for markup
        table.add_row(finding.subject, found, finding.state, style=STYLES[finding.state])
    console = Console(highlight=False)
    console.print(table)
    for finding in findings:
        if finding.advice:
            # Sentences stand below the table, unwrapped: a command in them can be copied whole.
            console.print(f"\n{finding.subject}: {finding.advice}", markup=False, soft_wrap=True)
    missing = any(finding.state == examination.MISSING for finding in findings)
    console.print("\nThe course cannot run yet." if missing else "\nThe course can run.")
    raise typer.Exit(int(missing))
