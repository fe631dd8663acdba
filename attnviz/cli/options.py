"""The options that several commands share: one name, one help text, one meaning; and the groups that help shows."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from attnviz.arguments import LARGEST_SEED

TEXT_AND_MODEL = "Text and model"
MEASUREMENT = "What to measure"
PICTURES = "Pictures"
OUTPUT = "Output"

GROUPS = (TEXT_AND_MODEL, MEASUREMENT, PICTURES, OUTPUT)
"""The groups of options in the help of every command; an option without a group says what to measure."""

text_option = partial(typer.Option, rich_help_panel=TEXT_AND_MODEL)
picture_option = partial(typer.Option, rich_help_panel=PICTURES)
output_option = partial(typer.Option, rich_help_panel=OUTPUT)

_LARGEST = 1_000_000
"""The largest distance, and the most texts that can be asked to be read at once."""

Text = Annotated[str, typer.Argument(metavar="TEXT", help="The sentence. Write - to read standard input.")]
Pair = Annotated[
    str | None,
    text_option(metavar="TEXT", help="A second segment, joined as the tokenizer joins pairs."),
]
Target = Annotated[
    str | None,
    text_option(
        metavar="TEXT",
        help="The text that the decoder of an encoder-decoder (Marian, BART, T5) reads. Default: what the model itself "
        "generates, greedily.",
    ),
]
MaxNewTokens = Annotated[
    int | None,
    text_option(metavar="COUNT", min=1, help="The longest target that the model generates, in tokens. Default: 40."),
]
_HEADS = (
    "Heads to draw and list: L2H8 or 2.8 (one head), L2 (a layer), L0-3 (layers), L*H8; of encoder-decoders X0H3, X, "
    "E0-2{}. May be given more than once. Default: all heads."
)
Select = Annotated[list[str] | None, picture_option(metavar="HEADS", help=_HEADS.format(""))]
SelectByRole = Annotated[
    list[str] | None,
    picture_option(
        metavar="HEADS",
        help=_HEADS.format("; or a label on this text or a role over a corpus (sink, previous, syntactic, obj)"),
    ),
]
Words = Annotated[
    bool,
    typer.Option(
        "--words", help="Merge word pieces into words: attention to the pieces is summed, from them averaged."
    ),
]
LocalWindow = Annotated[
    int,
    typer.Option(
        metavar="DISTANCE",
        min=0,
        max=_LARGEST,
        help="The largest distance that counts as local, in tokens (in words with --words).",
    ),
]
LongRangeFrom = Annotated[
    int,
    typer.Option(
        metavar="DISTANCE",
        min=1,
        max=_LARGEST,
        help="The smallest distance that counts as long-range, in tokens (in words with --words).",
    ),
]
Parser = Annotated[
    str | None,
    typer.Option(
        metavar="PIPELINE",
        help="The spaCy pipeline that parses the text. Default: an installed one for the language of the text, English "
        "if in doubt. Code, and text in any other language, is not parsed unless this option is given.",
    ),
]
Truncate = Annotated[
    bool,
    text_option("--truncate", help="Cut a text that is too long for the model. Without this option it is refused."),
]
Limit = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Read only the first N sentences of each corpus. Default: all."),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory that a block of query rows may take, such as 64M or 1G: more is faster on a GPU, less helps where "
        "a long text runs out of memory. It changes no number but by rounding. Default: 48M.",
    ),
]
BatchSize = Annotated[
    int, typer.Option(metavar="N", min=1, max=_LARGEST, help="How many texts the model reads at once.")
]


def token_option(what: str, default: str, group: str = MEASUREMENT) -> Any:
    """The option that names a token, wherever one can be named: what it is for, and which one it is by default."""
    named = "Name a word (cat), its second occurrence (cat#2), or a position counted from 0 (#3)."
    return typer.Option("--token", metavar="TOKEN", help=f"{what}. {named} Default: {default}.", rich_help_panel=group)


def seed_option(what: str) -> Any:
    """The option that makes what is drawn at random the same again."""
    return typer.Option(metavar="SEED", min=0, max=LARGEST_SEED, help=what)


def save_option(name: str, what: str) -> Any:
    """The option that also writes tensors: the name of the file, and what stands in it."""
    return output_option(f"--save-{name}", help=f"Also write {name}.safetensors, with {what}.")


def top_option(what: str) -> Any:
    """The option that says how many rows a table has."""
    return output_option(metavar="N", min=0, help=f"{what} 0 stands for all.")


@dataclass
class Shared:
    """The options of every command that measures; :func:`attnviz.cli.runner.command` adds them to the command's own."""

    model: Annotated[
        str,
        text_option(
            "--model",
            "-m",
            metavar="MODEL",
            help="A built-in model (minilm, tiny-gpt2, smollm2), a checkpoint folder, or a Hugging Face hub id.",
        ),
    ] = "minilm"
    revision: Annotated[
        str | None,
        text_option(metavar="REVISION", help="Branch, tag or commit of a hub model."),
    ] = None
    device: Annotated[
        str,
        text_option("--device", "-d", metavar="DEVICE", help="Where to compute: auto, cpu, cuda, cuda:N or mps."),
    ] = "auto"
    device_map: Annotated[
        str | None,
        text_option(
            metavar="MAP",
            help="Spread a model that is larger than one device over GPUs, memory and disk: auto, balanced, "
            "sequential, or a JSON file that names a device (cuda:N, cpu, disk) for each part.",
        ),
    ] = None
    dtype: Annotated[
        str,
        text_option(
            metavar="DTYPE", help="Number format: float32, float64, bfloat16, float16, or auto, the checkpoint's own."
        ),
    ] = "float32"
    figures: str | None = None  # its help names the command's figures
    no_figures: Annotated[
        bool,
        picture_option("--no-figures", help="Draw nothing (the same as --figures none)."),
    ] = False
    formats: Annotated[
        list[str] | None,
        picture_option(
            "--format", metavar="FORMAT", help="png, svg or pdf. May be given more than once. Default: png."
        ),
    ] = None
    theme: Annotated[str, picture_option(metavar="THEME", help="light or dark.")] = "light"
    width: Annotated[
        str | None,
        picture_option(
            metavar="WIDTH",
            help="Width of every figure: 3.3in, 8.4cm, 84mm, 240pt, or a number of inches. "
            "Default: what the content needs.",
        ),
    ] = None
    bare: Annotated[
        bool,
        picture_option("--bare", help="Leave out title and notes, for a paper with captions of its own."),
    ] = False
    panel: Annotated[
        str,
        picture_option(metavar="LETTER", help="Write a panel letter, such as a, at the top left of every figure."),
    ] = ""
    out: Annotated[
        str | None,
        output_option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for the results. Default: a folder of attnviz-out, named after model and text.",
        ),
    ] = None
    overwrite: Annotated[
        bool,
        output_option("--overwrite", help="Remove pictures of another text from the folder."),
    ] = False
    as_json: Annotated[bool, output_option("--json", help="Print the JSON document and nothing else.")] = False
    quiet: Annotated[
        bool,
        output_option("--quiet", "-q", help="Print no tables, no progress and no messages."),
    ] = False
