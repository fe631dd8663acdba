"""The options that several commands, or the command line and Python, share, and how Python's functions check values.

An alias (:data:`Top`) says type, help and flags of an option; options that travel together stand in a group. Those of
one command alone stand in its file, ``attnviz/cli/NAME.py``. Values are checked by the functions of Python alone, which
:func:`checked` wraps: the command line calls these, and declares no ranges.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypedDict, TypeVar, get_args

import typer

from attnviz.arguments import as_found, check_kind, check_range, flag_of, is_there, one_of, utf8
from attnviz.errors import UsageError
from attnviz.locks import IN_USE
from attnviz.memory import out_of_memory_named

if TYPE_CHECKING:
    from attnviz.models.head_ids import HeadId

P = ParamSpec("P")
R = TypeVar("R")
TEXT_AND_MODEL = "Text and model"
MEASUREMENT = "What to measure"
PICTURES = "Pictures"
OUTPUT = "Output"
GROUPS = (TEXT_AND_MODEL, MEASUREMENT, PICTURES, OUTPUT)  # the groups of options in the help of a command
FLOAT32 = "float32"  # the default of --dtype
# the least and the largest value of numbers that several functions take
RANGES: dict[str, tuple[int, int | None]] = {
    "limit": (1, None),
    "batch_size": (1, 1_000_000),
    "seed": (0, 2**63 - 1),
    "max_new_tokens": (1, None),
}

# What an argument with choices takes, on the command line and in Python.
Replacement = Literal["zero", "mean", "uniform"]  # of a removed head
HeadMetric = Literal["loss", "kl", "margin", "changed", "logit_difference", "cosine", "l2"]
PatchDirection = Literal["denoise", "noise"]
PatchSite = Literal["z", "q", "k", "v", "attn_out", "mlp_out", "resid_pre", "resid_mid", "resid_post"]
PatchMetric = Literal["logit_difference", "loss", "kl"]
PathNetworks = Literal["frozen", "run"]
ExportFormat = Literal["duo-attention", "headvis"]
TableFormat = Literal["tex", "md"]


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

    device: Annotated[str, reading("Where to compute: auto, cpu, cuda, cuda:N or mps.", "--device", "-d")] = "auto"
    dtype: Annotated[
        str, reading("Number format: float32, float64, bfloat16, float16, or auto (the checkpoint's).")
    ] = FLOAT32
    adapter: Adapter = None
    tokenizer: Tokenizer = None
    plugin: Annotated[
        list[Path] | None,
        reading(
            "A Python file that is run first: it registers patterns, model families or figures of your own "
            "(attnviz.register). May be given more than once.",
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


class ModelOptions(TypedDict, total=False):
    """How a model is opened: keywords of every function that takes one.

    Attributes:
        tokenizer: of a model in memory, a fast one; or a built-in name, folder or hub id, of a model without one.
        revision: branch, tag or commit of a hub id.
        adapter: of peft (LoRA and its kin), a folder or hub id; merged into the model, by default its own base.
        device: ``auto`` (default), ``cpu``, ``cuda``, ``cuda:N``, ``mps``, or a torch.device.
        device_map: instead of a device, for a model larger than one: ``auto``, ``balanced`` or ``sequential``.
        dtype: ``float32`` (default), ``float64``, ``bfloat16``, ``float16``, ``auto`` (the checkpoint's own), or one
            of torch.
        attention: the implementation that the model runs with, ``eager``, ``sdpa`` or another of transformers; by
            default what transformers chooses.
    """

    tokenizer: Any
    revision: str | None
    adapter: str | Path | None
    device: Any
    device_map: str | None
    dtype: Any
    attention: str | None


class CorpusOptions(ModelOptions, total=False):
    """How a model is opened and which columns of a table are read: keywords of functions that take corpora.

    Attributes:
        text_column: of a table, the column of its texts; default ``text``, ``sentence`` or ``prompt``, or the only
            column of words.
        pair_column: of a table, the column of second segments.
    """

    text_column: str | None
    pair_column: str | None


class ViewOptionNames(TypedDict, total=False):
    """The options that are keywords of what a result draws, lists and writes."""

    select: "str | HeadId | Sequence[str | HeadId]"
    top: int | None
    verbose: bool
    drop_special: bool
    token: str | int | None
    maps: Sequence[str]
    save_attention: bool
    save_npz: bool
    relation: str | None
    table: TableFormat | None
    by: Literal["kv-head"] | None


class DrawingOptionNames(ViewOptionNames, total=False):
    """With the arguments of :class:`attnviz.figures.Style` the keywords of ``figure``, ``draw``, ``save``, ``page``."""

    theme: str
    scale: str
    width: float | str | None
    bare: bool
    font_size: float | None
    font: str | None


def typed(values: Mapping[str, object]) -> list[str]:
    """Command-line arguments for these values, in their order; what is empty or the default is left out."""
    words = list[str]()
    for name, given in values.items():
        if name == "syntax":
            words += [] if given else ["--no-syntax"]
        elif given and (name, given) != ("dtype", FLOAT32):
            for value in given if isinstance(given, list) else [given]:
                words += [flag_of(name)] if value is True else [flag_of(name), str(value)]
    return words


def keywords_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's arguments by name, with those of the TypedDict that it unpacks."""
    kinds = dict[str, Any]()
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            for unpacked in get_args(parameter.annotation):
                kinds |= unpacked.__annotations__
        elif parameter.kind is parameter.VAR_POSITIONAL:
            kinds[name] = GenericAlias(Sequence, (parameter.annotation,))
        elif name != "self":
            kinds[name] = parameter.annotation
    return kinds


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check a function's arguments against its annotations and :data:`RANGES`.

    Of the functions that use a model, which take a ``device``, one runs at a time.

    Raises:
        TextError: by the function, where ``text`` or ``pair`` is no string.
        UsageError: by the function, with what was expected and found; for an unknown keyword also the nearest one.
        OutOfMemoryError: by the function, whatever a library raised for want of memory.
    """
    signature = inspect.signature(function)
    kinds = keywords_of(function)
    guard = IN_USE if "device" in kinds else nullcontext()

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in kinds:
                said = one_of(name, kinds, f"help({function.__qualname__}) lists them")
                raise UsageError(f"{function.__name__}() has no argument {name!r}: {said}")
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(f"{function.__name__}(): {error}.") from error
        arguments = {name: value for name, value in bound.arguments.items() if name in kinds} | bound.kwargs
        _check_order(function.__name__, next(iter(kinds)), arguments)
        for name, value in arguments.items():
            check_kind(name, value, kinds[name])
            if name in RANGES:
                check_range(name, value, *RANGES[name])
        with guard, out_of_memory_named():
            return function(*args, **kwargs)

    return call


def _check_order(function: str, first: str, arguments: Mapping[str, Any]) -> None:
    """Raise UsageError where a model stands in the place of a text, or a text in that of the model."""
    given, model = arguments.get(first), arguments.get("model")
    is_model = first not in ("model", "first") and hasattr(given, "config")
    if is_model or (isinstance(model, str) and len(model.split()) > 1 and not is_there(model)):
        found = f"a {type(given).__name__} as {first}" if is_model else f"the model {as_found(model)}"
        raise UsageError(f"expected {function}({first}, model, ...), in this order, found {found}.")
