"""What a model reads, tokens and words of it, their positions, and patterns merged from tokens into words.

A label is the piece as the model sees it, without its leading space, and with a mark if it continues a word: ``##`` in
WordPiece, ``~`` in byte-level BPE and SentencePiece. Characters that cannot be seen are written as escapes.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from itertools import count, groupby, islice, takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnviz.arguments import as_found, is_whole
from attnviz.errors import TextError, UsageError
from attnviz.inputs.chats import Chat, RenderedChat
from attnviz.inputs.lines import Place
from attnviz.inputs.words import OTHERS, WORDPIECE
from attnviz.language.syntax import Arc, overlapping
from attnviz.models.checkpoint import Checkpoint
from attnviz.wording import counted, shortened, visible

_SHORT_ENOUGH_TO_LIST = 20
_LONGEST_NUMBER = 10
# Tokens that are taken for special ones: ``[CLS]``, ``<s>``, ``<|endoftext|>``; one that is unknown is of the text.
_SPECIAL = re.compile(r"(?!\[UNK\]|<unk>)(\[[A-Z]+\]|<[^<>\s]+>)")

_STRETCH = re.compile(r"(-?[0-9]{1,9})?:(-?[0-9]{1,9})?")


@dataclass(frozen=True)
class Text:
    """A text of a corpus, with the spans that attention is measured between."""

    text: str  # what the model reads: a line, a passage, or a treebank's word forms with single spaces between
    # first and past-the-last character of each syntactic word of a tree, or of GAP's pronoun and its names A and B
    spans: tuple[tuple[int, int], ...] = ()
    arcs: tuple[Arc, ...] = ()  # dependency relations between the spans, without punctuation and root
    place: Place | None = None  # its line, in a treebank that of its first word
    number: int = 0  # its index in the corpus
    pair: str | None = None  # the second segment, of a table with such a column
    id: str | None = None  # of its row, sentence (sent_id) or example of GAP
    answer: int | None = None  # in GAP, which name the pronoun means
    subjects: tuple[bool, bool] | None = None  # in GAP, whether each name is a subject; None without a parser
    label: str | None = None  # its class: a name or a number
    contrast: tuple[str | int, str | int] | None = None  # answer and foil, tokens or classes whose logits are compared
    target: "TargetTokens | None" = None  # what the decoder of an encoder-decoder reads
    ids: tuple[int, ...] = ()  # in place of a text: random ones, or a user's
    ids_given: bool = False  # whether they are a user's: some are special, and they spell a text
    chat: Chat | None = None  # has no text before it is rendered; then ``text`` is that

    @property
    def texts(self) -> list[str]:
        """The text, or both of a pair."""
        return [self.text] if self.pair is None else [self.text, self.pair]

    @property
    def given_alone(self) -> bool:
        """Whether it is of no file and no table."""
        return self.place is None or (self.place.path is None and not self.place.is_row)


@dataclass(frozen=True)
class Span:
    """A stretch of a text."""

    name: str
    tokens: tuple[int, ...]  # positions, in order, at least one
    given: str = ""  # what a user named it by; '' of one that the text has by itself


@dataclass(frozen=True)
class Continuation:
    """What a decoder wrote after its text."""

    text: str
    whole: str  # the text and what was written after it, as the tokens spell them
    first: int  # the position of its first token
    count: int  # its tokens
    requested: int  # how many tokens were asked for
    hit_eos: bool  # whether the model ended the text before these were written; the end token is left out


@dataclass(frozen=True)
class Prompt:
    """What a model reads: a text, a pair, a chat, ids, a sound; one row of a batch.

    Every tuple from ``ids`` to ``offsets`` has one entry a token. One of many texts has no labels and words, and ids
    drawn at random have only ``special`` and ``sink``. The functions of :func:`read_prompt` make it, one a kind.
    """

    ids: tuple[int, ...]
    special: tuple[bool, ...]  # added by the tokenizer itself ([CLS], [SEP]), not part of the text
    sink: tuple[bool, ...]  # special tokens and, in a decoder, position 0 and others (:mod:`attnviz.measures.sinks`)
    labels: tuple[str, ...] = ()  # as figures and tables show them
    # the word (:func:`attnviz.inputs.words.word_spans`), counted over both segments; None if special
    words: tuple[int | None, ...] = ()
    segments: tuple[int | None, ...] = ()  # 0 or 1, the text or its pair; None for special tokens
    offsets: tuple[tuple[int, int], ...] = ()  # first and past-the-last character in its segment's text
    type_ids: tuple[int, ...] | None = None  # BERT's token types; None where the model is given none
    word_labels: tuple[str, ...] = ()  # one entry a word: its pieces joined
    truncated: int = 0  # how many tokens were cut off to fit the model
    unknown_id: int | None = None  # of the token in place of all that the vocabulary lacks
    spelled: str | None = None  # what the tokens spell, where offsets are of that; None where they are of the text
    why_unparsed: str = ""  # why no parser can read it, in a sentence; else empty
    source: Text = field(default=Text(""), compare=False)  # the text that it was made from
    members: tuple[tuple[int, ...], ...] = field(default=(), compare=False)  # of each span of the source, its tokens
    messages: tuple[Span, ...] = field(default=(), compare=False)  # of a chat, those that were not cut off
    written: Continuation | None = field(default=None, compare=False)  # what the model wrote at its end

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'token')}: {shortened(' '.join(self.labels), 80)}>"

    @property
    def sinks(self) -> frozenset[int]:
        return frozenset(position for position, is_sink in enumerate(self.sink) if is_sink)

    @property
    def n_unknown(self) -> int:
        """How many tokens of the text stand for what the vocabulary lacks; a colon between chains is none."""
        return sum(token == (self.unknown_id, False) for token in zip(self.ids, self.special, strict=True))

    @property
    def texts(self) -> list[str]:
        """The text, or both of a pair, up to the last character that the model reads."""
        if self.written is not None:
            return [self.written.whole]
        whole = self.source.texts
        if not self.truncated:
            return whole
        ends = [0] * len(whole)
        for segment, (_, end) in zip(self.segments, self.offsets, strict=True):
            if segment is not None:
                ends[segment] = max(ends[segment], end)
        return [text[:end] for text, end in zip(whole, ends, strict=True)]

    @property
    def asked(self) -> tuple[list[str], dict[str, object]]:
        """What a command line reads it from: a text, and options by name, of which some stand in place of a text."""
        chat = self.source.chat
        return [] if chat else [self.source.text], {
            "chat": chat and (chat.file or "chat.json"),
            "pair": self.source.pair,
            "generate": self.written and self.written.requested,
            "truncate": self.truncated > 0,
        }

    @property
    def intervals(self) -> "Positions | None":
        """What pictures have in place of the columns of its tokens; None for these themselves."""
        return None

    @property
    def size(self) -> str:
        """How much it is, in words, where that is not its number of units; else ''."""
        return ""

    @property
    def first_new(self) -> int | None:
        """The first token that a decoder wrote: after the text, or of the answer that ends a chat; None without."""
        if self.written is not None:
            return self.written.first
        chat = self.source.chat
        if not isinstance(chat, RenderedChat) or not chat.answered or not self.messages:
            return None
        last = self.messages[-1]
        return last.tokens[0] if last.name == [*chat.places][-1] else None

    @property
    def pieces(self) -> tuple[str, ...]:
        """The characters of each token; empty for special ones."""
        read = [self.spelled] if self.spelled is not None else [self.source.text, self.source.pair or ""]
        placed = zip(self.segments, self.offsets, strict=True)
        return tuple("" if segment is None else read[segment][start:end] for segment, (start, end) in placed)

    def overlapping(self, spans: Sequence[tuple[int, int]], segment: int = 0) -> tuple[tuple[int, ...], ...]:
        """Of each stretch of characters of the text, or of its pair (segment 1), the tokens that overlap it."""
        placed = zip(self.segments, self.offsets, strict=True)
        return overlapping([offsets if of == segment else (0, 0) for of, offsets in placed], spans)

    @property
    def notes(self) -> list[str]:
        """Sentences on how a text was read: its pair, unknown tokens, special tokens that it has twice."""
        label = self.labels[self.ids.index(self.unknown_id)].lstrip("~#") if self.n_unknown else None
        notes = [unknown_note(self.n_unknown, self.special.count(False), label)]
        if self.type_ids is None and 1 in self.segments:
            runs = groupby(range(len(self)), key=self.segments.__getitem__)
            joined = "".join(
                "".join(self.labels[i] for i in run) if segment is None else (" TEXT ", " PAIR ")[segment]
                for segment, run in runs
            )
            notes.insert(
                0, f"This model has no token types: the pair is joined as its tokenizer does, {joined.strip()}."
            )
        for outer, inner, what in ((0, 1, "begins with"), (-1, -2, "ends with")):
            if self.special[outer] and self.special[inner] and self.ids[outer] == self.ids[inner]:
                notes.append(
                    f"The text {what} {self.labels[outer]}, which the tokenizer adds, too: it stands there twice, and "
                    "both are special tokens. Leave it out of the text."
                )
        return list(filter(None, notes))

    def model_inputs(self, device: torch.device) -> dict[str, Tensor]:
        """What the model's forward takes: a batch of this one text, [1, n] each."""
        inputs = {
            "input_ids": torch.tensor([self.ids], device=device),
            "attention_mask": torch.ones(1, len(self), dtype=torch.long, device=device),
        }
        if self.type_ids is not None:
            inputs["token_type_ids"] = torch.tensor([self.type_ids], device=device)
        return inputs


class TargetTokens(NamedTuple):
    """What the decoder of an encoder-decoder is to predict, and its input: a start token and all but the last of it."""

    text: str
    tokens: Prompt
    generated: bool  # by the model, or given
    predicted: tuple[int, ...] = ()  # vocabulary entries of the target, of the token that each position predicts
    max_new_tokens: int | None = None  # that the model may write, if that was limited


@singledispatch
def read_prompt(given: object, checkpoint: Checkpoint, truncate: bool = False) -> Prompt:  # noqa: ARG001 - of kinds
    """The prompt of what was given: each kind is a function for its type, registered with ``read_prompt.register``.

    ``truncate`` cuts what is longer than the model. TextError, or UsageError, for what cannot be read.
    """
    raise TextError(f"expected text (or several, in a list) as a string, found {type(given).__name__}.")


def drawn_ids(ids: Sequence[int], source: Text = Text("")) -> Prompt:
    """Vocabulary entries as they stand, without special tokens of their own."""
    none = (False,) * len(ids)
    return Prompt(tuple(ids), none, none, source=source)


def unknown_note(n_unknown: int, n_tokens: int, label: str | None, where: str = "") -> str:
    """A sentence on tokens that stand for what the vocabulary lacks, or ''."""
    if not n_unknown:
        return ""
    are = "is" if n_unknown == 1 else "are"
    return f"{n_unknown:,} of {counted(n_tokens, 'token')}{where} {are} unknown to this tokenizer ({label})."


def told_apart(ids: Sequence[int], unknown_id: int | None) -> list[int]:
    """The ids, unknown tokens each with a negative number of its own: they are no copies of one another."""
    return [-1 - position if token == unknown_id else token for position, token in enumerate(ids)]


@dataclass(frozen=True)
class Positions:
    """What attention is measured between: tokens, or words merged from their pieces. Tuples have an entry a unit."""

    name: str  # ``token`` or ``word``
    labels: tuple[str, ...]
    special: tuple[bool, ...]
    sink: tuple[bool, ...]  # whether one of its tokens is one
    members: tuple[tuple[int, ...], ...]  # its token positions; a token may be in none
    wholes: tuple[tuple[str, tuple[int, ...]], ...] = ()  # text and positions of each word of several units

    def __len__(self) -> int:
        return len(self.labels)


def tokens_of_labels(labels: tuple[str, ...], causal: bool) -> Prompt:
    """Tokens that are known by their labels alone; in causal ones the first is a sink."""
    special = tuple(_SPECIAL.fullmatch(label) is not None for label in labels)
    numbers = count()
    types = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return Prompt(
        ids=tuple(types[label] for label in labels),
        labels=labels,
        special=special,
        sink=tuple(is_special or (causal and not position) for position, is_special in enumerate(special)),
        words=tuple(None if is_special else next(numbers) for is_special in special),
        segments=tuple(None if is_special else 0 for is_special in special),
        offsets=((0, 0),) * len(labels),
        word_labels=tuple(label for label, is_special in zip(labels, special, strict=True) if not is_special),
        unknown_id=types.get("[UNK]", types.get("<unk>")),
        source=Text(" ".join(labels)),
    )


def shifted_right(tokens: Prompt, start: int, label: str) -> Prompt:
    """What a decoder reads to predict a target: a start token (its id, its text), then all but the target's last token.

    So the token at each position is the one before the token predicted there. A target may have its start already.
    """
    added: dict[str, Any] = {"ids": start, "labels": label, "special": True, "sink": True, "offsets": (0, 0)}
    added |= {"words": None, "segments": None}
    has_start = tokens.ids[0] == start
    later: dict[str, Any] = {
        name: (*(() if has_start else (value,)), *getattr(tokens, name)[:-1]) for name, value in added.items()
    }
    return replace(tokens, **later)


def sinks_in_words(
    units: Prompt | Positions, unit: str, special: str = "special tokens", first: str = "the first"
) -> str:
    """The sinks of a text, in words: ``special tokens``, ``the first token``, ``“.” (#5)``; empty where it has none."""
    positions = [position for position, sink in enumerate(units.sink) if sink and not units.special[position]]
    if isinstance(units, Positions) and any(0 in parts for _, parts in units.wholes):
        unit = "token"  # the first piece of the first word
    kinds = [special] if any(units.special) else []
    if 0 in positions:
        kinds.append(f"{first} {unit}")
    kinds += [f"“{units.labels[position]}” (#{position})" for position in positions if position]
    return " and ".join(filter(None, [", ".join(kinds[:-1]), *kinds[-1:]]))


def merge_subwords(tokens: Prompt, words: bool) -> Positions:
    """The tokens themselves, or their words; special tokens and sinks always stay on their own.

    So of a decoder's first word, which begins with a sink, the other pieces are a word.
    """
    word_of = [word if word is not None else -1 - position for position, word in enumerate(tokens.words)]
    unit_of = list(zip(word_of, tokens.sink, strict=True)) if words else range(len(tokens))
    members = tuple(tuple(group) for _, group in groupby(range(len(tokens)), key=unit_of.__getitem__))
    firsts = [group[0] for group in members]
    grouped = groupby(range(len(members)), key=lambda unit: word_of[firsts[unit]])
    parts = [(word, tuple(units)) for word, units in grouped]
    labels = [tokens.labels[first] for first in firsts]
    for word, units in parts if words else []:
        if word < 0:
            continue
        for unit in units:
            label = tokens.word_labels[word]
            if len(units) > 1:  # some pieces, joined; or where these are bytes that make up no text, the whole word
                piece, *others = (tokens.labels[position] for position in members[unit])
                joined = piece + "".join(other.removeprefix(WORDPIECE).removeprefix(OTHERS) for other in others)
                is_text = joined.removeprefix(WORDPIECE).removeprefix(OTHERS) in label or not others
                label = joined if is_text else f"{OTHERS}{label}"
            labels[unit] = label
    return Positions(
        name="word" if words else "token",
        labels=tuple(labels),
        special=tuple(tokens.special[first] for first in firsts),
        sink=tuple(tokens.sink[first] for first in firsts),
        members=members,
        wholes=tuple((tokens.word_labels[word], units) for word, units in parts if len(units) > 1),
    )


class UnitRows:
    """Streaming merge of patterns of tokens into units, a chunk of rows at a time.

    Weights are summed over the keys of a unit and averaged over its queries. Rows still sum to 1
    where every token is in exactly one unit (Clark et al. 2019, section 4.1).

    Args:
        members: [n_units], the token positions of each, in the order of the text.
        keys: the same of the keys.
        n_queries, n_keys: tokens of each.
    """

    def __init__(
        self, members: Sequence[Sequence[int]], keys: Sequence[Sequence[int]], n_queries: int, n_keys: int
    ) -> None:
        self._same = _one_token_each(members, n_queries)
        self._keys = None if _one_token_each(keys, n_keys) else UnitsOfTokens(keys, n_keys)
        self._members = [tuple(group) for group in members]
        self._waiting: Tensor | None = None
        self._done = self._from = 0

    def add(self, first: int, pattern: Tensor) -> tuple[int, Tensor]:
        """Add the next rows of a pattern, [.., rows, n_keys], from query ``first`` on.

        Last keys may be left out where these rows do not see them. Returns the first of the units that are complete
        now, and their rows, [.., n_units, n_keys], perhaps none; the same tensor where every unit is one token, in
        order.
        """
        merged = pattern if self._keys is None else self._keys.sums(pattern, -1)
        if self._same:
            return first, merged
        if self._waiting is None:  # rows before these may have been left out
            while self._done < len(self._members) and min(self._members[self._done]) < first:
                self._done += 1
            self._from = first
        else:
            short = merged.shape[-1] - self._waiting.shape[-1]
            merged = torch.cat([torch.nn.functional.pad(self._waiting, (0, short)), merged], dim=-2)
        end = self._from + merged.shape[-2]
        unit = self._done
        start = self._from
        while self._done < len(self._members) and max(self._members[self._done]) < end:
            self._done += 1
        groups = [[position - start for position in group] for group in self._members[unit : self._done]]
        sizes = torch.tensor([len(group) for group in groups], dtype=merged.dtype, device=merged.device)
        begun = takewhile(lambda group: min(group) < end, islice(self._members, self._done, None))
        keep = min(map(min, begun), default=end)
        self._waiting = merged[..., keep - start :, :].clone() if keep < end else None
        self._from = keep
        return unit, UnitsOfTokens(groups, merged.shape[-2]).sums(merged, -2).div_(sizes[:, None])


class UnitsOfTokens:
    """The units of each of n tokens, which may be several, or none."""

    def __init__(self, groups: Sequence[Sequence[int]], n: int, device: torch.device | None = None) -> None:
        units = [len(groups)] * n
        further = list[tuple[int, int]]()
        for unit, group in enumerate(groups):
            for token in group:
                if token < n and units[token] == len(groups):
                    units[token] = unit
                elif token < n:
                    further.append((unit, token))
        self._n_units = len(groups)
        self._units = torch.tensor(units, dtype=torch.long, device=device)
        self._of_none = units.index(len(groups)) if len(groups) in units else n  # the first token of no unit
        self._further = torch.tensor(further, dtype=torch.long).reshape(-1, 2).T

    def sums(self, values: Tensor, dim: int) -> Tensor:
        """Sums over the tokens of each unit along an axis, which may leave out the last tokens."""
        n = values.shape[dim]
        shape = list(values.shape)
        shape[dim] = self._n_units + (self._of_none < n)  # one more for tokens of no unit
        sums = values.new_zeros(shape).index_add_(dim, self._units[:n].to(values.device), values)
        if self._further.numel():
            units, tokens = self._further[:, self._further[1] < n].to(values.device)
            sums.index_add_(dim, units, values.index_select(dim, tokens))
        return sums.narrow(dim, 0, self._n_units)


def merge_pattern(pattern: Tensor, members: Sequence[Sequence[int]]) -> Tensor:
    """Merge a whole pattern of tokens, [.., n, n], into units; see :class:`UnitRows`."""
    _, merged = UnitRows(members, members, *pattern.shape[-2:]).add(0, pattern)
    return merged


def position_of(tokens: Prompt, token: str | int | None = None) -> int:
    """The position of a token, of a word of several pieces the last one; by default the last that is not special."""
    if token is not None:
        return find_positions(merge_subwords(tokens, words=False), token)[-1]
    return max((place for place, special in enumerate(tokens.special) if not special), default=len(tokens) - 1)


def find_positions(units: Positions, token: str | int) -> tuple[int, ...]:
    """The positions of one token or word of a text; of a word of several pieces all of them.

    Named as in the text, letter case ignored if no token has exactly that case; ``cat#2`` is its second occurrence,
    needed where there are several; ``#3`` or 3 is position 3, counted from 0. UsageError for no such token, or several.
    """
    n = len(units)
    if is_whole(token):
        if not 0 <= token < n:
            raise UsageError(f"the text has positions 0 to {n - 1}, found {as_found(token)}.")
        return (int(token),)
    if not isinstance(token, str):
        raise UsageError(
            "expected a token of the text, '#' and its position such as '#3', or that position as a whole number, "
            f"found {as_found(token)}."
        )
    occurrences = _occurrences(units, token)
    if len(occurrences) > 1:
        some = ", ".join(
            f"{visible(token)}#{number} (#{positions[0]})" for number, positions in enumerate(occurrences[:6], start=1)
        )
        times = f"stands in the text {len(occurrences)} times"
        raise UsageError(f"the token “{visible(token)}” {times}; name one: {some}{', …' if occurrences[6:] else ''}.")
    if occurrences:
        return occurrences[0]
    text, _, digits = token.rpartition("#")
    if digits.isascii() and digits.isdecimal() and len(digits) < _LONGEST_NUMBER:
        number = int(digits)
        if not text and number < n:
            return (number,)
        occurrences = _occurrences(units, text) if text else []
        if 1 <= number <= len(occurrences):
            return occurrences[number - 1]
        if occurrences:
            times = "once" if len(occurrences) == 1 else f"{len(occurrences)} times"
            raise UsageError(
                f"the token “{visible(text)}” stands in the text {times}, found {visible(token)}: occurrences count "
                f"from {visible(text)}#1."
            )
    distinct = list(dict.fromkeys(units.labels))
    near = difflib.get_close_matches(token, distinct, n=5, cutoff=0.5)
    known = "a token as figures show it" + (f" (near: {', '.join(near)})" if near else "")
    if len(distinct) <= _SHORT_ENOUGH_TO_LIST:
        known = f"one of {', '.join(distinct)}"
    raise UsageError(
        f"no token “{visible(token)}” in the text: expected {known}, or a position from #0 to #{len(units) - 1}."
    )


def find_queries(units: Positions, queries: str | int, option: str = "--queries") -> tuple[int, ...]:
    """The positions of some queries, in order: ``last``, a stretch such as ``-64:`` or ``100:200``, or one token.

    A stretch is a Python slice; a token is named as for :func:`find_positions`, with the same errors.
    """
    n = len(units)
    if isinstance(queries, str) and queries == "last":
        return (n - 1,)
    if isinstance(queries, str) and (ends := _STRETCH.fullmatch(queries.strip())):
        first, last = (int(end) if end else None for end in ends.groups())
        if positions := tuple(range(n)[first:last]):
            return positions
        raise UsageError(f"{option} {visible(queries)} holds none of the positions 0 to {n - 1} of the text.")
    try:
        return find_positions(units, queries)
    except UsageError as error:
        raise UsageError(f"{error} {option} also takes last, or a stretch such as -64: or 100:200.") from error


def text_at(units: Positions, positions: Sequence[int]) -> str:
    """The word at these positions, or the token at the first of them."""
    return next((text for text, whole in units.wholes if whole == tuple(positions)), units.labels[positions[0]])


def _one_token_each(members: Sequence[Sequence[int]], n_tokens: int) -> bool:
    return [tuple(group) for group in members] == [(position,) for position in range(n_tokens)]


def _occurrences(units: Positions, text: str) -> list[tuple[int, ...]]:
    """The positions of each token or word with this text, in order; in another case where none has this one."""
    labels = [*((label, (position,)) for position, label in enumerate(units.labels)), *units.wholes]
    exact = [positions for label, positions in labels if label == text]
    return sorted(exact or [positions for label, positions in labels if label.casefold() == text.casefold()])
