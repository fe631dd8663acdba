"""The options that several commands share: one name, one help text, one meaning."""

from typing import Annotated

import typer

__all__ = [
    "AsJson",
    "Device",
    "Dtype",
    "Formats",
    "LocalWindow",
    "LongRangeFrom",
    "Model",
    "NoFigures",
    "Out",
    "Pair",
    "Parser",
    "Quiet",
    "Revision",
    "Select",
    "Text",
    "Theme",
    "Truncate",
    "Width",
    "Words",
]

_FARTHEST = 1_000_000

Text = Annotated[str, typer.Argument(help="The sentence; - reads standard input.", show_default=False)]
Model = Annotated[
    str, typer.Option("--model", "-m", help="Built-in name (minilm, tiny-gpt2), checkpoint folder, or hub id.")
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.", show_default=False)]
Pair = Annotated[str | None, typer.Option(help="A second segment (BERT: token types 0 and 1).", show_default=False)]
Select = Annotated[
    list[str] | None,
    typer.Option(
        help="Heads to draw and list: L2H8, 2.8, L2 (a layer), L0-3, L*H8. Repeatable; default all.",
        show_default=False,
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
        "English if in doubt, and none where the text looks like none of theirs, or like program code.",
        show_default=False,
    ),
]
NoFigures = Annotated[bool, typer.Option("--no-figures", help="Draw nothing; the same as --figures none.")]
Formats = Annotated[
    list[str] | None,
    typer.Option("--format", help="png, svg or pdf. Repeatable; default png.", show_default=False),
]
Theme = Annotated[str, typer.Option(help="light or dark.")]
Width = Annotated[
    str | None,
    typer.Option(
        help="Of every figure: 3.3in, 8.4cm, 84mm, 240pt (a bare number is inches); default as its content asks for.",
        show_default=False,
    ),
]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="Cut a text that is longer than the model instead of refusing it.")
]
Device = Annotated[str, typer.Option("--device", "-d", help="auto, cpu, cuda, cuda:N or mps.")]
Dtype = Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")]
Out = Annotated[
    str | None,
    typer.Option("--out", "-o", help="Folder for the results; default attnviz-out/COMMAND-MODEL.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the JSON document, and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables, no progress, no messages.")]
