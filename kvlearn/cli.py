"""The command `kvlearn`."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import kvlearn
from kvlearn import doctor as examination
from kvlearn import sizing
from kvlearn.size_command import read_napkin

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


def _option(text: str, *names: str):
    return typer.Option(*names, help=text)


@app.command()
def size(
    model: Annotated[str, typer.Argument(help="A known model, such as llama-3.1-70b, or a config.json.")],
    context: Annotated[
        str | None, _option("Tokens in each sequence: 128k. Default: the model's most.")
    ] = None,
    batch: Annotated[int, _option("Sequences side by side.")] = 1,
    cache: Annotated[str, _option(f"What the cache stores: {', '.join(sizing.CACHE_TYPES)}.")] = "bf16",
    weights: Annotated[str, _option("What the weights are stored in.")] = "bf16",
    memory: Annotated[str | None, _option('Memory of one device: 141GB, "80 GB", 40GiB.')] = None,
    gpu: Annotated[str | None, _option(f"Or a card: {', '.join(sizing.gpus())}.")] = None,
    block: Annotated[int | None, _option("Tokens in a block, where memory comes in whole blocks.")] = None,
    ranks: Annotated[int, _option("Tensor-parallel ranks; sizes are then those of one.")] = 1,
    parameters: Annotated[str | None, _option("How many weights: 8B. Where they are not known.")] = None,
    group: Annotated[int | None, _option("Numbers that share a scale, for int types.")] = None,
    residual: Annotated[int | None, _option("Latest tokens kept in full, for int types.")] = None,
    as_json: Annotated[bool, _option("Numbers for scripts, in bytes.", "--json")] = False,
) -> None:
    """How many bytes a model's cache takes, and what fits: a table to paste into a design document."""
    try:
        napkin = read_napkin(
            model, context, batch, cache, weights, memory, gpu, block, ranks, parameters, group, residual
        )
        answer = json.dumps(napkin.numbers(), indent=2) if as_json else napkin.text()
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(answer)


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
)
def classroom(context: typer.Context) -> None:
    """For instructors: release the exercises, collect, grade, explain. Needs nbgrader."""
    try:
        from kvlearn.classroom import command
    except ImportError as error:
        advice = "Run `pip install -e '.[classroom]'` in the folder of the course."
        typer.echo(f"kvlearn classroom needs nbgrader ({error}). {advice}", err=True)
        raise typer.Exit(2) from None
    command.app(args=context.args, prog_name="kvlearn classroom")
