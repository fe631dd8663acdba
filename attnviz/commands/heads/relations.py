"""A head's relation on a text: its parsed pairs, and those that the head finds."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from torch import Tensor

from attnviz.arguments import did_you_mean, relation_named
from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings
from attnviz.errors import UsageError
from attnviz.language.syntax import DIRECTIONS, Parse
from attnviz.measures.relations import RelatedWords, WordsOfLayer
from attnviz.models.head_ids import is_of_source
from attnviz.present.published import role_name
from attnviz.profiles.parts import SYNTACTIC
from attnviz.wording import visible

OWN = "own"
"""In place of a relation: that of each head's label or role."""


@dataclass(frozen=True)
class Pair:
    """One pair of a relation by word numbers of the parse: query, right key, and most attended word.

    ``guess``: the other word that ``query`` attends to most; None if it attends to none.
    """

    query: int
    key: int
    guess: int | None

    @property
    def found(self) -> bool:
        """Whether the head finds the other end."""
        return self.guess == self.key


@dataclass(frozen=True)
class HeadRelation:
    """The relation of a head on this text.

    Attributes:
        name: of the relation; a subtype counts for its base.
        direction: who attends, one of :data:`attnviz.language.syntax.DIRECTIONS`.
        pairs: every instance that the parse has.
        better: whether it is only the better direction on this text, since neither label nor role has this relation.
    """

    head: HeadFindings
    name: str
    direction: str
    pairs: tuple[Pair, ...]
    better: bool = False

    @property
    def found(self) -> int:
        """How many pairs the head finds."""
        return sum(pair.found for pair in self.pairs)

    @property
    def count(self) -> str:
        """``2 of 3 found``."""
        return f"{self.found} of {len(self.pairs)} found"

    @property
    def arrow(self) -> str:
        """``obj dep→head``: who attends to whom."""
        name = visible(role_name(self.name, self.direction))
        return f"{name} (better direction here)" if self.better else name


def relations_of(analysis: Analysis, heads: Sequence[HeadFindings], named: str | None = None) -> Iterator[HeadRelation]:
    """The heads that have a relation on this text, with what they find of it, in the model's order.

    By default it is that of the head's label, or else of its role over the corpus, in their direction; or the one that
    is ``named`` for all of them, in the direction of its role or label, or else the one furthest above its baselines.
    Heads of the decoder of an encoder-decoder have none, since the parse is of the source.

    Raises:
        UsageError: there is no parse, or none with this relation.
    """
    heads = [head for head in heads if is_of_source(head.id.layer)]
    if not heads:
        return
    if why := without_relations(analysis):
        raise UsageError(f"no relations can be shown: {why}.")
    parse, named = analysis.parse, None if named in (None, OWN) else relation_named(named.removeprefix(SYNTACTIC))
    assert parse is not None
    words = _words_of(parse, analysis.tokens.sinks)
    instances = words.instances()
    if named is not None and named not in instances:
        meant = did_you_mean(named, instances)
        raise UsageError(
            f"the parse has no relation {visible(named)!r} in this text: it has {_listed(instances)}.{meant}"
        )
    chosen = [(head, relation) for head in heads if (relation := _of_head(head, named)) is not None]
    for layer, of_layer in groupby(chosen, key=lambda each: each[0].id.layer):
        guesses = _guesses(analysis, layer, words)
        for head, (name, direction, better) in of_layer:
            guess, forwards = guesses[head.id.head].tolist(), direction == DIRECTIONS[0]
            ends = [pair if forwards else pair[::-1] for pair in instances[name]]
            yield HeadRelation(
                head,
                name,
                direction,
                tuple(Pair(query, key, None if guess[query] < 0 else guess[query]) for query, key in ends),
                better,
            )


def _words_of(parse: Parse, sinks: Collection[int]) -> RelatedWords:
    return RelatedWords.of([([word.positions for word in parse.words], parse.arcs, sinks)])


def _guesses(analysis: Analysis, layer: int, words: RelatedWords) -> Tensor:
    """The other word that each word attends to most, as for verdicts, [n_heads, n_words]."""
    of_layer = None
    for rows in analysis.verified.rows(layer):
        of_layer = of_layer or WordsOfLayer(words, rows)
        of_layer.update(rows)
    assert of_layer is not None  # a layer has rows
    return of_layer.guesses


def without_relations(analysis: Analysis) -> str:
    """Reason why a text has no relations, or ''."""
    if analysis.parse is None:
        return f"the text has no parse, because {analysis.syntax_note.removesuffix('.')}"
    has_any = _words_of(analysis.parse, analysis.tokens.sinks).numbers
    return "" if has_any else "the parse of this text has none"


def positions_of(analysis: Analysis, word: int) -> list[int]:
    """Positions, tokens or words, of a word of the parse, without sinks."""
    assert analysis.parse is not None
    units, positions = analysis.units, set(analysis.parse.words[word].positions)
    return [
        unit for unit, members in enumerate(units.members) if not positions.isdisjoint(members) and not units.sink[unit]
    ]


def _of_head(head: HeadFindings, named: str | None) -> tuple[str, str, bool] | None:
    """Relation and direction of a head, and whether this is only the better one here; None without a relation here."""
    verdicts = {each.name: each for each in head.verdicts if each.kind == "syntactic"}
    label = head.labelled.verdict
    if label is not None and label.kind == "syntactic" and named is None:
        return label.name, str(label.direction), False
    roles = head.roles or ()
    role = next((each for each in roles if each.relation == named), None) if named else head.role
    if role is not None and role.relation in verdicts:
        return role.relation, role.direction or str(verdicts[role.relation].direction), False
    if named is None:
        return None
    return named, str(verdicts[named].direction), label is None or label.name != named


def _listed(instances: dict[str, list[tuple[int, int]]]) -> str:
    """``nsubj (2), det (1)``."""
    ordered = sorted(instances, key=lambda name: (-len(instances[name]), name))
    return ", ".join(f"{visible(name)} ({len(instances[name])})" for name in ordered)
