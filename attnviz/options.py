"""Every option of every command: name, type, default, range, help.

The command line is made from this table. An option that says what to measure is also an argument of the command's
Python functions, which :func:`checked` holds against the table.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, get_args

from attnviz.arguments import as_found, check_kind, check_share, check_whole, is_there, n_bytes, one_of
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
REQUIRED = inspect.Parameter.empty  # the default of what has none
PLUGIN = "plugin"  # the option that names files to run first

# what can take the place of a removed head; see :class:`attnviz.run.edit.Removal`
METHODS = ("zero", "mean", "uniform")

# from which of two prompts into which a head's output is patched; see :mod:`attnviz.commands.patch`
PATCH_DIRECTIONS = ("denoise", "noise")
PATCH_SITES = ("z", "q", "k", "v", "attn_out", "mlp_out", "resid_pre", "resid_mid", "resid_post")
PATCH_METRICS = ("logit_difference", "loss", "kl")  # by what a patched prediction is measured

# what the feed-forward networks between the ends of a path do; see :mod:`attnviz.measures.paths`
PATH_NETWORKS = ("frozen", "run")

DUO_ATTENTION, HEADVIS = "duo-attention", "headvis"  # tools in whose forms a profile is written

# by what the effect of removing heads is measured; a model has two or three of them
ABLATE_METRICS = ("loss", "kl", "margin", "changed", "logit_difference", "cosine", "l2")
MOST_EXAMPLES = 100  # examples of a kind that can be asked for, of each role of each head: all are in memory
_LARGEST_SEED = 2**63 - 1  # the largest that torch takes
_LARGEST = 1_000_000  # the most texts that can be asked to be read at once


@dataclass(frozen=True)
class Option:
    """An option, or a positional argument."""

    name: str  # of the argument in Python
    kind: Any  # ``list[...]`` if it may be repeated
    help: str
    default: Any = None  # on the command line; Python may use None; ``()`` of a list
    metavar: str = ""  # default the name
    flags: tuple[str, ...] = ()  # default ``--name``, or ``--name/--no-name`` of a switch that is on
    least: int | None = None  # of a whole number
    most: int | None = None
    choices: tuple[str, ...] = ()  # the valid values
    or_function: bool = False  # whether Python takes a function, too
    check: Callable[[str, object], object] | None = None  # raises UsageError for the name and a wrong value
    any_language: bool = False  # a text or a part of one, in UTF-8 whatever the locale is
    positional: bool = False  # without a flag
    group: str = MEASUREMENT  # one of :data:`GROUPS`

    def __post_init__(self) -> None:
        typed = self.name.replace("_", "-")
        flag = f"--{typed}/--no-{typed}" if self.default is True else f"--{typed}"
        vars(self).update(flags=self.flags or (flag,), metavar=self.metavar or self.name.upper())

    @property
    def given_once(self) -> bool:
        return self.kind in (str, int, float, Path) and not self.positional

    def spelled(self, value: object) -> str:
        """The flag that gives this value: ``--syntax``, ``--no-syntax``."""
        on, _, off = self.flags[0].partition("/")
        return off if value is False and off else on

    def check_value(self, value: object) -> None:
        """Raise UsageError for a value out of range; None is always valid."""
        if value is None or (self.or_function and callable(value)):
            return
        if self.choices and not (isinstance(value, str) and value in self.choices):
            raise UsageError(f"unknown {self.name} {as_found(value)}: expected one of {', '.join(self.choices)}.")
        if self.least is not None:
            check_whole(self.name, value, self.least, self.most)
        if self.check is not None:
            self.check(self.name, value)


@dataclass(frozen=True, eq=False)
class Command:
    """A command: its options by the groups of its help, and the functions of :mod:`attnviz` that it calls.

    The options of the first two groups are arguments of these functions. ``of_one`` are for single texts alone,
    ``of_many`` for a file.
    """

    functions: tuple[str, ...]
    text: tuple[Option, ...]
    measurement: tuple[Option, ...] = ()
    pictures: tuple[Option, ...] = ()
    output: tuple[Option, ...] = ()
    of_one: tuple[str, ...] = ()
    of_many: tuple[str, ...] = ()

    @cached_property
    def options(self) -> tuple[Option, ...]:
        groups = zip(GROUPS, (self.text, self.measurement, self.pictures, self.output), strict=True)
        return tuple(replace(option, group=group) for group, options in groups for option in options)

    @property
    def measuring(self) -> list[str]:
        """Names of the options for text, model and measurement; without ``--plugin``, which Python has no need of."""
        groups = (TEXT_AND_MODEL, MEASUREMENT)
        return [option.name for option in self.options if option.group in groups and option.name != PLUGIN]

    def typed(self, values: Mapping[str, object]) -> list[str]:
        """Command-line arguments for these values, in their order; defaults and unknown names are left out."""
        known = {option.name: option for option in self.options}
        words = []
        for name, given in values.items():
            if name in known and given != known[name].default:
                for value in given if isinstance(given, list) else [given]:
                    words += [known[name].spelled(value), *([] if isinstance(value, bool) else [str(value)])]
        return words


def _switch(name: str, help_text: str, default: bool = False, *flags: str) -> Option:
    return Option(name, bool, help_text, default, flags=flags)


def _free_text(name: str, help_text: str, metavar: str = "") -> Option:
    return Option(name, str, help_text, metavar=metavar, any_language=True)


def _token(purpose: str, default: str, name: str = "token") -> Option:
    named = "Name a word (cat), its second occurrence (cat#2), or a position counted from 0 (#3)."
    return _free_text(name, f"{purpose}. {named} Default: {default}.")


def _seed(purpose: str) -> Option:
    return Option("seed", int, purpose, 0, least=0, most=_LARGEST_SEED)


def _top(rows: str) -> Option:
    """``--top``; None, the default, is known to the command's ``SPEC``, and prints the first screen."""
    return Option("top", int, f"{rows} 0 stands for all.", None, "N", least=0)


def _figures(command: str, before: str = "") -> tuple[Option, ...]:
    """``--figures``, whose help :func:`attnviz.present.report.views_in_words` completes, and the options of style."""
    text = f"Any of {{{command}}} (with commas between), all, or none. {before}Default: {{default}}."
    return (Option("figures", str, text), *_LOOK)


# fmt: off
_TEXT = Option("text", str, "The sentence. Write - to read standard input.", REQUIRED, positional=True)
_MODEL = (
    Option("model", str, "A built-in model (minilm, tiny-gpt2, smollm2), a checkpoint folder, or a Hugging Face hub "
           "id. Default: minilm, or what the adapter was trained on.", flags=("--model", "-m")),
    Option("revision", str, "Branch, tag or commit of a hub model."),
    Option("adapter", str, "An adapter of peft (LoRA and its kin) that is merged into the weights: a folder or a "
           "Hugging Face hub id."),
    Option("tokenizer", str, "The tokenizer of a model that was saved without one: a built-in model, a folder, or a "
           "Hugging Face hub id.", None, "MODEL"),
    Option(PLUGIN, list[Path], "A Python file that is run first: it registers patterns, model families or figures "
           "of your own (attnviz.register). May be given more than once.", (), "FILE"),
)
_TRUNCATE = _switch("truncate", "Cut a text that is too long for the model. Without this option it is refused, or left "
                    "out of a corpus.")
_DEVICE = (
    Option("device", str, "Where to compute: auto, cpu, cuda, cuda:N or mps.", "auto", flags=("--device", "-d")),
    Option("device_map", str, "Spread a model that is larger than one device over GPUs, memory and disk: auto, "
           "balanced or sequential.", None, "MAP"),
    Option("dtype", str, "Number format: float32, float64, bfloat16, float16, or auto, the checkpoint's own.",
           "float32"),
    Option("attention", str, "The implementation of attention that the model runs with: eager, sdpa, or another of "
           "transformers, such as flash_attention_2. Default: what transformers chooses, sdpa for most.", None, "NAME"),
)
_PAIR = _free_text("pair", "A second segment, joined as the tokenizer joins pairs.", "TEXT")
_TARGET = (
    _free_text("target", "The text that the decoder of an encoder-decoder (Marian, BART, T5) reads. Default: what the "
               "model itself generates, greedily.", "TEXT"),
    Option("source_language", str, "The language of the text, for a tokenizer that writes it as a token (NLLB, mBART): "
           "a code such as eng_Latn. Default: the tokenizer's own.", None, "CODE"),
    Option("target_language", str, "The same of what the decoder reads or writes, such as deu_Latn.", None, "CODE"),
)
_ONE_TEXT = (_TEXT, *_MODEL, _PAIR, _TRUNCATE, *_DEVICE)
_MAX_NEW_TOKENS = Option("max_new_tokens", int, "The longest target that the model generates, in tokens. Default: 40.",
                         None, "COUNT", least=1)
_WORDS = _switch("words", "Merge word pieces into words: attention to the pieces is summed, from them averaged.")
_PARSER = Option("parser", str, "The spaCy pipeline that parses the text. Default: an installed one that knows most "
                 "of its words. Code, and text in any other language, is not parsed unless this option is given.", None,
                 "PIPELINE")
_ANSWER = _free_text("answer", "The token, or the class of a text or a token, whose logit is divided into what each "
                     "head adds. Default: the model's first choice.", "TOKEN|CLASS")
_FOIL = _free_text("foil", "The token or class whose logit is subtracted from it. Default: the model's next choice.",
                   "TOKEN|CLASS")
_CORPORA = (
    Option("limit", int, "Read only the first N sentences of each corpus. Default: all.", None, "N", least=1),
    Option("batch_size", int, "How many texts the model reads at once.", 32, "N", least=1, most=_LARGEST),
)
_FREQUENCIES = Option("frequencies", Path, "Words with their counts (a line: house 1234), by which tokens are rare. "
                      "Default: counts in the corpora.", None, "FILE")
_COLUMNS = (
    _free_text("text_column", "Of a table (.csv, .tsv, .jsonl, .json, a datasets folder): the column of its texts. "
               "Default: text, sentence or prompt, or the only column of words.", "NAME"),
    _free_text("pair_column", "Of a table: the column of second segments, joined as the tokenizer joins pairs.",
               "NAME"),
)
_LABEL_COLUMN = _free_text("label_column", "Of a table: the column of the texts' classes. Default: label.", "NAME")
_MEMORY = Option("memory", str, "Memory that a block of query rows may take, such as 64M or 1G: less helps where a "
                 "long text runs out of memory. Changes results only by rounding. Default: 48M; on a GPU 1G, or a "
                 "quarter of what is free.", None, "SIZE", check=n_bytes)
_SELECT = Option("select", list[str], "Heads to draw and list: L2H8 or 2.8 (one head), L2 (a layer), L0-3 (layers), "
                 "L*H8; of encoder-decoders X0H3, X, E0-2. May be given more than once. Default: all heads.", (),
                 "HEADS")
_LOOK = (
    Option("formats", list[str], "png, svg or pdf. May be given more than once. Default: png.", (), "FORMAT",
           flags=("--format",)),
    Option("theme", str, "light or dark.", "light"),
    Option("width", str, "Width of every figure, which fills it: column (3.3in) or page (6.9in) of a paper, 84mm, "
           "240pt, or a number of inches. Default: what the content needs."),
    Option("font_size", float, "Size of the text in points; titles are larger, in proportion. Default: 7, or what "
           "fills the width.", None, "POINTS"),
    Option("font", str, "An installed font family, or a font file. Default: DejaVu Sans."),
    _switch("bare", "Leave out title and notes, for a paper with captions of its own."),
)
_OUT = Option("out", str, "Folder for the results. Default: a folder of attnviz-out, named after model and text.",
              None, "FOLDER", flags=("--out", "-o"))
_JSON = _switch("as_json", "Print the JSON document and nothing else.", False, "--json")
_TABLE = Option("table", str, "Also write the CSV file as a table for a paper, with a caption: tex (booktabs, as wide "
                "as a column or a page) or md.", None, "FORMAT", choices=("tex", "md"))
_BY = Option("by", str, "Also write and print a table by kv-head: for each KV head (keys and values, which several "
             "heads may share) the means of its heads.", None, "kv-head", choices=("kv-head",))
_QUIET = _switch("quiet", "Print no tables, no progress and no messages.", False, "--quiet", "-q")
_FILES = (
    _OUT,
    _JSON,
    _QUIET,
    _switch("verbose", "Print every table, and what the numbers mean.", False, "--verbose", "-v"),
)

# by name, in the order of ``attnviz --help``
COMMANDS = {
    "heads": Command(
        ("analyze", "analyze_each"),
        text=(
            replace(_TEXT, help=f"{_TEXT.help} With --each-line: a file of texts (.txt, .csv, .tsv, .jsonl, .json, "
                    ".conllu, a datasets folder) or chats, or - for lines. None with --chat or --audio.", default=None),
            Option("chat", Path, "Instead of TEXT a chat: a file (.json, .jsonl) of messages with role and content, "
                   "which the tokenizer's own chat template renders.", None, "FILE"),
            Option("audio", Path, "Instead of TEXT a sound, for Whisper: a WAV file of 16,000 samples a second of 16 "
                   "bits, or its log-mel features (.npy). --target is what was said.", None, "FILE"),
            *_MODEL,
            _switch("each_line", "Analyse every text of a file by itself, and how much the heads vary between them."),
            *_COLUMNS, _LABEL_COLUMN,
            Option("alignments", Path, "Of an encoder-decoder, with --each-line: gold word alignments, a line for each "
                   "text (0-0 1-2, possible ones 2?3). A text is then SOURCE ||| TARGET.", None, "FILE"),
            _PAIR,
            *_TARGET, _MAX_NEW_TOKENS,
            Option("generate", int, "Let a decoder (GPT-2, the Llama kind) write so many tokens after the text, "
                   "greedily, and show the attention of all.", None, "COUNT", least=1),
            _free_text("queries", "Measure and draw the rows of these tokens alone: last, a stretch such as -64: or "
                       "100:200, or a token as for --token. For long texts."),
            _TRUNCATE,
            *_DEVICE,
        ),
        measurement=(
            _WORDS,
            Option("spans", list[str], "Measure attention between stretches of the text: instruction=\"in one word\", "
                   "its second occurrence as doc=cat#2, or positions doc=#10-#40; last, rest (what no other span "
                   "has) and special tokens such as [CLS] are known by name. May be given more than once. The messages "
                   "of a chat, both texts of a pair, prompt and new text of --generate are spans without it.",
                   (), "NAME=TEXT", flags=("--span",), any_language=True),
            Option("contacts", Path, "Residues of a protein that are in contact: a .npy matrix (0 and 1, or distances "
                   "in ångström, below 8), or a text with two residues a line, counted from 1. Scores each head by its "
                   "precision, with and without the average product correction (APC).", None, "FILE"),
            _switch("syntax", "Parse the text if spaCy and a pipeline for it are installed.", True),
            _PARSER,
            _MEMORY,
        ),
        pictures=(
            replace(_SELECT, help=_SELECT.help.replace("E0-2", "E0-2; or a label on this text or a role over a corpus "
                                                       "(sink, previous, syntactic, obj)")),
            Option("scale", str, "Colour scale of overview, heads, mean and page: shared (0 to 1 for all heads; of "
                   "mean 0 to a round end), per-head (0 to the largest weight of the head), log, or auto (shared up "
                   "to 40 tokens, log beyond).", "auto"),
            _switch("drop_special", "Draw patterns without special tokens (GPT-2: without the first token), each row "
                    "scaled to sum to 1."),
            _token("Draw what this token attends to, in lines and text (adds the figure lines unless text is asked "
                   "for)", "all"),
            Option("relation", str, "Outline in heatmaps the pairs of a relation such as obj, or of each head's own "
                   "(own), and draw them as arcs (adds the figure relations). Needs a parse.", None, "NAME|own"),
            Option("maps", list[str], "Draw a map of this statistic, such as entropy, distance, sink or local (adds "
                   "the figure map). May be given more than once. Default: entropy.", (), "STATISTIC",
                   flags=("--map",)),
            *_figures("heads"),
        ),
        output=(
            _switch("save_attention", "Also write attention.safetensors, one tensor a layer."),
            _switch("save_npz", "Also write attention.npz, the same for NumPy."),
            _top("Number of heads in the tables, the clearest first, with all statistics and what they mean; "
                 "and in relations, those that find most. Default: a few heads of each kind."),
            _BY, _TABLE, *_FILES,
        ),
        of_one=(
            "audio", "pair", "target", "token", "generate", "relation", "queries", "spans", "contacts", "by",
        ),
        of_many=("text_column", "pair_column", "label_column", "alignments"),
    ),
    "compare": Command(
        ("analyze", "compare_corpus"),
        text=(
            Option("texts", list[str], "One text for two models, or two texts for one model. Write - to read standard "
                   "input. None with --corpus.", (), "TEXT", positional=True),
            Option("corpus", Path, "Compare two models over many texts: a file of texts, as for attnviz profile.",
                   None, "FILE"),
            *_COLUMNS, _LABEL_COLUMN,
            replace(_MODEL[0], kind=list[str], default=(),
                    help=f"{_MODEL[0].help} Give it twice for two models."),
            replace(_MODEL[1], kind=list[str], default=(),
                    help=f"{_MODEL[1].help} For two models give it twice, with - for none."),
            replace(_MODEL[2], help=f"{_MODEL[2].help} With one text, the model is compared with and without it."),
            replace(_MODEL[3], help=f"{_MODEL[3].help} Default: that of the other model."),
            _MODEL[4],
            _PAIR, *_TARGET, _TRUNCATE, *_DEVICE,
        ),
        measurement=(
            _WORDS,
            _switch("syntax", "Parse the texts if spaCy and a pipeline for them are installed.", True),
            _PARSER,
            _MEMORY,
            *_CORPORA,
            _seed("With --corpus: random seed of the bootstrap and of the verified sample."),
        ),
        pictures=(
            _SELECT,
            *_figures("compare", before="With --corpus: {compare.corpus}; of unlike models: {compare.roles}. "),
        ),
        output=(
            _top("Number of heads in the table and with a picture, the most different first. Default: 12, or all that "
                 "--select names."),
            _TABLE, *_FILES,
        ),
        of_one=("pair", "target", "words", "truncate", "memory"),
        of_many=("text_column", "pair_column", "label_column", "limit", "batch_size", "seed"),
    ),
    "profile": Command(
        ("profile_heads",),
        text=(
            Option("corpora", list[Path], "Files of texts (.txt, a text a line; .csv, .tsv, .jsonl, .json, .parquet; a "
                   "datasets folder), treebanks (.conllu), GAP files for coreference (.tsv), or chats (.jsonl).", (),
                   "CORPUS", positional=True),
            *_COLUMNS,
            *_MODEL,
            *_DEVICE,
        ),
        measurement=(
            _switch("repeats", "Also measure induction, duplicate-token and retrieval heads on random tokens."),
            *_CORPORA,
            _seed("Random seed of the verified sample, the bootstrap and the random tokens."),
            _FREQUENCIES,
            _switch("syntax", "Parse texts if spaCy and a pipeline for them are installed.", True),
            replace(_PARSER, help="The spaCy pipeline that parses texts. Default: an English one, whatever their "
                    "language."),
            _switch("control", "Also measure an untrained copy of the model, on up to 500 texts of each corpus. A role "
                    "passes only if its score is above that of the copy.", True),
            Option("examples", int, "Keep N sentences in which a head shows a role best, and N in which it fails most "
                   "clearly; 0 for none.", 8, "N", least=0, most=MOST_EXAMPLES),
            Option("show", list[str], "Print examples of heads (L2H8, L2) or a role (obj, sink) of a stored profile, "
                   "or with roles the roles of all heads, and measure nothing. With --table roles are a table for a "
                   "paper; with --figures, --format or --width pictures are drawn. Instead of a corpus, a profile.json "
                   "may be named. May be given more than once.", (),
                   "HEADS|ROLE|roles"),
            Option("export", str, "Also write a folder that another tool reads: duo-attention (retrieval scores of KV "
                   "heads, with --repeats; attnviz check holds them against a model) or headvis (its data, with a "
                   "corpus).", None, "TOOL", choices=(DUO_ATTENTION, HEADVIS)),
        ),
        pictures=_figures("profile"),
        output=(
            Option("store", bool, "Keep what was measured, so that attnviz heads shows it. Default: keep the parts of "
                   "no fewer texts than before.", flags=("--store/--no-store",)),
            _top("Number of rows in each table; with --show of hits and failures of each head. Default: 5 on "
                 "the first screen (of heads 10 without a treebank), 15 with --verbose; with --show 2."),
            _BY, _TABLE, *_FILES,
        ),
    ),
    "explain": Command(
        ("explain",),
        text=_ONE_TEXT,
        measurement=(
            Option("layer", int, "The layer to explain, counted from 0. Default: that of --head, or 0.",
                   flags=("--layer", "-l")),
            Option("head", str, "The head whose numbers are shown: 3, or L2H3 (names the layer). Default: 0."),
            _token("The token whose numbers are shown", "the last of the text"),
        ),
        pictures=_figures("explain"),
        output=_FILES,
    ),
    "outputs": Command(
        ("head_outputs",),
        text=(_TEXT, *_MODEL, _PAIR, *_TARGET, _MAX_NEW_TOKENS, _TRUNCATE, *_DEVICE),
        measurement=(
            replace(_token("Divide the logits at this position: of a language model, or of the class of a token", "the "
                           "last token; of BERT its mask, else the last word"), flags=("--token", "--at")),
            replace(_ANSWER, flags=("--answer", "--label")),
            _FOIL,
            _free_text("answer_span", "Question answering (TEXT is the question, --pair the context): divide the "
                       "logits of start and end of this stretch of the context: its text, TEXT#2 or #10-#12. Default: "
                       "the model's own answer.", "TEXT"),
            _MEMORY,
        ),
        pictures=(
            _SELECT,
            Option("scale", str, "Colour scale of norms: per-head (0 to the largest of the head), shared (0 to the "
                   "largest of all), log, or auto (per-head up to 40 tokens, log beyond).", "auto"),
            *_figures("outputs"),
        ),
        output=(
            _top("Number of heads in the tables and with a picture, the largest share first. Default: 12, or all that "
                 "--select names."),
            *_FILES,
        ),
    ),
    "ablate": Command(
        ("ablate",),
        text=(
            Option("texts", list[str], "Corpora (existing files, as for attnviz profile; a table may have labels) or "
                   "texts. Write - to read one text from standard input.", (),
                   "CORPUS|TEXT", positional=True),
            *_COLUMNS, _LABEL_COLUMN,
            *_MODEL,
            *_TARGET, _MAX_NEW_TOKENS, _TRUNCATE, *_DEVICE,
        ),
        measurement=(
            Option("method", str, "What takes the place of a removed head: mean (its mean output over all tokens), "
                   "zero (nothing), or uniform (the same attention to every visible token).", "mean", choices=METHODS),
            replace(_SELECT, help="Heads to remove: L2H8 or 2.8 (one head), L2 (a layer), L0-3 (layers), L*H8. May be "
                    "given more than once. Default: all heads."),
            _switch("together", "Also remove the selected heads as one set; then no layers and no curve."),
            Option("role", list[str], "Also measure the tokens of a relation (obj: objects, and verbs with an object), "
                   "each beside the nearest other word. May be given more than once. Needs trees, or a parser.", (),
                   "RELATION"),
            _switch("repeats", "Instead of texts, measure on random tokens, repeated: the second copy beside the "
                    "first."),
            _free_text("label", "Classifiers: the class of all these texts, by its name or number.", "CLASS"),
            replace(_ANSWER, help="With --foil: the token that follows the texts, at BERT's mask, or a classifier's "
                    "class; measured is how far its logit falls against that of the foil."),
            replace(_FOIL, help="The token or class that the answer, or --label, is compared with. A .tsv with the "
                    "columns text, answer and foil has its own."),
            *_CORPORA,
            _seed("Random seed of the bootstrap, of the random order and of the random projections."),
            _switch("curve", "Also remove heads together: each layer, and a growing share of all heads.", True),
            _switch("gradient", "Also measure importance by gradients (Michel et al. 2019).", True),
            Option("order_by", str, "The metric by which heads are ranked, and removed one after the other. Default: "
                   "loss, or else kl or cosine; of a classifier whose loss is near 0 on most texts the margin.",
                   choices=ABLATE_METRICS),
        ),
        pictures=_figures("ablate"),
        output=(_top("Number of heads in the table and in ablate-heads. Default: 12."), _TABLE, *_FILES),
    ),
    "patch": Command(
        ("patch",),
        text=(
            Option("clean", str, "The prompt whose prediction is right; or a table (.csv, .tsv, .jsonl, .json) with "
                   "the columns clean, corrupt, answer and foil, or label. Write - to read standard input.", REQUIRED,
                   "CLEAN|TABLE", positional=True),
            _free_text("corrupt", "The other prompt, of as many tokens.", "TEXT"),
            *_MODEL,
            *_DEVICE,
        ),
        measurement=(
            replace(_ANSWER, help="The token that follows the clean prompt, or stands at BERT's mask; of a classifier "
                    "a class."),
            replace(_FOIL, help="The token or class that the answer, or --label, is compared with."),
            _free_text("label", "Classifiers: the class of the clean prompt, by its name or number.", "CLASS"),
            Option("direction", str, "denoise: outputs of the clean run go into the corrupt run; noise: those of the "
                   "corrupt run into the clean one.", "denoise", choices=PATCH_DIRECTIONS),
            Option("site", str, "What is patched: z, what a head gives to W_O; its queries q, keys k or values v (of "
                   "KV heads where heads share them); or of a layer attn_out, mlp_out (what it adds to the residual "
                   "stream), resid_pre, resid_mid or resid_post (the stream before, between and after).", "z",
                   "SITE", choices=PATCH_SITES),
            Option("by", str, "position: patch each position alone, for a map of layer or head × position. Default: "
                   "all tokens at once.", None, choices=("position",)),
            Option("at", list[str], "Patch at these tokens of the clean prompt alone: last, a stretch such as 3:7, or "
                   "a token (cat, cat#2, #3). May be given more than once. Default: all.", (), "TOKEN",
                   any_language=True),
            Option("spans", list[str], "Patch at a stretch of both prompts alone, of as many tokens in each, as "
                   "place=\" in Paris\"; the prompts may then differ in length. Given twice with one NAME, first for "
                   "the clean, then for the corrupt prompt. May be given more than once.", (), "NAME=TEXT",
                   flags=("--span",),
                   any_language=True),
            Option("metric", str, "logit_difference, loss of the answer, or kl: divergence from the prediction after "
                   "the clean prompt. Default: the first with a foil, the second with an answer alone, else kl.",
                   choices=PATCH_METRICS, or_function=True),
            replace(_SELECT, help="Heads to patch: L2H8 or 2.8 (one head), L2 (a layer), L0-3 (layers), L*H8; of a "
                    "site of layers these. May be given more than once. Default: all."),
            Option("receiver", str, "Patch only the direct path to this: L2H1.q, L2H1.k, L2H1.v (queries, keys or "
                   "values of a head), or logits; all heads between are frozen.", None, "END", flags=("--to",)),
            Option("sender", list[str], "With --to: heads that paths begin at, as for --select. Default: all of "
                   "earlier layers.", (), "HEADS", flags=("--from",)),
            Option("networks", str, "With --to: whether feed-forward networks between are frozen, too, or run on what "
                   "the head writes, so that a path may go through them. Default: frozen.", choices=PATH_NETWORKS),
            _switch("self_repair", "Also measure how much of each head's direct effect later heads and networks make "
                    "good, with its corrupt output in the clean run. Needs --answer and --foil."),
            replace(_CORPORA[0], help="Read only the first N pairs of the table. Default: all."),
            replace(_CORPORA[1], help="How many pairs the model reads at once."),
            _seed("Random seed of the bootstrap over pairs."),
        ),
        pictures=_figures("patch"),
        output=(_top("Number of heads in the table. Default: 12."), _TABLE, *_FILES),
    ),
    "rollout": Command(
        ("rollout",),
        text=_ONE_TEXT,
        measurement=(
            _token("Rank the inputs of this token", "the first token ([CLS]); for GPT-2, the last"),
            Option("layer", int, "Roll out up to this layer, counted from 0. Default: the last.", least=0),
            Option("residual", float, "What a token keeps of itself in every layer: the weight of the identity, 0 to "
                   "1.", 0.5, "SHARE", check=check_share),
            _WORDS,
            _MEMORY,
        ),
        pictures=_figures("rollout"),
        output=(
            _top("Number of input tokens in the table. Default: 12."),
            *_FILES,
        ),
    ),
    "why": Command(
        ("why",),
        text=_ONE_TEXT,
        measurement=(
            Option("head", str, "The head, such as L2H8. It must be named."),
            _token("The token that attends", "the last of the text", "query"),
            _token("The token that it attends to", "the keys with most attention", "key"),
            _ANSWER,
            _FOIL,
            Option("depth", int, "Follow the largest part of the score into the head that wrote it, through N heads.",
                   1, "N", least=1, most=12),
            _MEMORY,
        ),
        pictures=_figures("why"),
        output=(_top("Number of pairs of sources in the table. Default: 12."), *_FILES),
    ),
    "circuits": Command(
        ("circuits",),
        text=(*_MODEL, *_DEVICE),
        pictures=(
            replace(_SELECT, help="Heads whose pairs are listed, as for attnviz heads. Default: all heads."),
            *_figures("circuits"),
        ),
        output=(_top("Number of pairs, and of heads, in each table. Default: 8."), *_FILES),
    ),
    "check": Command(
        ("check",),
        text=(
            Option("files", list[Path], "A TOML file of claims, or a list of heads for DuoAttention (its folder); with "
                   "--published corpora, as for attnviz profile. Default: claims.toml.", (), "FILE", positional=True),
            *_COLUMNS, _LABEL_COLUMN,
            replace(_MODEL[0], help=_MODEL[0].help.replace("Default: ", "Default: the one that the file names, ")),
            *_MODEL[1:], _TRUNCATE, _DEVICE[0], *_DEVICE[2:],
        ),
        measurement=(
            Option("init", list[Path], "First write FILE: as claims, what the ten clearest heads do over this corpus "
                   "now. May be given more than once.", (), "CORPUS"),
            Option("published", str, "Check the heads, or measure the table, of a paper instead, over corpora: "
                   "clark-2019, gu-2024 and others (see the guide).", None, "PAPER"),
            *_CORPORA,
            _seed("Random seed of all intervals, controls and random tokens."),
            _FREQUENCIES,
        ),
        output=(
            Option("junit", Path, "Also write the verdicts as JUnit XML, which CI services read.", None, "FILE"),
            _TABLE, *_FILES,
        ),
    ),
    "card": Command(
        ("card", "cards"),
        text=(
            Option("head", str, "The head, such as L2H8. None with --all.", None, positional=True),
            Option("source", str, "A text; or a corpus (as for attnviz profile) to profile all heads on, which takes "
                   "as long as attnviz profile does. Write - to read a text from standard input. Default: the stored "
                   "profile and an example of it.", None, "TEXT|CORPUS", positional=True),
            _switch("all_heads", "Every head that passes a role other than broad, and an index.", False, "--all"),
            *_MODEL, *_TARGET, _TRUNCATE, *_DEVICE,
        ),
        measurement=(
            _switch("repeats", "Also profile all heads on random tokens, repeated (induction, duplicate tokens)."),
            _CORPORA[0],
            _switch("circuits", "Also read from the weights which heads it composes with, and what it copies.", True),
            _switch("ablate", "Also remove the head, on the corpus or the text, and with --repeats on these."),
            Option("patch", Path, "Also show the effect of the head in a run of attnviz patch: its patch.json.", None,
                   "FILE"),
            _switch("syntax", "Parse the text if spaCy and a pipeline for it are installed.", True),
        ),
        pictures=_figures("card"),
        output=(_top("Number of rows in each table; with --all of heads. Default: 12."), *_FILES),
    ),
    "models": Command(
        ("model_configurations",),
        text=(
            Option("names", list[str], "A built-in model, a folder, a hub id, or a model of a paper (bert-large, "
                   "gpt2-xl, gpt3-175b). Default: all that are known here.", (), "NAME", positional=True),
            _switch("families", "List instead the architectures that are reproduced, and which commands work."),
            _switch("verify", "Load the named models instead, and verify every head on a fixed set of short texts."),
        ),
        output=(replace(_OUT, help="Folder for models.json and models.csv, or models-verify.json and .csv. Default: "
                        "none."), _JSON, _QUIET),
    ),
}
# fmt: on


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
    """The options of the table that are keywords of what a result draws, lists and writes."""

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


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check a function's arguments against its annotations and the table of options.

    Of the functions of :data:`COMMANDS`, which use models, one runs at a time.

    Raises:
        TextError: by the function, where ``text`` or ``pair`` is no string.
        UsageError: by the function, with what was expected and found; for an unknown keyword also the nearest one.
        OutOfMemoryError: by the function, whatever a library raised for want of memory.
    """
    signature = inspect.signature(function)
    commands = [command for command in COMMANDS.values() if function.__qualname__ in command.functions]
    options = {option.name: option for command in commands for option in command.options}
    run = alone(function) if commands else function
    known = dict.fromkeys(name for name in signature.parameters if name != "self")
    more = next((name for name in known if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD), "")
    kinds = {name: signature.parameters[name].annotation for name in known}
    if more:  # Unpack[...] of a TypedDict
        (unpacked,) = get_args(kinds.pop(more))
        del known[more]
        known |= dict.fromkeys(unpacked.__annotations__)
        kinds |= unpacked.__annotations__ if unpacked in (ModelOptions, CorpusOptions) else {}

    first = next(iter(known))

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                said = one_of(name, known, f"help({function.__qualname__}) lists them")
                raise UsageError(f"{function.__name__}() has no argument {name!r}: {said}")
        try:
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise UsageError(f"{function.__name__}(): {error}.") from error
        arguments |= arguments.pop(more, {})
        given, model = arguments.get(first), arguments.get("model")
        is_model = first not in ("model", "models", "first") and hasattr(given, "config")
        if is_model or (isinstance(model, str) and len(model.split()) > 1 and not is_there(model)):
            found = f"a {type(given).__name__} as {first}" if is_model else f"the model {as_found(model)}"
            raise UsageError(f"expected {function.__name__}({first}, model, ...), in this order, found {found}.")
        if arguments.get("text", "") is None and signature.parameters["text"].default is None:
            del arguments["text"]
        if "text" in arguments and (kinds["text"] is str or isinstance(arguments["text"], str)):
            text, pair = arguments.pop("text"), arguments.pop("pair", None)
            if not isinstance(text, str) or not isinstance(pair, str | None):
                found = type(pair if isinstance(text, str) else text).__name__
                raise TextError(f"expected text (and pair) as a string, found {found}; give one text at a time.")
        for name, value in arguments.items():
            if name not in kinds:  # of a result, which checks these itself
                continue
            several = name in signature.parameters and signature.parameters[name].kind is VAR_POSITIONAL
            for one in value if several else [value]:
                check_kind(name, one, kinds[name])
            if name in options:
                options[name].check_value(value)
        with out_of_memory_named():
            return run(*args, **kwargs)

    return call
