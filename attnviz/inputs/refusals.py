"""What cannot be combined: two options, an option without another one, or with a kind of model or of input."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from attnviz.arguments import spelled
from attnviz.errors import AttnvizError, TextError, UsageError
from attnviz.models.checkpoint import Checkpoint

# Kinds of models, and of what is read.
ENCODER_DECODER = "an encoder-decoder"
ONE_TEXT = "a model that reads one text"
NO_ENCODER = "no encoder that reads one text"
NO_WRITER = "no decoder with a language-modelling head that attnviz knows"
NO_WORDS = "a model that reads sequences without words"
SEVERAL_TEXTS = "several texts"
OF_TOKENIZER = "what a tokenizer returned"
OTHER_KIND = "an input of another kind"
NOT_PARSED = "nothing to be parsed (a treebank has its trees)"
TABLE_OF_PAIRS = "a table of pairs"
NO_CORPUS = "no corpus"
GAP_TABLE = "a GAP table"


class Refusal(NamedTuple):
    """An option that cannot stand beside another one (or :func:`without` it), or a kind of model or input, and why."""

    option: str
    beside: str
    reason: str
    error: type[AttnvizError] = UsageError


def without(name: str) -> str:
    """What an option that needs this one is refused beside."""
    return f"no {name}"


_OF_DECODERS = "is of what a decoder reads beside a text, in encoder-decoders such as Marian, BART or T5"
_OF_ONE = "is of one text"
_OF_WHOLE = "is of a text, but a chat or a sound is the whole text"
_OF_WORDS = "is for texts of words"
_OF_TWO_PROMPTS = "is of two prompts, patched for all that reads them"
_OF_HEADS = "is of what heads write, at all tokens that are patched"
_OF_LOGITS = "divides the logit of --answer less that of --foil (columns of a table) among heads"

REFUSED = (
    Refusal("parser", "no_syntax", "names what parses the text, but nothing is to be parsed"),
    Refusal("parser", NOT_PARSED, "names what parses sentences"),
    Refusal("queries", ENCODER_DECODER, "is of models that read one text"),
    Refusal("contacts", "queries", "is of all rows"),
    Refusal("contacts", NO_ENCODER, "is of encoders that read one text, such as ESM-2"),
    Refusal("target", ONE_TEXT, _OF_DECODERS, TextError),
    Refusal("max_new_tokens", ONE_TEXT, _OF_DECODERS, TextError),
    Refusal("target", "max_new_tokens", "is given, and the other is for a target that the model writes", TextError),
    Refusal("words", NO_WORDS, _OF_WORDS),
    Refusal("parser", NO_WORDS, _OF_WORDS),
    Refusal("treebanks", NO_WORDS, _OF_WORDS),
    Refusal("pair", "chat", _OF_WHOLE),
    Refusal("pair", "audio", _OF_WHOLE),
    Refusal("chat", ENCODER_DECODER, "is of models that read one text"),
    Refusal("spans", ENCODER_DECODER, "is of models that read one text"),
    Refusal("generate", "pair", "continues one text", TextError),
    Refusal("generate", NO_WRITER, "takes a decoder such as GPT-2 or a Llama", TextError),
    Refusal("pair", SEVERAL_TEXTS, _OF_ONE),
    Refusal("pair", OF_TOKENIZER, _OF_ONE),
    Refusal("pair", OTHER_KIND, _OF_ONE),
    Refusal("contacts", SEVERAL_TEXTS, _OF_ONE),
    Refusal("contacts", OF_TOKENIZER, _OF_ONE),
    Refusal("target", SEVERAL_TEXTS, _OF_ONE),
    Refusal("generate", OF_TOKENIZER, "continues a text"),
    Refusal("alignments", ONE_TEXT, "is of encoder-decoders"),
    Refusal("alignments", "truncate", "is of all of given texts"),
    Refusal("alignments", "max_new_tokens", "is of given targets"),
    Refusal("answer", "label", "is beside a foil what the label would be"),
    Refusal("answer", without("foil"), "is measured against a foil"),
    Refusal("foil", without("answer"), "is what an answer is measured against"),
    Refusal("label", "labels", "is one for all"),
    Refusal("spans", TABLE_OF_PAIRS, _OF_TWO_PROMPTS),
    Refusal("spans", "at", _OF_TWO_PROMPTS),
    Refusal("spans", "receiver", _OF_TWO_PROMPTS),
    Refusal("spans", "self_repair", _OF_TWO_PROMPTS),
    Refusal("receiver", "site", _OF_HEADS),
    Refusal("receiver", "by", _OF_HEADS),
    Refusal("receiver", "self_repair", "is the end of a path, but heads are removed for all that read them"),
    Refusal("receiver", "select", "is the end of paths, which begin at the heads of --from (sender=...)"),
    Refusal("self_repair", "site", _OF_HEADS),
    Refusal("self_repair", "by", _OF_HEADS),
    Refusal("self_repair", without("foil"), _OF_LOGITS),
    Refusal("self_repair", "metric", _OF_LOGITS),
    Refusal("sender", without("receiver"), "begins a path"),
    Refusal("networks", without("receiver"), "is of a path"),
    Refusal("role", "repeats", "is a relation, which random tokens have none of"),
    *(
        Refusal("repeats", other, "is instead of texts")
        for other in "texts limit truncate label labels answer foil text_column pair_column label_column".split()
    ),
    Refusal("init", "published", "is for a new file of claims"),
    Refusal("limit", NO_CORPUS, "is for the sentences of a corpus"),
    Refusal("ablate", GAP_TABLE, "takes sentences, from a .conllu or .txt"),
)

_NAMES = {
    "no_syntax": "--no-syntax (syntax=False)",
    "treebanks": "a treebank or a GAP table",
    "truncate": "--truncate (truncate=True)",
    "words": "--words (words=True)",
    "self_repair": "--self-repair (self_repair=True)",
    "receiver": "--to (receiver=...)",
    "sender": "--from (sender=...)",
    "repeats": "--repeats (repeats=True)",
    "texts": "a text or a corpus",
    "labels": "labels=...",
}


def option_name(name: str) -> str:
    """An option as the command line and Python spell it: ``--pair (pair=...)``."""
    return _NAMES.get(name, spelled(name))


def refuse(options: Mapping[str, Any], checkpoint: Checkpoint | None = None, *reads: str) -> None:
    """Raise the error of the first of :data:`REFUSED` that holds for these options, by name; None, False: not given.

    With a ``checkpoint`` also for its kind; ``reads`` are kinds of what is read, where that is no single text.
    """
    given = {name for name, value in options.items() if _is_given(value)}
    missing = {without(name): name for name in options if name not in given}
    kinds = dict.fromkeys(reads, "what is read")
    if checkpoint is not None:
        kinds |= dict.fromkeys(_kinds(checkpoint), repr(checkpoint.architecture.name))
    for option, beside, reason, error in REFUSED:
        if option not in given:
            continue
        if beside in given:
            raise error(f"{option_name(option)} {reason}; leave it out, or {option_name(beside)}.")
        if beside in missing:
            raise error(f"{option_name(option)} {reason}; leave it out, or give {option_name(missing[beside])}, too.")
        if beside in kinds:
            raise error(f"{option_name(option)} {reason}, but {kinds[beside]} is {beside}; leave it out.")


def _is_given(value: object) -> bool:
    is_empty = isinstance(value, tuple | list | Mapping) and not value
    return not (value is None or value is False or is_empty)


def _kinds(checkpoint: Checkpoint) -> set[str]:
    architecture, of_two = checkpoint.architecture, bool(checkpoint.stacks)
    holds = {
        ENCODER_DECODER: of_two,
        ONE_TEXT: not of_two,
        NO_ENCODER: of_two or architecture.causal,
        NO_WRITER: of_two or not architecture.causal or checkpoint.language_head is None,
        NO_WORDS: not architecture.has_words,
    }
    return {kind for kind, is_one in holds.items() if is_one}
