"""Inputs and metrics of an ablation: texts and corpora, batches of model inputs, and the tokens of roles.

An input is a text; or, where a masked token is to be predicted, a copy of the text with one token masked, so that a
text gives as many inputs as it has tokens to mask. Of a text that is classified, one token is read.

Whether what a head tracks also needs it: of a relation, each measured token of a word that attends is matched with the
nearest other one of its text that has a letter or digit, the earlier of two. Of random tokens that are repeated, each
token of the second copy is matched with the same token of the first. A text without both is in neither.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from attnviz.arguments import as_found, did_you_mean, is_there, relation_named
from attnviz.errors import CorpusError, TextError, UsageError
from attnviz.language.parsers import load_parser
from attnviz.language.syntax import DIRECTIONS
from attnviz.language.universal import RELATIONS
from attnviz.measures.direct_effects import named_ids
from attnviz.measures.relations import RelatedWords
from attnviz.measures.repeats import repeated_tokens
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.encoding import mask_token
from attnviz.profiles.parts import SYNTACTIC
from attnviz.run.generate import target_tokens
from attnviz.texts.batches import Batch, EncodedText, collate, encode
from attnviz.texts.lines import Place
from attnviz.texts.reading import (
    SUFFIXES,
    Corpus,
    DecoderTarget,
    Parser,
    Text,
    check_columns,
    open_corpus,
    read_texts,
    ready,
)
from attnviz.texts.tables import Columns, is_table_folder

NEXT, MASKED, STATES = "next-token", "masked-token", "states"
CLASSES = LABELLED, CLASS = "labelled-class", "class"
# Kinds of measurement: how well the next token is predicted, or a masked one, or how far the final states move; of a
# classifier how well the labelled class is predicted, or how far the probabilities of its classes move; how far the
# logit of an answer is above that of a foil, at one position of each text.
ANSWER = "answer"

_TOKENS = 4096  # most tokens of a batch, padding included

# Inputs of a batch are within 3 % or one token of the longest. Padding would cost more than large batches gain: a small
# batch is filled up with copies that lack other heads.
_FULL, _SLACK = 0.97, 1

_LOGITS = 2**26  # predictions times vocabulary of a batch: 256 MiB of probabilities in float32
Tell = Callable[[int, int], None]  # progress callback: texts or inputs done, and their total


class Metric(NamedTuple):
    """A measure of how much worse a model is without heads; 0 for no change."""

    name: str  # in documents
    title: str
    unit: str
    signed: bool = False  # whether it can be negative, since removing a head may help


MARGIN, DIFFERENCE = "margin", "logit_difference"  # names of metrics

METRICS = {
    # of the model without the heads, less that of the unchanged model
    "loss": Metric("loss", "loss increase", "nats/token", signed=True),
    "kl": Metric("kl", "KL divergence", "nats/token"),  # KL(unchanged model || model without the heads)
    "cosine": Metric("cosine", "cosine distance", "1 − cos"),  # one minus the cosine of the final states
    "l2": Metric("l2", "L2 distance", "length"),  # of the difference of the final states
    "changed": Metric("changed", "other decision", "share of texts"),  # 1 where the most probable class is another one
    # by how much the logit of the answer, less that of the foil, falls
    DIFFERENCE: Metric(DIFFERENCE, "logit difference lost", "logits", signed=True),
    # by how much the logit of the labelled class, or of that which the unchanged model decides for, less the largest
    # other one, falls; unlike a probability it does not saturate
    MARGIN: Metric(MARGIN, "margin lost", "logits", signed=True),
}


@dataclass(frozen=True)
class TextSources:
    """Texts and corpora, and all texts to measure on, in order."""

    texts: tuple[Text, ...]
    given: tuple[str, ...]  # texts that are not of a corpus
    corpora: tuple[tuple[Corpus, int], ...]  # with the number of sentences read


class ModelInput(NamedTuple):
    """One input of the model; the final states at some positions are compared."""

    item: EncodedText
    text: int  # index of the measured text
    positions: tuple[int, ...]
    labels: tuple[int, ...] = ()  # targets at these positions; empty without a prediction
    foils: tuple[int, ...] = ()  # what their logits are compared with; empty for the loss


class InputBatch(NamedTuple):
    """Inputs of about one length, padded on the right."""

    inputs: Sequence[ModelInput]
    batch: Batch


Contrast = tuple[str | int, str | int]  # an answer and a foil


def contrast_named(answer: str | int | None, foil: str | int | None, label: str | None) -> Contrast | None:
    """An answer, or a label in its place, and a foil; None without either. UsageError for one alone, or for three."""
    if answer is None and foil is None:
        return None
    if answer is not None and label is not None:
        raise UsageError("--answer and --label (answer=..., label=...) were given; expected one of them beside --foil.")
    answer = label if answer is None else answer
    if answer is None or foil is None:
        found = "--foil (foil=...)" if answer is None else "--answer (answer=...)"
        raise UsageError(f"expected an answer and a foil, --answer and --foil, found {found} alone.")
    return answer, foil


def read_sources(
    items: Sequence[str | Path],
    limit: int | None,
    label: str | None = None,
    contrast: Contrast | None = None,
    columns: Columns = Columns(),  # noqa: B008 - it is frozen
) -> TextSources:
    """Read texts and, up to ``limit`` sentences of each, corpora: existing files, and words that end as such.

    ``label`` is the class of all texts; a table may bring the class of each, in one of its ``columns``. Likewise
    ``contrast``, answer and foil.

    UsageError where nothing is given, or one corpus twice, or a text would have two labels or answers; TextError for a
    blank text; CorpusError for a corpus that cannot be read.
    """
    if not items:
        raise UsageError("nothing to measure on: expected a text or a corpus (.txt, .csv, .conllu or another).")
    texts, plain, corpora = list[Text](), list[str](), list[tuple[Corpus, int]]()
    for item in items:
        kind = source_kind(item)
        if kind == "folder":
            raise CorpusError(f"{item} is a folder; expected a corpus in it (.txt, .csv, .conllu), or a text.")
        if kind == "text":
            if not str(item).strip():
                raise TextError("a text is empty or blank; expected a sentence, or a corpus (.txt, .csv, .conllu).")
            plain.append(str(item))
            texts.append(Text(str(item), number=len(texts)))
            continue
        corpus = open_corpus(Path(item), columns, refused=("gap", "chats"))
        if any(other.sha256 == corpus.sha256 for other, _ in corpora):
            raise UsageError(f"expected different corpora, found {corpus.path} with the same content as another one.")
        has = set() if corpus.table is None else {"label", "answer"}.intersection(corpus.table.columns)
        if label is not None and has:
            raise UsageError(f"{corpus.path} has labels or answers of its own; --label (label=) is for texts without.")
        if contrast is not None and "answer" in has:
            raise UsageError(f"{corpus.path} has answers of its own; --answer and --foil are for texts without.")
        if corpus.table and (contrast is not None or "answer" in has):
            if columns.label is not None:
                raise UsageError(
                    f"{corpus.path}: --label-column (label_column=...) names the class of each text, but answers and "
                    "foils are measured; leave it out, or the answers."
                )
            corpus = replace(corpus, table=corpus.table.without_labels)
        before = len(texts)
        texts += [replace(text, number=before + text.number) for text in read_texts(corpus, limit)]
        corpora.append((corpus, len(texts) - before))
    check_columns([corpus for corpus, _ in corpora], columns)
    if label is not None:
        texts = [replace(text, label=label) for text in texts]
    if contrast is not None:
        texts = [replace(text, contrast=contrast) for text in texts]
    return TextSources(texts=tuple(texts), given=tuple(plain), corpora=tuple(corpora))


def _all_have(what: str, values: Sequence[object], texts: Sequence[Text]) -> bool:
    """Whether every text has one; CorpusError where some alone have."""
    bare = [text for text, value in zip(texts, values, strict=True) if value is None]
    if 0 < len(bare) < len(texts):
        where = bare[0].place or repr(bare[0].text[:60])
        raise CorpusError(f"{where}: expected {what}, as other texts have, found none; give it one, or leave it out.")
    return len(bare) < len(texts)


def source_kind(item: str | Path) -> str:
    """Classify an argument: ``folder``, ``corpus`` (also a missing file, or a wrong suffix), or ``text``."""
    name = str(item)
    is_path = isinstance(item, Path)
    one_word = not any(map(str.isspace, name))
    if is_there(name, is_table_folder):
        return "corpus"
    if is_there(name, Path.is_dir) and (is_path or name in {".", ".."} or ("/" in name and one_word)):
        return "folder"
    is_file = is_there(name, Path.is_file)
    return "corpus" if is_path or is_file or (one_word and name.lower().endswith(SUFFIXES)) else "text"


def prediction_kind(checkpoint: Checkpoint, texts: Sequence[Text] = (), wanted: bool = False) -> str:
    """Kind of measurement: predictions, if the model has a head for classes or tokens, else final states.

    UsageError where labels are ``wanted`` of a model without classes, and for answers of a model that predicts none;
    CorpusError where some texts alone have a label, or an answer.
    """
    if _all_have("an answer", [text.contrast for text in texts], texts):
        if checkpoint.stacks or prediction_kind(checkpoint) == STATES:
            model = "an encoder-decoder" if checkpoint.stacks else "a model without logits"
            raise UsageError(
                "an answer and a foil are for a decoder, a BERT with its masked-LM head, or a classifier, found "
                f"{model}; leave them out."
            )
        return ANSWER
    why = checkpoint.why_no_classes
    if not why:
        return LABELLED if _all_have("a label", [text.label for text in texts], texts) else CLASS
    if wanted:
        raise UsageError(f"labels are for a checkpoint with a head for sequence classification; {why}.")
    if checkpoint.language_head is not None and (checkpoint.architecture.causal or checkpoint.stacks):
        return NEXT
    return STATES if checkpoint.language_head is None or checkpoint.tokenizer.mask_token_id is None else MASKED


def metrics_of(kind: str) -> tuple[Metric, ...]:
    """The metrics: two, of classes three."""
    names = {
        STATES: ("cosine", "l2"),
        CLASS: ("kl", "changed", MARGIN),
        LABELLED: ("loss", "kl", MARGIN),
        ANSWER: (DIFFERENCE, "kl"),
    }.get(kind, ("loss", "kl"))
    unit = "nats/text" if kind in (*CLASSES, ANSWER) else "nats/token"  # measured once a text
    return tuple(METRICS[name]._replace(unit=METRICS[name].unit.replace("nats/token", unit)) for name in names)


def model_inputs(
    checkpoint: Checkpoint, texts: Sequence[Text], kind: str, truncate: bool, warn: Callable[[str], None]
) -> tuple[list[ModelInput], list[Text]]:
    """Model inputs of texts, and the texts that give any; ``warn`` tells those left out, TextError a given one."""

    def leave_out(text: Text, why: str) -> None:
        if text.place is None:
            raise TextError(f"cannot measure on {text.text[:60]!r}: {why}.")
        warn(f"{text.place}: left out: {why}.")

    inputs, kept = list[ModelInput](), list[Text]()
    offer = "shorten it, or pass --truncate (truncate=True) to cut it there"
    for item in encode(checkpoint, texts, leave_out, truncate, offer):
        of_text = inputs_of(checkpoint, item, kind, len(kept))
        inputs += of_text
        if of_text:
            kept.append(item.source)
        elif kind == NEXT:
            leave_out(item.source, "it has a single token, so there is no next one to predict")
        else:
            leave_out(item.source, "it has no token to mask")
    if not kept:
        raise TextError(
            "no text is left to measure on: all are too short or empty for this model, or too long (--truncate, "
            "truncate=True, cuts them)."
        )
    return inputs, kept


def inputs_of(checkpoint: Checkpoint, item: EncodedText, kind: str, text: int) -> list[ModelInput]:
    """The inputs that one text gives for a kind of measurement; ``text`` is its index."""
    target, source = item.source.target, item.source
    if target is not None:
        read = (int(checkpoint.config.decoder_start_token_id), *target.ids[:-1])
        item = replace(item, target=read, cut=item.cut or target.cut)
        return [ModelInput(item, text, tuple(range(len(read))), target.ids if kind == NEXT else ())]
    if kind == STATES:
        return [ModelInput(item, text, tuple(range(len(item))))]
    if kind == ANSWER:
        assert source.contrast is not None
        with naming_row(source.place):
            answer, foil = named_ids(checkpoint, *source.contrast)
            position = answer_position(checkpoint, item)
        assert answer is not None
        assert foil is not None
        return [ModelInput(item, text, (position,), (answer,), (foil,))]
    if kind in CLASSES:
        classifier = checkpoint.classifier
        labels = list[int]()
        assert classifier is not None
        if kind == LABELLED:
            try:
                with naming_row(source.place):
                    labels.append(classifier.number(source.label or ""))
            except CorpusError as error:
                raise CorpusError(f"{error} A header of columns is text and label.") from error
        return [ModelInput(item, text, (classifier.position(item.ids),), tuple(labels))]
    if kind == NEXT:
        return [ModelInput(item, text, tuple(range(len(item) - 1)), item.ids[1:])] if len(item) > 1 else []
    mask = mask_token(checkpoint.tokenizer, int(checkpoint.config.vocab_size))
    assert mask is not None  # else the final states are what is measured
    return [
        ModelInput(replace(item, ids=(*item.ids[:at], mask, *item.ids[at + 1 :])), text, (at,), (token,))
        for at, (token, sink) in enumerate(zip(item.ids, item.sink, strict=True))
        if not sink and token != mask  # nobody knows what stood under a mask of the text
    ]


@contextmanager
def naming_row(place: Place | None) -> Iterator[None]:
    """Name the line of a file, or the row of a table, in what is raised inside the block."""
    try:
        yield
    except (TextError, UsageError) as error:
        if place is None:
            raise
        raise CorpusError(f"{place}: {error}") from error


def answer_position(checkpoint: Checkpoint, item: EncodedText) -> int:
    """Where the answer is predicted: at the last token, or the mask; of a classifier where it reads."""
    if checkpoint.classifier is not None:
        return checkpoint.classifier.position(item.ids)
    if checkpoint.architecture.causal:
        return len(item) - 1
    mask = mask_token(checkpoint.tokenizer, int(checkpoint.config.vocab_size))
    if item.ids.count(mask) != 1:
        token = checkpoint.tokenizer.mask_token
        raise TextError(
            f"expected {token} once in {item.source.text[:60]!r}, where the answer is predicted, found it "
            f"{item.ids.count(mask)} times."
        )
    return item.ids.index(mask)


def with_targets(
    checkpoint: Checkpoint,
    sources: TextSources,
    target: str | None,
    truncate: bool,
    max_new_tokens: int | None,
    tell: Tell,
    warn: Callable[[str], None],
) -> TextSources:
    """Add targets for the decoder of an encoder-decoder: the given one, or what the model generates greedily.

    ``warn`` is called for each text of a corpus that is left out. UsageError for one target of several texts, TextError
    where a given text cannot be read, or the model cannot generate.
    """
    if not checkpoint.stacks:
        return sources
    n = len(sources.texts)
    targets = list[Text]()
    if target is not None and n != 1:
        raise UsageError(
            f"one target (--target, target=...) is for one text, found {n} texts; leave it out, and the model writes a "
            "target for each."
        )
    for number, text in enumerate(sources.texts, 1):
        try:
            tokens = checkpoint.tokenize(text.text, truncate=truncate)
            read = target_tokens(checkpoint, tokens, target, truncate, max_new_tokens)
        except TextError as error:
            if text.place is None or checkpoint.language_head is None:
                raise
            warn(f"{text.place}: left out: {error}")
        else:
            cut = read.tokens.truncated > 0
            targets.append(replace(text, target=DecoderTarget(read.text, read.predicted, cut)))
        tell(number, n)
    return replace(sources, texts=tuple(targets))


def input_batches(checkpoint: Checkpoint, inputs: Sequence[ModelInput], batch_size: int) -> Iterator[InputBatch]:
    """Batch inputs of similar length, fewer of long ones, in a random order: any sample has inputs of all lengths."""
    groups: list[list[ModelInput]] = []
    room = tokens = logits = 0
    for model_input in sorted(inputs, key=lambda model_input: -len(model_input.item)):
        predicted = len(model_input.labels) * int(checkpoint.config.vocab_size)
        logits, tokens = logits + predicted, tokens + room
        short = len(model_input.item) + _SLACK < _FULL * room
        if not groups or short or len(groups[-1]) == batch_size or tokens > _TOKENS or logits > _LOGITS:
            groups.append([])
            room = tokens = len(model_input.item)
            logits = predicted
        groups[-1].append(model_input)
    random.Random(len(groups)).shuffle(groups)  # noqa: S311 - an order, not a secret
    for group in groups:
        yield InputBatch(group, collate(checkpoint, [model_input.item for model_input in group]))


REPEATED = "repeated tokens"  # the name of what is measured on random tokens: their second copy, beside the first


class RoleTokens(NamedTuple):
    """The tokens of a role's queries: a relation in one direction, or :data:`REPEATED`."""

    role: str
    direction: str | None


def role_names(roles: object) -> list[str]:
    """One relation or several, as a list; UsageError for anything else."""
    names = [roles] if isinstance(roles, str) else roles
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"expected role as a relation such as 'obj', or a list of these, found {as_found(roles)}.")
    return [relation_named(name) for name in names]


def role_tokens(roles: Sequence[str], repeats: bool) -> list[RoleTokens]:
    """What is measured apart, of each relation both directions; UsageError for unknown relations."""
    names = [role.removeprefix(SYNTACTIC) for role in roles]
    for name in names:
        if name.partition(":")[0] not in RELATIONS:
            known = f"expected a relation, one of {', '.join(RELATIONS)}.{did_you_mean(name, RELATIONS)}"
            raise UsageError(f"unknown role {name!r}: {known}")
    if repeats and names:
        raise UsageError("random tokens have no relations: expected --role (role=...) with a corpus, or --repeats.")
    if repeats:
        return [RoleTokens(REPEATED, None)]
    return [RoleTokens(f"{SYNTACTIC}{name}", direction) for name in dict.fromkeys(names) for direction in DIRECTIONS]


def texts_with_roles(checkpoint: Checkpoint, texts: Sequence[Text], kind: str, repeats: bool, seed: int) -> list[Text]:
    """The texts, parsed where they have no trees, without trees too small or large for a profile; or random ones."""
    if kind == ANSWER:
        raise UsageError("an answer is predicted at one token of a text; leave out --role (role=...) and --repeats.")
    if checkpoint.stacks or kind in CLASSES:
        model = "an encoder-decoder" if checkpoint.stacks else "a classifier"
        raise UsageError(
            f"this is {model}: --role (role=...) and --repeats are for models that read one text and predict or encode "
            "its tokens."
        )
    if repeats and not checkpoint.architecture.causal:
        raise UsageError(
            "this model reads both copies of repeated tokens at once, so that neither is the first: expected --repeats "
            "(repeats=True) with a causal model, such as GPT-2."
        )
    if repeats:
        drawn = enumerate(repeated_tokens(checkpoint, seed).tolist())
        return [Text("", number=number, ids=tuple(ids)) for number, ids in drawn]
    parse = None
    if not all(text.spans for text in texts):
        pipeline = load_parser()
        if pipeline is None:
            raise UsageError(
                "the tokens of a role need a treebank (.conllu), or spaCy to parse with: pip install 'attnviz[syntax]'."
            )
        parse = Parser(pipeline)
    known = (ready(text, parse) for text in texts)
    return [text for text in known if text is not None]


def token_weights(checkpoint: Checkpoint, inputs: Sequence[ModelInput], roles: Sequence[RoleTokens]) -> list[Tensor]:
    """How often each token counts, by text, [n_tokens, 1 + 2 * n_roles]: among all, then queries and matches of roles.

    TextError where no measured token is a query of any role.
    """
    weights = list[Tensor]()
    for _, inputs_of_text in groupby(inputs, key=lambda model_input: model_input.text):
        of_text = list(inputs_of_text)
        item = of_text[0].item
        positions = [position for model_input in of_text for position in model_input.positions]
        counts = torch.zeros(len(item) + len(item.target), 1 + 2 * len(roles), dtype=torch.float64)
        counts[positions, 0] = 1
        words = RelatedWords.of([(item.members, item.source.arcs, [i for i, sink in enumerate(item.sink) if sink])])
        for number, role in enumerate(roles):
            pairs = _queries_with_matches(item, positions, words, role, checkpoint.architecture.causal)
            for side in (0, 1):
                chosen = torch.tensor([pair[side] for pair in pairs], dtype=torch.long)
                counts[:, 1 + 2 * number + side] = torch.bincount(chosen, minlength=len(counts))
        weights.append(counts)
    if roles and not any(counts[:, 1:].any() for counts in weights):
        names = " or ".join(dict.fromkeys(role.role.removeprefix(SYNTACTIC) for role in roles))
        raise TextError(f"no measured token of these texts attends by {names}: expected more texts, or another role.")
    return weights


def _queries_with_matches(
    item: EncodedText, positions: Sequence[int], words: RelatedWords, role: RoleTokens, causal: bool
) -> list[tuple[int, int]]:
    """Each measured query of a role, of a relation that the model can see, with its match."""
    if role.role == REPEATED:
        half = len(item) // 2
        return [(position, position - half) for position in positions if position >= half]
    pairs = words.instances().get(role.role.removeprefix(SYNTACTIC), [])
    if role.direction != DIRECTIONS[0]:
        pairs = [pair[::-1] for pair in pairs]
    visible = [query for query, key in pairs if key < query or not causal]
    queries = {position for query in visible for position in words.members[0][query]}
    others = [
        position
        for position in positions
        if position not in queries and not item.sink[position] and any(map(str.isalnum, item.pieces[position]))
    ]
    measured = [position for position in positions if position in queries]
    return [(query, min(others, key=lambda other: abs(other - query))) for query in measured if others]
