"""A head's relation on a text: its parsed pairs, and those that the head finds."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from attnviz.analysis.findings import HeadFindings
from attnviz.analysis.result import Analysis, units_with
from attnviz.arguments import did_you_mean, relation_named
from attnviz.errors import UsageError
from attnviz.inputs.prompt import Positions
from attnviz.language.syntax import DIRECTIONS, Parse
from attnviz.measures.relations import RelatedWords, WordsOfLayer
from attnviz.models.head_ids import is_of_source
from attnviz.present.published import role_name
from attnviz.profiles.parts import SYNTACTIC
from attnviz.wording import visible

OWN = "own"  # in place of a relation: that of each head's label or role


@dataclass(frozen=True)
class Pair:
    """One pair of a relation by word numbers of the parse."""

    query: int
    key: int  # the right one
    guess: int | None  # the other word that the query attends to most; None if it attends to none

    @property
    def found(self) -> bool:
        return self.guess == self.key


@dataclass(frozen=True)
class HeadRelation:
    """The relation of a head on this text."""

    head: HeadFindings
    parse: Parse
    name: str  # of the relation; a subtype counts for its base
    direction: str  # who attends, one of attnviz.language.syntax.DIRECTIONS
    pairs: tuple[Pair, ...]  # every instance that the parse has
    better: bool = False  # only the better direction on this text, since neither label nor role has this relation

    @property
    def found(self) -> int:  # how many pairs
        return sum(pair.found for pair in self.pairs)

    @property
    def count(self) -> str:
        """``2 of 3 found``."""
        return f"{self.found} of {len(self.pairs)} found"

    @property
    def arrow(self) -> str:
        """``obj dep→head``: who attends to whom."""
        name = role_name(self.name, self.direction)
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
    words = words_of(parse, analysis.tokens.sinks)
    instances = words.instances()
    if named is not None and named not in instances:
        ordered = sorted(instances, key=lambda name: (-len(instances[name]), name))
        listed = ", ".join(f"{visible(name)} ({len(instances[name])})" for name in ordered)
        raise UsageError(
            f"the parse has no relation {visible(named)!r} in this text: it has {listed}."
            f"{did_you_mean(named, instances)}"
        )
    chosen = [(head, relation) for head in heads if (relation := _of_head(head, named)) is not None]
    for layer, of_layer in groupby(chosen, key=lambda item: item[0].id.layer):
        tally = None
        for rows in analysis.verified.rows(layer):
            tally = tally or WordsOfLayer(words, rows)
            tally.update(rows)
        assert tally is not None  # a layer has rows
        guesses = tally.guesses  # the other word that each word attends to most, as for verdicts, [n_heads, n_words]
        for head, (name, direction, better) in of_layer:
            guess = guesses[head.id.head].tolist()
            pairs = []
            for dependent, governor in instances[name]:
                query, key = (dependent, governor) if direction == DIRECTIONS[0] else (governor, dependent)
                pairs.append(Pair(query, key, None if guess[query] < 0 else guess[query]))
            yield HeadRelation(head, parse, name, direction, tuple(pairs), better)


def words_of(parse: Parse, sinks: Collection[int]) -> RelatedWords:
    """The words of a parse, for :mod:`attnviz.measures.relations`."""
    return RelatedWords.of([([word.positions for word in parse.words], parse.arcs, sinks)])


def without_relations(analysis: Analysis) -> str:
    """Reason why a text has no relations, or ''."""
    if analysis.parse is None:
        return f"the text has no parse, because {analysis.syntax_note.removesuffix('.')}"
    has_any = words_of(analysis.parse, analysis.tokens.sinks).numbers
    return "" if has_any else "the parse of this text has none"


def word_positions(units: Positions, parse: Parse, word: int) -> list[int]:
    """Positions, tokens or words, of a word of the parse, without sinks."""
    return [unit for unit in units_with(units, parse.words[word].positions) if not units.sink[unit]]


def _of_head(head: HeadFindings, named: str | None) -> tuple[str, str, bool] | None:
    """Relation and direction of a head, and whether this is only the better one here; None without a relation here."""
    verdicts = {verdict.relation: verdict for verdict in head.verdicts if verdict.relation}
    label = head.labelled.verdict
    if label is not None and label.relation is not None and named is None:
        return label.relation, str(label.direction), False
    role = head.role
    if named:
        role = next((role for role in head.roles or () if role.relation == named), None)
    if role is not None and role.relation in verdicts:
        return role.relation, role.direction or str(verdicts[role.relation].direction), False
    if named is None:
        return None
    return named, str(verdicts[named].direction), label is None or label.name != named
