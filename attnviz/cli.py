"""The command line: parse, call, hand over.

Data goes to standard output, progress and messages to standard error. Everything heavy is imported
inside the command, so that ``attnviz --help`` answers at once.
"""

import gc
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnviz import __version__
from attnviz.errors import AttnvizError, OutputError, TextError, UsageError

if TYPE_CHECKING:
    from attnviz.analysis import Analysis
    from attnviz.export import OutputFolder

__all__ = ["app", "main"]

app = typer.Typer(
    name="attnviz",
    help="What the attention heads of a pretrained BERT or GPT-2 do: recomputed, verified, drawn and labelled.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_INTERRUPTED = 130
_FARTHEST = 1_000_000
_NARROWEST = 80
_SELDOM = (50_000, 20, 100)  # loading makes a million objects that all stay: collecting often costs a second


def main() -> None:
    """The console script ``attnviz``."""
    gc.set_threshold(*_SELDOM)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 gets ? for what it cannot show
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnviz {__version__}")
        raise typer.Exit


@app.callback()
def _attnviz(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """What the attention heads of a pretrained BERT or GPT-2 do: recomputed, verified, drawn and labelled."""


@app.command()
def heads(
    text: Annotated[str, typer.Argument(help="The sentence; - reads standard input.", show_default=False)],
    model: Annotated[
        str, typer.Option("--model", "-m", help="Built-in name (minilm), checkpoint folder, or hub id.")
    ] = "minilm",
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of a hub model.", show_default=False)
    ] = None,
    pair: Annotated[
        str | None, typer.Option(help="A second segment (BERT: token types 0 and 1).", show_default=False)
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            help="Heads to draw and list: L2H8, 2.8, L2 (a layer), L0-3, L*H8. Repeatable; default all.",
            show_default=False,
        ),
    ] = None,
    words: Annotated[
        bool, typer.Option("--words", help="Merge word pieces into words: sum over keys, mean over queries.")
    ] = False,
    local_window: Annotated[
        int, typer.Option(min=0, max=_FARTHEST, help="Largest distance that is local, in tokens (words with --words).")
    ] = 1,
    long_range_from: Annotated[
        int, typer.Option(min=1, max=_FARTHEST, help="Smallest distance that is long-range, likewise.")
    ] = 4,
    figures: Annotated[
        str, typer.Option(help="Any of overview, heads (with commas between); all; none.")
    ] = "overview,heads",
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="png, svg or pdf. Repeatable; default png.", show_default=False),
    ] = None,
    save_attention: Annotated[
        bool, typer.Option("--save-attention", help="Also write attention.safetensors, a tensor a layer.")
    ] = False,
    syntax: Annotated[
        bool, typer.Option("--syntax/--no-syntax", help="Parse the text, where spaCy and a pipeline are installed.")
    ] = True,
    parser: Annotated[
        str | None,
        typer.Option(help="spaCy pipeline to parse with; default an installed English one.", show_default=False),
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut a text that is longer than the model instead of refusing it.")
    ] = False,
    device: Annotated[str, typer.Option("--device", "-d", help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")] = "float32",
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="Folder for the results; default attnviz-out/MODEL.", show_default=False),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Heads in the table, clearest first; 0 for all.")] = 12,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the document of heads.json, and nothing else.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables, no progress, no messages.")] = False,
) -> None:
    """Verify, measure and draw every attention head on one text.

    Writes overview.png, heads/L00H00.png …, heads.json and heads.csv, and prints tables.
    Exit codes: 0 done, 1 an error to mend, 2 wrong usage, 3 the heads do not reproduce the model,
    130 interrupted.
    """
    with _errors_to_exit_codes() as outcome:
        sentence = _read_text(text)
        pair = None if pair is None else _decoded("--pair", pair)
        if out is not None and not out.strip():
            raise UsageError("-o is empty; expected a folder (. for this one).")
        from attnviz.sources import find_checkpoint

        source = find_checkpoint(model, revision)
        wanted_figures, wanted_formats = _figure_sets(figures), _split(formats) or ["png"]
        from attnviz.export import OutputFolder

        folder = Path(out) if out is not None else _default_folder(model)
        with OutputFolder(folder) as output, _progress(quiet) as progress:
            outcome.folder = output
            progress("loading", 0, 0)
            from attnviz.analysis import analyze, check_figures

            check_figures(wanted_figures, wanted_formats)
            analysis = analyze(
                sentence,
                source,
                pair=pair,
                device=device,
                dtype=dtype,
                words=words,
                local_window=local_window,
                long_range_from=long_range_from,
                syntax=syntax,
                parser=parser,
                truncate=truncate,
                progress=progress,
            )
            content = analysis.write(
                output,
                select=select or (),
                figures=wanted_figures,
                formats=wanted_formats,
                save_attention=save_attention,
                progress=progress,
            )
            document = output.commit(content)
        with _printing(folder):
            _print_results(analysis, document, select or [], top, as_json, quiet)
        if not quiet:
            removed = f"; removed {output.removed} files of an earlier run there" if output.removed else ""
            typer.echo(f"Wrote {output.count} files to {_printable(str(folder))}{removed}", err=True)


def _print_results(
    analysis: "Analysis", document: dict[str, Any], select: list[str], top: int, as_json: bool, quiet: bool
) -> None:
    if as_json:
        from attnviz.export import json_text

        sys.stdout.write(json_text(document))
    elif not quiet:
        from rich.console import Console

        from attnviz.tables import report

        console = Console(highlight=False)
        console.width = max(console.width, _NARROWEST)  # better over the edge than with numbers cut short
        console.print(report(analysis, analysis.select(select), top=top, width=console.width))
    sys.stdout.flush()


@contextmanager
def _printing(folder: Path) -> Iterator[None]:
    """Printing may fail after the files are written: the reader went away, or the disk is full."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError(f"cannot print the results: {error.strerror}; the files in {folder} are complete.") from error


@dataclass
class _Outcome:
    """How far a command came: the folder that it writes to, once there is one."""

    folder: "OutputFolder | None" = None


@contextmanager
def _errors_to_exit_codes() -> Iterator[_Outcome]:
    """One line on standard error for what the user can mend; 130 for Ctrl-C; bugs keep their traceback."""
    outcome = _Outcome()
    try:
        yield outcome
    except AttnvizError as error:
        typer.echo(f"attnviz: {_printable(str(error))}", err=True)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        written = outcome.folder is not None and outcome.folder.committed
        typer.echo(f"attnviz: interrupted; {'all files were written' if written else 'nothing was written'}.", err=True)
        raise typer.Exit(_INTERRUPTED) from error


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A progress display on standard error; silent where that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as display:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = display.add_task(what, total=total or None)
            display.update(tasks[what], completed=done, total=total or None)

        yield tell


def _read_text(text: str) -> str:
    if text != "-":
        text = _decoded("TEXT", text)
        if not text.strip():
            raise TextError("TEXT is empty or blank; expected a sentence, or - to read standard input.")
        return text
    if sys.stdin is None:
        raise TextError("standard input is closed; expected a sentence on it, or as TEXT.")
    data = sys.stdin.buffer.read()
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(
            f"standard input is not valid UTF-8: found byte 0x{data[error.start]:02x} at byte {error.start}; "
            "convert it, for example: iconv -f latin1 -t utf-8"
        ) from error
    if not content.strip():
        raise TextError("standard input is empty or blank; expected a sentence.")
    return content.removesuffix("\n").removesuffix("\r")


def _decoded(name: str, text: str) -> str:
    """An argument as UTF-8, whatever the locale; bytes that are not UTF-8 reach Python as lone surrogates."""
    data = text.encode("utf-8", "surrogateescape")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextError(
            f"{name} is not valid UTF-8: found byte 0x{data[error.start]:02x} at byte {error.start}; "
            "expected text encoded as UTF-8."
        ) from error


def _figure_sets(figures: str) -> list[str]:
    if figures == "none":
        return []
    return ["overview", "heads"] if figures == "all" else _split([figures])


def _split(values: list[str] | None) -> list[str]:
    parts = [part.strip() for value in values or [] for part in value.split(",")]
    if "" in parts:
        raise UsageError(f"expected names with commas between, found {', '.join(map(repr, values or []))}.")
    return list(dict.fromkeys(parts))


def _default_folder(model: str) -> Path:
    from attnviz.sources import BUILT_IN

    is_folder = model not in BUILT_IN and Path(model).expanduser().is_dir()
    name = Path(model).expanduser().resolve().name if is_folder else model.replace("/", "--")
    return Path("attnviz-out") / (name or "model")


def _printable(message: str) -> str:
    """The message without anything that would steer a terminal."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in message)
