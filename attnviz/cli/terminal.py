"""The terminal: texts and options, progress, results (to standard output), messages (to standard error)."""

import errno
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from attnviz.arguments import is_there, utf8
from attnviz.errors import OutputError, TextError, UsageError
from attnviz.printable import one_line, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnviz.present.output_folder import OutputFolder


_NARROWEST = 60  # columns
_SECONDS = 30.0  # between lines of progress, where no terminal shows a bar


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Progress on standard error: bars on a terminal, else a line at times."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True, file=sys.stderr)  # named, so that it is the same while a library's is held back
    if quiet or not console.is_terminal:
        begun = last = time.monotonic()

        def tell_at_times(what: str, done: int, total: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _SECONDS:
                last = now
                say(f"{what}{f' {done} of {total}' if total else ''}, after {now - begun:.0f} s", quiet)

        yield tell_at_times
        return
    columns: list[Any] = [
        TextColumn("{task.description:<10}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    ]
    with Progress(*columns, console=console, transient=True) as display:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                for earlier in display.tasks:
                    if earlier.total is None:  # of unknown length, and over: it would go on pulsing
                        display.update(earlier.id, visible=False)
                tasks[what] = display.add_task(one_line(what), total=total or None, count="", rate="")
            speed = display.tasks[display.task_ids.index(tasks[what])].speed
            count = f"{done}/{total}" if total else ""
            rate_now = f"{speed:.0f}/s" if speed else ""
            display.update(tasks[what], completed=done, total=total or None, count=count, rate=rate_now)

        yield tell


# suffixes of files that hold texts
_OF_TEXTS = (".txt", ".conllu", ".tsv", ".csv", ".md", ".json", ".jsonl", ".parquet")


def read_text(text: str, each_of_file: str = "heads {} --each-line") -> str:
    """The text of an argument, or of standard input where it is ``-``; TextError if it is blank or not UTF-8.

    ``each_of_file`` is the command that reads each text of a file, for the message where TEXT is one.
    """
    if text != "-":
        text = utf8("TEXT", text)
        if not text.strip():
            raise TextError("TEXT is empty or blank; expected a sentence, or - to read standard input.")
        if re.search(r"\s", text):
            return text
        if is_there(text, Path.is_dir):
            raise TextError(
                f"TEXT is {text!r}, the name of a folder; expected a sentence, or a file in it. For that word, write - "
                "and the text on standard input."
            )
        if Path(text).suffix in _OF_TEXTS or is_there(text, Path.is_file):
            seems = "" if is_there(text, Path.is_file) else "which looks like "
            raise TextError(
                f"TEXT is {text!r}, {seems}the name of a file; expected a sentence. For the file as one text, write - "
                f"and < {text}; for each of its texts: attnviz {each_of_file.format(text)}."
            )
        return text
    if sys.stdin is None:
        raise TextError("standard input is closed; expected a sentence on it, or as TEXT.")
    advice = "convert it, for example: iconv -f latin1 -t utf-8"
    content = utf8("standard input", sys.stdin.buffer.read(), advice).removeprefix("\ufeff")
    if not content.strip():
        raise TextError("standard input is empty or blank; expected a sentence.")
    return content.removesuffix("\n").removesuffix("\r")


def read_source(typed: str) -> str | Path:
    """The text of an argument, as of :func:`read_text`, or the path of a file or folder of texts."""
    from attnviz.inputs.reading import source_kind

    return read_text(typed) if typed == "-" or source_kind(typed) == "text" else Path(typed)


_printed_to: list[TextIO | None] = []  # standard output, while it is for results alone


@contextmanager
def results_alone() -> Iterator[None]:
    """Send what libraries and plug-ins print to standard error while the block runs."""
    _printed_to.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _printed_to.pop()


@contextmanager
def _on_standard_output() -> Iterator[None]:
    with redirect_stdout(_printed_to[-1] if _printed_to else sys.stdout):
        yield


@_on_standard_output()
def print_results(
    document: dict[str, Any],
    tables: "Callable[[], RenderableType | str]",
    as_json: bool,
    quiet: bool = False,
    folder: Path | None = None,
) -> None:
    """Print the document as JSON, or else tables, a text as it is; with ``quiet`` nothing.

    OutputError where the disk is full (``folder``: where the files are); a closed pipe is no error.
    """
    try:
        if sys.stdout is None and (as_json or not quiet):
            raise OSError(errno.EBADF, "standard output is closed")
        if as_json:
            from attnviz.present.documents import json_text

            sys.stdout.write(json_text(document))
        elif not quiet:
            from rich.console import Console

            from attnviz.present.tables import Printable

            console = Console(highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")
            console.width = max(console.width, _NARROWEST)  # better over the edge than with numbers cut short
            printed = tables()
            if isinstance(printed, str):
                sys.stdout.write(printable(printed))
            else:
                console.print(Printable(printed))
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            files = "" if folder is None else f"; the files in {folder} are complete"
            raise OutputError(f"cannot print the results: {error.strerror}{files}.") from error


@_on_standard_output()
def print_row(row: str, quiet: bool) -> None:
    """Print a row of a long run at once, unless a terminal shows progress; what fails here fails again at the end."""
    if not (quiet or sys.stdout is None or sys.stdout.isatty()):
        with suppress(OSError):
            sys.stdout.write(f"{printable(row)}\n")
            sys.stdout.flush()


def discard(stream: TextIO | None) -> None:
    """Discard the stream's buffer and all later output."""
    with suppress(OSError, ValueError):
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(message: str, quiet: bool = False) -> None:
    """Print one line without control characters on standard error."""
    if not quiet:
        typer.echo(f"attnviz: {one_line(message)}", err=True)


def say_where_to_look(output: "OutputFolder", quiet: bool = False, more: str = "") -> None:
    """Print which file to open, the page or else the first picture, how many there are, and how to see ``more``."""
    if quiet:
        return
    names = [name for name in output.written if not name.startswith(".")]
    suffixes = (*_LOOKED_AT, *(Path(name).suffix for name in names))
    first = min(names, key=lambda name: (suffixes.index(Path(name).suffix), name.count("/")))
    typer.echo(f"Open {one_line(str(output.path / first))} (one of {len(names)} files{more})", err=True)


# suffixes of files, those first that are opened first
_LOOKED_AT = (".html", ".png", ".svg", ".pdf", ".tex", ".md", ".csv", ".json")


def split_names(values: Sequence[str]) -> list[str]:
    """Split the values of a repeatable option at commas; UsageError where a name is empty."""
    parts = [part.strip() for value in values for part in value.split(",")]
    if "" in parts:
        raise UsageError(f"expected names with commas between, found {', '.join(map(repr, values))}.")
    return list(dict.fromkeys(parts))
