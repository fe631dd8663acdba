"""The options that several commands of the command line share.

An alias (:data:`Top`) says type, help and flags of an option; options that travel together stand in a group. Those of
one command alone stand in its file. No option declares a range: they stand in :data:`attnviz.options.RANGES`.
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from attnviz.arguments import utf8
from attnviz.options import FLOAT32, TableFormat

TEXT_AND_MODEL = "Text and model"
MEASUREMENT = "What to measure"
PICTURES = "Pictures"
OUTPUT = "Output"
GROUPS = (TEXT_AND_MODEL, MEASUREMENT, PICTURES, OUTPUT)  # the groups of options in the help of a command


def _option(group: str, text: str, *flags: str, **settings: Any) -> Any:
    return typer.Option(..., *flags, help=text, rich_help_panel=group, **settings)


reading = partial(_option, TEXT_AND_MODEL)
measuring = partial(_option, MEASUREMENT)
drawing = partial(_option, PICTURES)
writing = partial(_option, OUTPUT)


def argument(text: str, **settings: Any) -> Any:
    """An argument, with its help."""
    return typer.Argument(help=text, rich_help_panel=TEXT_AND_MODEL, **settings)


def decoded(parameter: typer.CallbackParam, value: Any) -> Any:
    """Callback: what was typed as UTF-8, whatever the locale is."""
    name = parameter.opts[0]
    return [utf8(name, text) for text in value] if isinstance(value, list) else value and utf8(name, value)


# a text or a part of one, in any language
free_text = partial(measuring, callback=decoded)


def token_option(purpose: str, default: str, *flags: str, group: str = MEASUREMENT) -> Any:
    """An option that names a token."""
    named = "Name a word (cat), its second occurrence (cat#2), or a position counted from 0 (#3)."
    return _option(group, f"{purpose}. {named} Default: {default}.", *flags, callback=decoded, metavar="TOKEN")


# An alias is an option with the help that it has in most commands: Annotated[Top, "text"] is the same with another.

# Text and model

MODEL = "A built-in model (minilm, tiny-gpt2, smollm2), a folder, or a Hugging Face hub id."
ADAPTER = "An adapter of peft (LoRA and its kin) that is merged into the weights: a folder or a Hugging Face hub id."
TOKENIZER = "The tokenizer of a model that was saved without one: a built-in model, a folder, or a Hugging Face hub id."
Model = Annotated[str | None, reading(f"{MODEL} Default: minilm, or what the adapter was trained on.", "--model", "-m")]
Revision = Annotated[str | None, reading("Branch, tag or commit of a hub model.")]
Adapter = Annotated[str | None, reading(ADAPTER)]
Tokenizer = Annotated[str | None, reading(TOKENIZER, metavar="MODEL")]
Pair = Annotated[
    str | None, reading("A second segment, joined as the tokenizer joins pairs.", callback=decoded, metavar="TEXT")
]
Truncate = Annotated[
    bool,
    reading("Cut a text that is too long for the model. Without this option it is refused, or left out of a corpus."),
]

# What to measure

Words = Annotated[
    bool, measuring("Merge word pieces into words: attention to the pieces is summed, from them averaged.")
]
Syntax = Annotated[
    bool, measuring("Parse texts if spaCy and a pipeline for them are installed.", "--syntax/--no-syntax")
]
Parser = Annotated[
    str | None,
    measuring(
        "The spaCy pipeline that parses texts. Default: an installed one that knows most of their words. Code, and "
        "text in any other language, is not parsed unless this option is given.",
        metavar="PIPELINE",
    ),
]
Memory = Annotated[
    str | None,
    measuring(
        "Memory that a block of query rows may take, such as 64M or 1G: less helps where a long text runs out of "
        "memory. Changes results only by rounding. Default: 48M; on a GPU 1G, or a quarter of what is free.",
        metavar="SIZE",
    ),
]
Limit = Annotated[int | None, measuring("Read only the first N sentences of each corpus. Default: all.")]
Frequencies = Annotated[
    Path | None,
    measuring(
        "Words with their counts (a line: house 1234), by which tokens are rare. Default: counts in the corpora.",
        metavar="FILE",
    ),
]
ANSWER = (
    "The token, or the class of a text or a token, whose logit is divided into what each head adds. Default: the "
    "model's first choice."
)
Answer = Annotated[str | None, free_text(ANSWER, "--answer", metavar="TOKEN|CLASS")]
Foil = Annotated[
    str | None,
    free_text(
        "The token or class whose logit is subtracted from it. Default: the model's next choice.",
        metavar="TOKEN|CLASS",
    ),
]
Label = Annotated[
    str | None,
    free_text("Classifiers: the class of all these texts, by its name or number.", metavar="CLASS"),
]
Spans = Annotated[
    list[str] | None,
    free_text(
        'Measure attention between stretches of the text: instruction="in one word", its second occurrence as '
        "doc=cat#2, or positions doc=#10-#40; last, rest (what no other span has) and special tokens such as [CLS] are "
        "known by name. May be given more than once. The messages of a chat, both texts of a pair, prompt and new text "
        "of --generate are spans without it.",
        "--span",
        metavar="NAME=TEXT",
    ),
]

# Pictures and output

HEADS = (
    "L2H8, L2 (a layer), L0-3 or L*H8. Also 2.8 for L2H8; of encoder-decoders X0H3, X, E0-2. May be given more than "
    "once. Default: all heads."
)
Select = Annotated[list[str] | None, drawing(f"Heads to draw and list: {HEADS}", "--select", metavar="HEADS")]
MeasuredHeads = Annotated[list[str] | None, measuring(f"Heads to remove: {HEADS}", "--select", metavar="HEADS")]
Top = Annotated[int | None, writing("Number of rows in each table; 0 for all. Default: 12.")]
By = Annotated[
    Literal["kv-head"] | None,
    writing(
        "Also write and print a table by kv-head: for each KV head (keys and values, which several heads may share) "
        "the means of its heads."
    ),
]
Table = Annotated[
    TableFormat | None,
    writing(
        "Also write the CSV file as a table for a paper. It has a caption; tex needs booktabs, and is as wide as a "
        "column or a page."
    ),
]
Out = Annotated[
    str | None,
    writing(
        "Folder for the results. Default: a folder of attnviz-out, named after model and text.",
        "--out",
        "-o",
        metavar="FOLDER",
    ),
]


# Options that travel together: a command that takes the group takes them by their names, and may declare one by itself.


class TextGroup:
    """Options of the commands that read one text."""

    text: Annotated[str, argument("The sentence. Write - to read standard input.")]
    pair: Pair = None
    truncate: Truncate = False


class ModelGroup:
    """Options of which model is opened."""

    model: Model = None
    revision: Revision = None
    device_map: Annotated[
        str | None,
        reading(
            "Spread a model that is larger than one device over GPUs, memory and disk: auto, balanced or sequential.",
            metavar="MAP",
        ),
    ] = None


class LoadingGroup:
    """Options of how models are opened."""

    device: Annotated[
        str, reading("Where to compute: auto (cuda, else mps, else cpu), cpu, cuda, cuda:N or mps.", "--device", "-d")
    ] = "auto"
    dtype: Annotated[
        str, reading("Number format: float32, float64, bfloat16, float16, or auto (the checkpoint's).")
    ] = FLOAT32
    adapter: Adapter = None
    tokenizer: Tokenizer = None
    plugin: Annotated[
        list[Path] | None,
        reading(
            "A Python file that is run first: it registers patterns, statistics, model families or figures of "
            "your own (attnviz.register). May be given more than once.",
            metavar="FILE",
        ),
    ] = None
    attention: Annotated[
        str | None,
        reading(
            "The implementation of attention that the model runs with: eager, sdpa, or another of transformers, such "
            "as flash_attention_2. Default: what transformers chooses, sdpa for most.",
            metavar="NAME",
        ),
    ] = None


class TargetGroup:
    """Options of what the decoder of an encoder-decoder reads."""

    target: Annotated[
        str | None,
        reading(
            "The text that the decoder of an encoder-decoder (Marian, BART, T5) reads. Default: what the model itself "
            "generates, greedily.",
            callback=decoded,
            metavar="TEXT",
        ),
    ] = None
    source_language: Annotated[
        str | None,
        reading(
            "The language of the text, for a tokenizer that writes it as a token (NLLB, mBART): a code such as "
            "eng_Latn. Default: the tokenizer's own.",
            metavar="CODE",
        ),
    ] = None
    target_language: Annotated[
        str | None, reading("The language of what the decoder reads or writes, such as deu_Latn.", metavar="CODE")
    ] = None


class GeneratedGroup(TargetGroup):
    """Options of what the decoder reads, or of how much it generates."""

    max_new_tokens: Annotated[
        int | None, reading("The longest target that the model generates, in tokens. Default: 40.")
    ] = None


class SyntaxGroup:
    """Options of parsing."""

    syntax: Syntax = True
    parser: Parser = None


class ColumnGroup:
    """Options of the columns of a table."""

    text_column: Annotated[
        str | None,
        reading(
            "Of a table (.csv, .tsv, .jsonl, .json, a datasets folder): the column of its texts. Default: text, "
            "sentence or prompt, or the only column of words.",
            callback=decoded,
            metavar="NAME",
        ),
    ] = None
    pair_column: Annotated[
        str | None,
        reading(
            "Of a table: the column of second segments, joined as the tokenizer joins pairs.",
            callback=decoded,
            metavar="NAME",
        ),
    ] = None


class LabelledGroup(ColumnGroup):
    """Options of the columns of a table that may have classes."""

    label_column: Annotated[
        str | None,
        reading("Of a table: the column of the texts' classes. Default: label.", callback=decoded, metavar="NAME"),
    ] = None


class SampleGroup:
    """Options of the commands that read many texts."""

    limit: Limit = None
    batch_size: Annotated[int, measuring("How many inputs the model reads at once.")] = 32
    seed: Annotated[
        int, measuring("Random seed of all that is random: samples, intervals, controls, random tokens.")
    ] = 0


class FigureGroup:
    """Options of figures: which, and how they look."""

    figures: Annotated[
        str | None, drawing("Any of {figures} (with commas between), all, or none. Default: {default}.")
    ] = None
    formats: Annotated[
        list[str] | None, drawing("png, svg or pdf. May be given more than once. Default: png.", "--format")
    ] = None
    theme: Annotated[str, drawing("light or dark.")] = "light"
    width: Annotated[
        str | None,
        drawing(
            "Width of every figure: column (3.3in) or page (6.9in) of a paper, 84mm, 240pt, or inches. The figure "
            "fills it. Default: what the content needs."
        ),
    ] = None
    font_size: Annotated[
        float | None,
        drawing(
            "Size of the text in points; titles are larger, in proportion. Default: 7, or what fills the width.",
            metavar="POINTS",
        ),
    ] = None
    font: Annotated[str | None, drawing("An installed font family, or a font file. Default: DejaVu Sans.")] = None
    bare: Annotated[bool, drawing("Leave out title and notes, for a paper with captions of its own.")] = False


class PrintingGroup:
    """Options of where results go."""

    out: Out = None
    as_json: Annotated[bool, writing("Print the JSON document and nothing else.", "--json")] = False
    quiet: Annotated[bool, writing("Print no tables, no progress and no messages.", "--quiet", "-q")] = False


class OutputGroup(PrintingGroup):
    """Options of where results go, and whether all are printed."""

    verbose: Annotated[bool, writing("Print every table, and what the numbers mean.", "--verbose", "-v")] = False


COMMON = (ModelGroup, LoadingGroup, FigureGroup, OutputGroup)  # of most commands
# of these ``--help`` shows what they are, with those that a command says for itself; of others their names
FIRST = "model device dtype select figures formats width table out verbose".split()
