"""A profile as profile.json, a row a head and role in profile.csv, and tables by relation, by head, by layer."""

import math
from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from torch import Tensor

from attnviz.commands.profile.instances import NameTally, RelationCount
from attnviz.commands.profile.measure import CorpusCount, Profile
from attnviz.commands.profile.roles import ERROR_RATE
from attnviz.commands.profile.tallies import OFFSETS, StatisticsTally
from attnviz.corpora.reading import LONGEST, SHORTEST
from attnviz.model.head_ids import HeadId
from attnviz.model.wording import counted, visible
from attnviz.patterns.published import PublishedHead, published_entries, published_heads
from attnviz.patterns.registry import PATTERNS
from attnviz.patterns.syntax import DIRECTIONS
from attnviz.results.documents import model_entry, verification_entry
from attnviz.results.published import ARROWS, published_table
from attnviz.results.report import Report
from attnviz.results.tables import Column, column_table, left_out, notes, verification_line
from attnviz.results.view import Choices

__all__ = ["REPORT"]

_ROLES = 4
"""Roles of one head that are listed."""


def _content(profile: Profile, _: Choices) -> dict[str, Any]:
    """The document of profile.json; a part that the corpora cannot give is None."""
    return {
        "model": model_entry(profile.checkpoint),
        "corpora": [
            {
                "path": str(count.corpus.path), "sha256": count.corpus.sha256, "sentences": count.texts,
                "tokens": count.tokens, "left_out": count.left_out,
            }
            for count in profile.corpora
        ],
        "seed": profile.seed,
        "verification": verification_entry(profile.verification) | {"sentences_verified": profile.texts_verified},
        "statistics": None if profile.statistics is None else _statistics(profile.statistics),
        "syntax": None if profile.relations is None else {
            "gold": profile.gold, "relations": [_relation(relation) for relation in profile.relations]
        },
        "coreference": _coreference(profile.coreference),
        "repeats": None if profile.repeats is None else {
            name: _numbers(scores.mean(0)) for name, scores in profile.repeats.scores.items()
        },
        "roles": [
            {**vars(role), "id": str(role.id), "interval": list(role.interval)} for role in profile.roles
        ],
        "published": published_entries(_published(profile)),
    }  # fmt: skip


def _statistics(tally: StatisticsTally) -> dict[str, Any]:
    values = {name: _numbers(value) for name, value in tally.results()[0].items() if name not in OFFSETS}
    return values | {"baseline": {name: value for name, value in tally.baselines().items() if name not in OFFSETS}}


def _relation(relation: RelationCount) -> dict[str, Any]:
    head, direction, hits = _best(relation)
    return {
        "relation": relation.relation,
        "n": relation.n,
        "offset": relation.offset,
        "offset_accuracy": relation.offset_hits / relation.n,
        "best": {"id": str(head), "direction": direction, "accuracy": hits / relation.n},
        "accuracy": {name: _numbers(values.double() / relation.n) for name, values in relation.hits.items()},
    }


def _best(relation: RelationCount) -> tuple[HeadId, str, int]:
    """The head that is right most often, its direction, and how often."""
    direction = max(DIRECTIONS, key=lambda name: int(relation.hits[name].max()))
    hits = relation.hits[direction]
    return HeadId(*divmod(int(hits.argmax()), hits.shape[1])), direction, int(hits.max())


def _coreference(names: NameTally | None) -> dict[str, Any] | None:
    if names is None or not names.n:
        return None
    measured = {direction: _numbers(hits / names.n) for direction, hits in names.hits.items()}
    accuracy = {direction: measured.get(direction) for direction in NameTally.DIRECTIONS}
    return {"n": names.n, "nearer_name": names.nearer / names.n, "accuracy": accuracy}


def _published(profile: Profile) -> tuple[PublishedHead, ...]:
    model = profile.checkpoint
    return published_heads(model.name, model.architecture.name, model.n_layers, model.n_heads, model.revision)


def _numbers(values: Tensor) -> list[list[float | None]]:
    return [[value if math.isfinite(value) else None for value in row] for row in values.tolist()]


def _tables(profile: Profile, choices: Choices, width: int) -> Iterator[RenderableType]:
    """What was verified, and the tables that these corpora can give."""
    sequences = 0 if profile.repeats is None else len(profile.repeats.scores["previous"])
    texts = sum(count.texts for count in profile.corpora) + sequences
    sample = f" on a sample, {profile.texts_verified:,} of {counted(texts, 'text')}"
    sample += ", the random ones included" if sequences else ""
    yield verification_line(profile.verification, profile.checkpoint, sample=sample)
    if profile.relations is not None:
        yield _by_relation(profile, profile.relations, choices.top or None, width)
    yield _by_head(profile, choices.top or None, width)
    if profile.statistics is not None:
        yield _by_layer(profile.statistics, profile.checkpoint.n_layers, width)
    if published := _published(profile):
        yield published_table(published)
    yield _notes(profile)


def _by_relation(profile: Profile, relations: tuple[RelationCount, ...], top: int | None, width: int) -> Table:
    def verdicts(relation: RelationCount) -> str:
        passed = [role.passed for role in profile.roles if role.role == f"syntactic:{relation.relation}"]
        return f"{sum(passed)}/{len(passed)}" if passed else "–"

    columns: list[Column[RelationCount]] = [
        Column("Relation", lambda relation: relation.relation, left=True, least=8),
        Column("Best head", lambda relation: _best(relation)[0], left=True),
        Column("Direction", lambda relation: ARROWS[_best(relation)[1]], left=True),
        Column("Accuracy", lambda relation: _best(relation)[2] / relation.n),
        Column("Offset", lambda relation: f"{relation.offset:+d}"),
        Column("Its accuracy", lambda relation: relation.offset_hits / relation.n),
        Column("n", lambda relation: relation.n),
        Column("Pass", verdicts),
    ]
    listed, total = relations[:top], len(relations)
    count = f"{len(listed)} of {total}" if len(listed) < total else str(total)
    caption = left_out(len(listed), total, "relation", "profile.json")
    return column_table(f"Relations ({count}, the most frequent first)", columns, listed, width=width, caption=caption)


def _by_head(profile: Profile, top: int | None, width: int) -> Table:
    roles = [of_head for of_head in profile.passed_roles().values() if of_head]
    roles.sort(key=lambda of_head: -of_head[0].margin)
    titles = ("Head", "Role", "Direction", "Score", "Baseline", "Interval", "n")
    least, optional = {1: 10, 2: 6}, {2: 2, 5: 1}
    columns = [
        Column(title, itemgetter(place), left=place < 3, least=least.get(place), optional=optional.get(place))
        for place, title in enumerate(titles)
    ]
    rows: list[tuple[object, ...]] = []
    for of_head in roles[:top]:
        listed = of_head if len(of_head) <= _ROLES else of_head[: _ROLES - 1]
        for role in listed:
            head, arrow = "" if role is not of_head[0] else role.id, ARROWS.get(role.direction or "", "")
            interval = "{:.2f}–{:.2f}".format(*role.interval)
            rows.append((head, role.role, arrow, role.score, role.baseline, interval, role.n))
        if len(listed) < len(of_head):
            rows.append(("", f"… {len(of_head) - len(listed)} more", *[""] * 5))
    n_heads = profile.checkpoint.n_layers * profile.checkpoint.n_heads
    n_listed = len(roles[:top])
    title = f"Heads ({n_listed} of {n_heads}; {n_heads - len(roles)} show no role)"
    return column_table(
        title, columns, rows, width=width, caption=left_out(n_listed, len(roles), "head", "profile.csv")
    )


def _by_layer(tally: StatisticsTally, n_layers: int, width: int) -> Table:
    (values, _), baselines = tally.results(), tally.baselines()
    names = {"entropy": ("Entropy", "nats"), "distance": ("Distance", "tokens"), "confidence": ("Conf", ""),
             "sink": ("Sink", "")}  # fmt: skip
    names |= {spec.statistic: (spec.column, "") for spec in PATTERNS if spec.column and not spec.on_repeats}

    def mean(name: str, layer: int) -> float | None:
        value = float(values[name][layer].mean())
        return value if math.isfinite(value) else None

    columns = [Column[int]("Layer", lambda layer: layer, left=True)]
    columns += [
        Column(title, partial(mean, name), unit, optional=place or None)
        for place, (name, (title, unit)) in enumerate(names.items())
    ]
    last = ["uniform", *map(baselines.get, names)]
    return column_table("Layers (means over their heads)", columns, range(n_layers), width=width, last=last)


def _notes(profile: Profile) -> RenderableType:
    trees = "gold" if profile.gold else "a parser's, not gold"
    return notes(
        f"Intervals hold for all heads of a role together but for a chance of {ERROR_RATE:g} (Bonferroni). "
        "Roles overlap: a head may have several; profile.json and profile.csv have every score.",
        f"Trees: {trees}. Offset +1: the head is the next word after the dependent. Pass: heads that pass for the "
        "relation; – where it is too rare." if profile.relations is not None else "",
        *(
            f"{visible(count.corpus.path.name)}: {count.left_out:,} of {count.texts + count.left_out:,} texts left "
            f"out: {_why(count)}."
            for count in profile.corpora if count.left_out
        ),
    )  # fmt: skip


def _why(count: CorpusCount) -> str:
    """Why texts of a corpus were left out."""
    long = "longer than the model"
    if count.corpus.kind == "gap":
        return f"a name after the pronoun, where a causal model cannot look, or {long}"
    return f"not of {SHORTEST} to {LONGEST} words, or {long}" if count.corpus.kind == "conllu" else long


REPORT = Report[Profile](
    content=_content,
    columns=("id", "role", "direction", "score", "baseline", "n", "low", "high", "passed", "threshold"),
    rows=lambda document: (
        {**role, "low": role["interval"][0], "high": role["interval"][1]} for role in document["roles"]
    ),
    tables=_tables,
    same=("attnviz", "model", "corpora", "seed"),
    top=15,
)
