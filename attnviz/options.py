"""The options of the command line that several commands, or Python, share: one alias each, and how Python checks them.

An alias has the name of the argument (``batch_size``: :data:`BatchSize`), and says type, help, range and choices. The
options of one command alone stand in its file, ``attnviz/cli/NAME.py``; those with a range stand here, where
:func:`checked` holds the arguments of Python's functions against them.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypedDict, TypeVar, get_args, get_origin

import typer

from attnviz.arguments import as_found, check_kind, check_share, check_whole, is_there, n_bytes, one_of, utf8
from attnviz.errors import TextError, UsageError
from attnviz.locks import alone
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
VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
FLOAT32 = "float32"  # the default of --dtype


def _option(group: str, text: str, *flags: str, **settings: Any) -> Any:
    return typer.Option(..., *flags, help=text, rich_help_panel=group, **settings)


reading = partial(_option, TEXT_AND_MODEL)
measuring = partial(_option, MEASUREMENT)
drawing = partial(_option, PICTURES)
writing = partial(_option, OUTPUT)
argument = partial(typer.Argument, rich_help_panel=TEXT_AND_MODEL)


def decoded(parameter: typer.CallbackParam, value: Any) -> Any:
    """Callback: what was typed as UTF-8, whatever the locale is."""
    name = parameter.opts[0]
    return [utf8(name, text) for text in value] if isinstance(value, list) else value and utf8(name, value)


def size(value: int | str) -> int | str:
    """Parser: a size of memory as it was typed; UsageError where it is none."""
    n_bytes("memory", value)
    return value


# a text or a part of one, in any language
free_text = partial(measuring, callback=decoded)


def token_option(purpose: str, default: str, *flags: str, group: str = MEASUREMENT) -> Any:
    """An option that names a token."""
    named = "Name a word (cat), its second occurrence (cat#2), or a position counted from 0 (#3)."
    return _option(group, f"{purpose}. {named} Default: {default}.", *flags, callback=decoded, metavar="TOKEN")


# An alias is an option with the help that it has in most commands: Annotated[Top, "text"] is the same with another.

# Text and model

Text = Annotated[str, argument(help="The sentence. Write - to read standard input.")]
MODEL = "A built-in model (minilm, tiny-gpt2, smollm2), a folder, or a Hugging Face hub id."
_MODEL_DEFAULT = "Default: minilm, or what the adapter was trained on."
Model = Annotated[str | None, reading(f"{MODEL} {_MODEL_DEFAULT}", "--model", "-m")]
Models = Annotated[
    list[str] | None, reading(f"{MODEL} {_MODEL_DEFAULT} Give it twice for two models.", "--model", "-m")
]
Revision = Annotated[str | None, reading("Branch, tag or commit of a hub model.")]
ADAPTER = "An adapter of peft (LoRA and its kin) that is merged into the weights: a folder or a Hugging Face hub id."
Adapter = Annotated[str | None, reading(ADAPTER)]
TOKENIZER = "The tokenizer of a model that was saved without one: a built-in model, a folder, or a Hugging Face hub id."
Tokenizer = Annotated[str | None, reading(TOKENIZER, metavar="MODEL")]
Plugin = Annotated[
    list[Path] | None,
    reading(
        "A Python file that is run first: it registers patterns, model families or figures of your own "
        "(attnviz.register). May be given more than once.",
        metavar="FILE",
    ),
]
Device = Annotated[str, reading("Where to compute: auto, cpu, cuda, cuda:N or mps.", "--device", "-d")]
DeviceMap = Annotated[
    str | None,
    reading(
        "Spread a model that is larger than one device over GPUs, memory and disk: auto, balanced or sequential.",
        metavar="MAP",
    ),
]
Dtype = Annotated[str, reading("Number format: float32, float64, bfloat16, float16, or auto (the checkpoint's).")]
Attention = Annotated[
    str | None,
    reading(
        "The implementation of attention that the model runs with: eager, sdpa, or another of transformers, such as "
        "flash_attention_2. Default: what transformers chooses, sdpa for most.",
        metavar="NAME",
    ),
]
Pair = Annotated[
    str | None, reading("A second segment, joined as the tokenizer joins pairs.", callback=decoded, metavar="TEXT")
]
Truncate = Annotated[
    bool,
    reading("Cut a text that is too long for the model. Without this option it is refused, or left out of a corpus."),
]
Target = Annotated[
    str | None,
    reading(
        "The text that the decoder of an encoder-decoder (Marian, BART, T5) reads. Default: what the model itself "
        "generates, greedily.",
        callback=decoded,
        metavar="TEXT",
    ),
]
SourceLanguage = Annotated[
    str | None,
    reading(
        "The language of the text, for a tokenizer that writes it as a token (NLLB, mBART): a code such as eng_Latn. "
        "Default: the tokenizer's own.",
        metavar="CODE",
    ),
]
TargetLanguage = Annotated[
    str | None, reading("The language of what the decoder reads or writes, such as deu_Latn.", metavar="CODE")
]
MaxNewTokens = Annotated[
    int | None, reading("The longest target that the model generates, in tokens. Default: 40.", min=1)
]
Generate = Annotated[
    int | None,
    reading("Let a decoder (GPT-2, Llama) write N tokens after the text, greedily; show the attention of all.", min=1),
]
column = partial(reading, callback=decoded, metavar="NAME")
TextColumn = Annotated[
    str | None,
    column(
        "Of a table (.csv, .tsv, .jsonl, .json, a datasets folder): the column of its texts. Default: text, sentence "
        "or prompt, or the only column of words."
    ),
]
PairColumn = Annotated[
    str | None, column("Of a table: the column of second segments, joined as the tokenizer joins pairs.")
]
LabelColumn = Annotated[str | None, column("Of a table: the column of the texts' classes. Default: label.")]

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
        parser=size,
        metavar="SIZE",
    ),
]
Limit = Annotated[int | None, measuring("Read only the first N sentences of each corpus. Default: all.", min=1)]
BatchSize = Annotated[int, measuring("How many inputs the model reads at once.", min=1, max=1_000_000)]
Seed = Annotated[
    int,
    measuring("Random seed of all that is random: samples, intervals, controls, random tokens.", min=0, max=2**63 - 1),
]
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
Layer = Annotated[int | None, measuring("Roll out up to this layer, counted from 0. Default: the last.", min=0)]
Residual = Annotated[
    float,
    measuring(
        "What a token keeps of itself in every layer: the weight of the identity, 0 to 1.",
        min=0,
        max=1,
        metavar="SHARE",
    ),
]
Depth = Annotated[
    int,
    measuring("Follow the largest part of the score into the head that wrote it, through N heads.", min=1, max=12),
]
Examples = Annotated[
    int,
    measuring(
        "Keep N sentences in which a head shows a role best, and N in which it fails most clearly; 0 for none.",
        min=0,
        max=100,  # of each role of each head: all are in memory
    ),
]
Export = Annotated[
    Literal["duo-attention", "headvis"] | None,
    measuring(
        "Also write a folder that another tool reads: duo-attention (retrieval scores of KV heads, with --repeats; "
        "attnviz check holds them against a model) or headvis (its data, with a corpus)."
    ),
]
Circuits = Annotated[
    bool,
    measuring(
        "Also read from the weights which heads it composes with, and what it copies.", "--circuits/--no-circuits"
    ),
]
Method = Annotated[
    Literal["zero", "mean", "uniform"],
    measuring(
        "What takes the place of a removed head: mean (its mean output over all tokens), zero (nothing), or uniform "
        "(the same attention to every visible token)."
    ),
]
OrderBy = Annotated[
    Literal["loss", "kl", "margin", "changed", "logit_difference", "cosine", "l2"] | None,
    measuring(
        "The metric by which heads are ranked, and removed one after the other. Default: loss, or else kl or cosine; "
        "of a classifier whose loss is near 0 on most texts the margin."
    ),
]
Direction = Annotated[
    Literal["denoise", "noise"],
    measuring(
        "denoise: outputs of the clean run go into the corrupt run; noise: those of the corrupt run into the clean one."
    ),
]
Site = Annotated[
    Literal["z", "q", "k", "v", "attn_out", "mlp_out", "resid_pre", "resid_mid", "resid_post"],
    measuring(
        "What is patched: z, what a head gives to W_O; its queries q, keys k or values v (of KV heads where heads "
        "share them); or of a layer attn_out, mlp_out (what it adds to the residual stream), resid_pre, resid_mid or "
        "resid_post (the stream before, between and after)."
    ),
]
PatchBy = Annotated[
    Literal["position"] | None,
    measuring(
        "position: patch each position alone, for a map of layer or head × position. Default: all tokens at once."
    ),
]
Metric = Annotated[
    Literal["logit_difference", "loss", "kl"] | None,
    measuring(
        "logit_difference, loss of the answer, or kl: divergence from the prediction after the clean prompt. Default: "
        "the first with a foil, the second with an answer alone, else kl."
    ),
]
Networks = Annotated[
    Literal["frozen", "run"] | None,
    measuring(
        "With --to: whether feed-forward networks between are frozen, too, or run on what the head writes, so that a "
        "path may go through them. Default: frozen."
    ),
]

# Pictures

HEADS = (
    "L2H8, L2 (a layer), L0-3 or L*H8. Also 2.8 for L2H8; of encoder-decoders X0H3, X, E0-2. May be given more than "
    "once. Default: all heads."
)
Select = Annotated[list[str] | None, drawing(f"Heads to draw and list: {HEADS}", "--select", metavar="HEADS")]
MeasuredHeads = Annotated[list[str] | None, measuring(f"Heads to remove: {HEADS}", "--select", metavar="HEADS")]
Figures = Annotated[str | None, drawing("Any of {figures} (with commas between), all, or none. Default: {default}.")]
Formats = Annotated[
    list[str] | None, drawing("png, svg or pdf. May be given more than once. Default: png.", "--format")
]
Theme = Annotated[str, drawing("light or dark.")]
Width = Annotated[
    str | None,
    drawing(
        "Width of every figure: column (3.3in) or page (6.9in) of a paper, 84mm, 240pt, or inches. The figure fills "
        "it. Default: what the content needs."
    ),
]
FontSize = Annotated[
    float | None,
    drawing(
        "Size of the text in points; titles are larger, in proportion. Default: 7, or what fills the width.",
        metavar="POINTS",
    ),
]
Font = Annotated[str | None, drawing("An installed font family, or a font file. Default: DejaVu Sans.")]
Bare = Annotated[bool, drawing("Leave out title and notes, for a paper with captions of its own.")]

# Output

Top = Annotated[int | None, writing("Number of rows in each table; 0 for all. Default: 12.", min=0)]
By = Annotated[
    Literal["kv-head"] | None,
    writing(
        "Also write and print a table by kv-head: for each KV head (keys and values, which several heads may share) "
        "the means of its heads."
    ),
]
Table = Annotated[
    Literal["tex", "md"] | None,
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
AsJson = Annotated[bool, writing("Print the JSON document and nothing else.", "--json")]
Quiet = Annotated[bool, writing("Print no tables, no progress and no messages.", "--quiet", "-q")]
Verbose = Annotated[bool, writing("Print every table, and what the numbers mean.", "--verbose", "-v")]


# Options that travel together: a command that takes the group takes them by their names, and may declare one by itself.


class TextGroup:
    """Options of the commands that read one text."""

    text: Text
    pair: Pair = None
    truncate: Truncate = False


class ModelGroup:
    """Options of which model is opened."""

    model: Model = None
    revision: Revision = None
    device_map: DeviceMap = None


class LoadingGroup:
    """Options of how models are opened."""

    device: Device = "auto"
    dtype: Dtype = FLOAT32
    adapter: Adapter = None
    tokenizer: Tokenizer = None
    plugin: Plugin = None
    attention: Attention = None


class TargetGroup:
    """Options of what the decoder of an encoder-decoder reads."""

    target: Target = None
    source_language: SourceLanguage = None
    target_language: TargetLanguage = None


class GeneratedGroup(TargetGroup):
    """Options of what the decoder reads, or of how much it generates."""

    max_new_tokens: MaxNewTokens = None


class SyntaxGroup:
    """Options of parsing."""

    syntax: Syntax = True
    parser: Parser = None


class ColumnGroup:
    """Options of the columns of a table."""

    text_column: TextColumn = None
    pair_column: PairColumn = None


class LabelledGroup(ColumnGroup):
    """Options of the columns of a table that may have classes."""

    label_column: LabelColumn = None


class SampleGroup:
    """Options of the commands that read many texts."""

    limit: Limit = None
    batch_size: BatchSize = 32
    seed: Seed = 0


class FigureGroup:
    """Options of figures: which, and how they look."""

    figures: Figures = None
    formats: Formats = None
    theme: Theme = "light"
    width: Width = None
    font_size: FontSize = None
    font: Font = None
    bare: Bare = False


class PrintingGroup:
    """Options of where results go."""

    out: Out = None
    as_json: AsJson = False
    quiet: Quiet = False


class OutputGroup(PrintingGroup):
    """Options of where results go, and whether all are printed."""

    verbose: Verbose = False


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
    table: str | None
    by: str | None


class DrawingOptionNames(ViewOptionNames, total=False):
    """With the arguments of :class:`attnviz.figures.Style` the keywords of ``figure``, ``draw``, ``save``, ``page``."""

    theme: str
    scale: str
    width: float | str | None
    bare: bool
    font_size: float | None
    font: str | None


def option_of(name: str) -> tuple[Any, Any]:
    """Type and typer's declaration of the option that is an argument's, by its alias; two times None for none."""
    alias = globals().get("".join(map(str.capitalize, name.split("_"))))
    return get_args(alias) if get_origin(alias) is Annotated else (None, None)


def choices_of(kind: Any) -> tuple[str, ...]:
    """The valid values of an option of this type; none where any is valid."""
    return next((get_args(part) for part in (kind, *get_args(kind)) if get_origin(part) is Literal), ())


PATCH_DIRECTIONS, PATCH_SITES, PATCH_METRICS, PATH_NETWORKS, (DUO_ATTENTION, HEADVIS) = (
    choices_of(option_of(name)[0]) for name in ("direction", "site", "metric", "networks", "export")
)


def flag_of(name: str) -> str:
    """The flags of an option of the command line, such as ``--span``, ``--syntax/--no-syntax``."""
    _, option = option_of(name)
    return option.param_decls[0] if option is not None and option.param_decls else f"--{name.replace('_', '-')}"


def typed(values: Mapping[str, object]) -> list[str]:
    """Command-line arguments for these values, in their order; what is empty or the default is left out."""
    words = []
    for name, given in values.items():
        on, _, off = flag_of(name).partition("/")
        if off and not given:
            words.append(off)
        elif given and not off and (name, given) != ("dtype", FLOAT32):
            for value in given if isinstance(given, list) else [given]:
                words += [on] if value is True else [on, str(value)]
    return words


def check_option(name: str, value: object, function: str = "") -> None:
    """Raise UsageError for a value that an option does not take; None, and a function, are always valid.

    An option that two functions take by one name, but not the same values, has an alias with the function's name
    (:data:`PatchBy`).
    """
    kind, option = option_of(f"{function}_{name}")
    if option is None:
        kind, option = option_of(name)
    if option is None or value is None or callable(value):
        return
    choices = choices_of(kind)
    if choices and not (isinstance(value, str) and value in choices):
        raise UsageError(f"unknown {name} {as_found(value)}: expected one of {', '.join(choices)}.")
    if option.min is not None:
        if kind is float:
            check_share(name, value)
        else:
            check_whole(name, value, int(option.min), option.max and int(option.max))
    if option.parser is not None:
        option.parser(value)


def keywords_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's arguments by name, with those of the TypedDict that it unpacks."""
    kinds = dict[str, Any]()
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            for unpacked in get_args(parameter.annotation):
                kinds |= unpacked.__annotations__
        elif name != "self":
            kinds[name] = parameter.annotation
    return kinds


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check a function's arguments against its annotations and the options of their names.

    Of the functions that use a model, which take a ``device``, one runs at a time.

    Raises:
        TextError: by the function, where ``text`` or ``pair`` is no string.
        UsageError: by the function, with what was expected and found; for an unknown keyword also the nearest one.
        OutOfMemoryError: by the function, whatever a library raised for want of memory.
    """
    signature = inspect.signature(function)
    kinds = keywords_of(function)
    run = alone(function) if "device" in kinds else function

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
        several = {name for name in bound.arguments if signature.parameters[name].kind is VAR_POSITIONAL}
        arguments = {name: value for name, value in bound.arguments.items() if name in kinds} | bound.kwargs
        _check_order(function.__name__, next(iter(kinds)), arguments)
        _check_text(arguments, kinds, signature)
        for name, value in arguments.items():
            for one in value if name in several else [value]:
                check_kind(name, one, kinds[name])
            if "self" not in signature.parameters or name not in signature.parameters:  # a method's are its own
                check_option(name, value, function.__name__)
        with out_of_memory_named():
            return run(*args, **kwargs)

    return call


def _check_order(function: str, first: str, arguments: Mapping[str, Any]) -> None:
    """Raise UsageError where a model stands in the place of a text, or a text in that of the model."""
    given, model = arguments.get(first), arguments.get("model")
    is_model = first not in ("model", "models", "first") and hasattr(given, "config")
    if is_model or (isinstance(model, str) and len(model.split()) > 1 and not is_there(model)):
        found = f"a {type(given).__name__} as {first}" if is_model else f"the model {as_found(model)}"
        raise UsageError(f"expected {function}({first}, model, ...), in this order, found {found}.")


def _check_text(arguments: dict[str, Any], kinds: Mapping[str, Any], signature: inspect.Signature) -> None:
    """Take text and pair out of the arguments; TextError unless they are strings, where one text is expected."""
    if arguments.get("text", "") is None and signature.parameters["text"].default is None:
        del arguments["text"]
    if "text" in arguments and (kinds["text"] is str or isinstance(arguments["text"], str)):
        text, pair = arguments.pop("text"), arguments.pop("pair", None)
        if not isinstance(text, str) or not isinstance(pair, str | None):
            found = type(pair if isinstance(text, str) else text).__name__
            raise TextError(f"expected text (and pair) as a string, found {found}; give one text at a time.")
