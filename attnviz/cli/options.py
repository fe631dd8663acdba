"""The options that several commands share: one name, one help text, one meaning."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

__all__ = [
    "LARGEST_BATCH",
    "LARGEST_SEED",
    "AsJson",
    "LocalWindow",
    "LongRangeFrom",
    "Out",
    "Pair",
    "Parser",
    "Select",
    "Shared",
    "Text",
    "Truncate",
    "Words",
    "token_option",
]

_FARTHEST = 1_000_000

LARGEST_BATCH = 1_000_000
"""Texts that can be asked to be read at once."""

LARGEST_SEED = 2**63 - 1
"""The largest that torch takes."""

Text = Annotated[str, typer.Argument(help="The sentence; - reads standard input.")]
Pair = Annotated[str | None, typer.Option(help="A second segment (BERT: token types 0 and 1).")]
Select = Annotated[
    list[str] | None,
    typer.Option(
        help="Heads to draw and list: L2H8, 2.8, L2 (a layer), L0-3, L*H8; of encoder-decoders X0H3, X, E0-2. "
        "Repeatable; default all."
    ),
]
Words = Annotated[bool, typer.Option("--words", help="Merge word pieces into words: sum over keys, mean over queries.")]
LocalWindow = Annotated[
    int, typer.Option(min=0, max=_FARTHEST, help="Largest distance that is local, in tokens (words with --words).")
]
LongRangeFrom = Annotated[
    int, typer.Option(min=1, max=_FARTHEST, help="Smallest distance that is long-range, likewise.")
]
Parser = Annotated[
    str | None,
    typer.Option(
        help="spaCy pipeline to parse with, whatever the text looks like; default an installed one of its language, "
        "English if in doubt, and none where the text looks like none of theirs, or like program code."
    ),
]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="Cut a text that is longer than the model instead of refusing it.")
]
Out = Annotated[
    str | None, typer.Option("--out", "-o", help="Folder for the results; default attnviz-out/COMMAND-MODEL/TEXT.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the JSON document, and nothing else.")]


def token_option(what: str, default: str) -> Any:
    """The option that names a token, wherever one can be named: what it is for, and which one it is by default."""
    named = "a token or word of the text (cat), its second occurrence (cat#2), or a position counted from 0 (#3)"
    return typer.Option("--token", metavar="TOKEN", help=f"{what}: {named}; default {default}.")


@dataclass
class Shared:
    """The options of every command that measures; :func:`attnviz.cli.runner.command` adds them to the command's own."""

    model: Annotated[
        str, typer.Option("--model", "-m", help="Built-in name (minilm, tiny-gpt2), checkpoint folder, or hub id.")
    ] = "minilm"
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")] = None
    figures: str | None = None  # its help names the command's figures
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Draw nothing; the same as --figures none.")] = False
    formats: Annotated[list[str] | None, typer.Option("--format", help="png, svg or pdf. Repeatable; default png.")] = (
        None
    )
    theme: Annotated[str, typer.Option(help="light or dark.")] = "light"
    width: Annotated[
        str | None,
        typer.Option(
            help="Of every figure: 3.3in, 8.4cm, 84mm, 240pt (a bare number is inches); "
            "default as its content asks for."
        ),
    ] = None
    bare: Annotated[
        bool, typer.Option("--bare", help="Figures without title and notes, for a paper with captions of its own.")
    ] = False
    panel: Annotated[str, typer.Option(metavar="LETTER", help="A panel letter at the top left of every figure: a.")] = (
        ""
    )
    device: Annotated[str, typer.Option("--device", "-d", help="auto, cpu, cuda, cuda:N or mps.")] = "auto"
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")] = "float32"
    out: Out = None
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove pictures of another text that are in the folder.")
    ] = False
    as_json: AsJson = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables, no progress, no messages.")] = False
