"""JSON, CSV (a row per head and role) and tables of a profile."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from attnviz.commands.profile.exports import exported, statistic_entries
from attnviz.commands.profile.measure import Profile
from attnviz.figures.families import family_of_label
from attnviz.inputs.reading import LONGEST, SHORTEST
from attnviz.judge.roles import ENOUGH_INSTANCES, MIN_TEXTS_SHARES, Role, role_key
from attnviz.measures.chats import LAST, LOOKBACK, SHARE, ChatScores
from attnviz.measures.estimates import HeadScores
from attnviz.measures.intervals import ERROR_RATE
from attnviz.measures.names import NAME_DIRECTIONS, NameCount
from attnviz.measures.patterns import PATTERNS, RETRIEVAL
from attnviz.measures.relations import RelationCount
from attnviz.measures.tallies import OFFSETS
from attnviz.models.head_ids import HeadId, select_heads
from attnviz.present.claim import sentence
from attnviz.present.documents import model_entry, verification_entry
from attnviz.present.fields import ID, Field, Table, entry, interval_field, left_out, pick, plain
from attnviz.present.kv_heads import kv_head_field, kv_table
from attnviz.present.published import ARROWS, DESCRIBING, published_table, role_name, shown_baseline
from attnviz.present.report import CommandSpec
from attnviz.present.sentences import verification_line
from attnviz.present.tables import glued, notes
from attnviz.present.view import ViewOptions
from attnviz.profiles.examples import examples_entry
from attnviz.profiles.published import published_entries, published_heads
from attnviz.profiles.store import JudgedRelation
from attnviz.wording import counted, rounded, span, visible

# The fields of a role of a head over a corpus.
ROLE_FIELDS: tuple[Field[Any], ...] = (
    Field(name="id", meaning=ID),
    Field(name="role", meaning="what the head does over the corpus"),
    Field(
        name="direction",
        write=lambda name: ARROWS.get(name or "", ""),
        detail=True,
        meaning="from which word to which (dep is the dependent of a relation, head its head)",
    ),
    Field(name="score", meaning="share of attention, or of right guesses (semantic: a cosine)"),
    Field(name="baseline", write=shown_baseline, meaning="the score of the best guess"),
    Field(
        name="baselines",
        csv={"baseline_name": (lambda of_guesses: max(of_guesses, key=of_guesses.get, default=None),)},
        meaning="and which guess that is",
    ),
    Field("n", name="n", meaning="instances, positions or sequences"),
    interval_field(write=span, over="for all heads and directions together", detail=True),
    Field(name="difference", csv={"difference_low": (0,), "difference_high": (1,)}),
    Field(name="simultaneous_over"),
    *plain("holds", "passed", "too_few", "error_reduction", "texts", "q"),
    Field(
        name="untrained",
        write=lambda score: "" if score is None else score,
        meaning="the score of the best head of a freshly initialised copy",
    ),
    *(Field(name=name, csv={}) for name in ("threshold", "p", "refuted", "offset")),
)


def _content(profile: Profile, _: ViewOptions) -> dict[str, Any]:
    relations, repeats, tally = profile.relations, profile.repeats, profile.statistics
    statistics: dict[str, Any] | None = None
    if tally is not None:
        statistics = {name: _numbers(value) for name, value in tally.results().items() if name not in OFFSETS}
        statistics["baseline"] = {name: value for name, value in tally.baselines().items() if name not in OFFSETS}
    return {
        "model": model_entry(profile.checkpoint),
        "corpora": [
            {**count.corpus.entry, "sentences": count.texts, "tokens": count.tokens, "left_out": count.left_out}
            for count in profile.corpora
        ],
        "control_texts": profile.control_texts,
        "seed": profile.seed,
        "frequencies": profile.frequencies,
        "verification": verification_entry(profile.verification) | {"sentences_verified": profile.texts_verified},
        "statistics": statistics,
        "syntax": relations
        and {"gold": profile.gold, "relations": list(map(_relation, relations, profile.judged_relations))},
        "coreference": profile.coreference and _coreference(profile.coreference),
        "chats": [entry(_CHATS, pair) for pair in profile.chats] or None,
        "repeats": repeats
        and {RETRIEVAL: None, **{name: _numbers(scores.mean(0)) for name, scores in repeats.scores.items()}},
        "published": published_entries(published_heads(profile.checkpoint)),
        "examples": examples_entry(profile.examples),
    }


def _relation(relation: RelationCount, judged: JudgedRelation) -> dict[str, Any]:
    head, direction, accuracy = relation.best
    verdict = entry([field for field in ROLE_FIELDS if field.name != "threshold"], judged.verdict)
    estimate = relation.accuracy
    return {
        "relation": relation.relation,
        "n": relation.n,
        "sentences": estimate.texts,
        "offset": relation.offset,
        "offset_accuracy": relation.offset_accuracy,
        "best": {"id": head, "direction": direction, "accuracy": accuracy, "role": verdict},
        "accuracy": _by_direction(estimate.scores, estimate),
        "baselines": {name: _by_direction(values, estimate) for name, values in estimate.baselines.items()},
    }


def _by_direction(values: Tensor, estimate: HeadScores) -> dict[str, list[list[float | None]]]:
    return dict(zip(estimate.directions, map(_numbers, values), strict=True))


def _coreference(names: NameCount) -> dict[str, Any]:
    estimate = names.accuracy
    missing = dict.fromkeys(NAME_DIRECTIONS)
    guesses = {name: float(values.flatten()[0]) for name, values in estimate.baselines.items() if name != "other words"}
    return {
        "n": names.n,
        "nearer_name": guesses["nearer name"],
        "guesses": guesses,
        "accuracy": missing | _by_direction(estimate.scores, estimate),
        "accuracy_by_mean": missing | _by_direction(names.by_mean, estimate),
        "other_words": missing | _by_direction(estimate.baselines["other words"], estimate),
    }


def _chat_fields(profile: Profile) -> list[Field[ChatScores]]:
    """The columns of the table of chats."""

    def strongest(pair: ChatScores) -> Text:
        values = pair.scores.scores[0].nan_to_num(-math.inf)
        above = (values - pair.scores.baseline[0].nan_to_num()).flatten()
        best = [divmod(int(at), profile.checkpoint.n_heads) for at in above.argsort(descending=True)[:4]]
        heads = [HeadId(profile.checkpoint.layers[layer], head) for layer, head in best]
        return glued(f"{head} {rounded(float(values[head]))}" for head in heads)

    return [
        *pick(_CHATS, "from", "to", "measure"),
        Field("Heads", strongest),
        Field("Uniform", lambda pair: float(pair.scores.baseline.mean())),
        *pick(_CHATS, "chats"),
    ]


_MEASURES = {SHARE: "share", LAST: "of the last token", LOOKBACK: "lookback ratio"}
# Attention between the messages of chats, over all of them.
_CHATS: tuple[Field[ChatScores], ...] = (
    Field(name="measure", write=_MEASURES.__getitem__),
    Field("Attends", lambda pair: pair.source or None, name="from", write=lambda name: name or "the answer"),
    Field("to", lambda pair: pair.target or None, name="to", write=lambda name: name or "what stands before"),
    Field(value="scores.texts", name="chats"),
    Field(value=lambda pair: _numbers(pair.scores.scores[0]), name="value"),
    Field(value=lambda pair: _numbers(pair.scores.baseline[0]), name="uniform"),
    Field(value=lambda pair: _numbers(pair.scores.errors[0]), name="error"),
)


def _numbers(values: Tensor) -> list[list[float | None]]:
    return [[value if math.isfinite(value) else None for value in row] for row in values.tolist()]


def _tables(profile: Profile, choices: ViewOptions) -> Iterator[RenderableType]:
    sequences = 0 if profile.repeats is None else sum(profile.repeats.sequences().values())
    n_texts = sum(count.texts for count in profile.corpora)
    sample = f" on a sample, {profile.texts_verified:,} of {counted(n_texts + sequences, 'text')}"
    if sequences:
        sample += ", the random ones included"
    yield verification_line(profile.verification, profile.checkpoint, sample=sample)
    if profile.statistics is not None and n_texts < MIN_TEXTS_SHARES:
        read = counted(n_texts, "text")
        yield notes(f"{read}: shares of attention give no role with fewer than {MIN_TEXTS_SHARES} (see profile.csv).")
    elif profile.statistics is None and PATTERNS.plugins:
        yield notes("Patterns of plug-ins are measured on texts alone: give a corpus.")
    clearest: dict[str, Role] = {}  # of each family
    for role in sorted((role for role in profile.roles if role.holds), key=role_key):
        clearest.setdefault(family_of_label(role.role).name, role)
    shown = list(clearest.values())[: choices.rows(_SENTENCES) or None]
    few = choices.rows(_FEW)
    if profile.relations is not None:
        columns, said = relation_fields(profile), {role.relation for role in shown}
        order = "those with a sentence below, then the most frequent" if said - {None} else "the most frequent first"
        relations = sorted(profile.judged_relations, key=lambda relation: relation.relation not in said)
        yield Table("Relations", columns, relations).first(few, "profile.json", "relation", order)
    if profile.chats:
        order = "shares of attention to content, means over chats"
        pairs = [pair for pair in profile.chats if pair.measure == LOOKBACK or pair.source != pair.target]
        yield Table("Chats", _chat_fields(profile), pairs).first(few, "profile.json", "pair", order)
    control = profile.control_texts is not None
    of_heads = profile.roles_by_head()
    top = choices.rows(_FEW if profile.relations is not None else 2 * _FEW) or 0
    if not choices.verbose:
        of_heads = {head: roles[:1] for head, roles in of_heads.items()}
    yield by_head(of_heads, top, "profile.csv", control=control)
    yield Text("\n".join(f"{sentence(role, profile.checkpoint.full_name)}." for role in shown))
    left = []
    for count in profile.corpora:
        if count.left_out:
            why = _WHY_LEFT_OUT.get(count.corpus.kind, "")
            total = count.texts + count.left_out
            name = visible(count.corpus.path.name)
            left.append(f"{name}: {count.left_out:,} of {total:,} texts left out: {why}longer than the model.")
    if not choices.verbose:
        yield notes(*left)
        return
    published = published_heads(profile.checkpoint)
    if published:
        yield published_table(published)
    yield notes(*_notes(profile), *left)


_WHY_LEFT_OUT = {
    "gap": "a name after the pronoun, where a causal model cannot look, or ",
    "conllu": f"not of {SHORTEST} to {LONGEST} words, or ",
}
_FEW = 5  # relations, and heads, on the first screen
_SENTENCES = 2  # for a paper, likewise


def relation_fields(profile: Profile) -> list[Field[JudgedRelation]]:
    """The columns of the table of relations."""
    judged = Counter(role.relation for role in profile.roles)
    passing = Counter(role.relation for role in profile.roles if role.passed)

    def passed(relation: JudgedRelation) -> str:
        name = relation.relation
        return "too few" if relation.verdict.too_few else f"{passing[name]}/{judged[name]}"

    return [
        Field("Relation", lambda relation: role_name(relation.relation, relation.verdict.direction)),
        Field("Best head", "verdict.id"),
        Field("Accuracy", "verdict.score"),
        Field("Baseline", lambda relation: f"{relation.largest_guess}: {rounded(relation.verdict.baseline)}"),
        *([] if profile.control_texts is None else [Field[JudgedRelation]("Untrained", "verdict.untrained")]),
        Field("n", "n"),
        Field("Pass", passed),
    ]


def by_head(of_heads: Mapping[HeadId, Sequence[Role]], top: int, file: str, *, control: bool) -> RenderableType:
    """Table of the roles that each head has, the clearest first; a sentence where no head has any.

    ``top`` heads are listed, 0 for all; ``file`` has the others.
    """
    n_heads = len(of_heads)
    heads = [(id, roles) for id, roles in of_heads.items() if roles]
    if not heads:
        return Text(f"None of the {n_heads} heads shows a role over this corpus.", "bold")
    heads.sort(key=lambda head: -(head[1][0].error_reduction or 0.0))
    listed = heads[: top or None]
    rows = [role for _, roles in listed for role in roles]
    first = [roles[0] for _, roles in listed]
    shown = ["score", "baseline", "interval", *(["untrained"] if control else []), "n"]
    columns: list[Field[Role]] = [
        Field("Head", lambda role: role.id if role in first else ""),
        Field("Role", lambda role: role_name(role.role, role.direction)),
        *pick(ROLE_FIELDS, *shown),
    ]
    title = f"Heads ({len(listed)} of {n_heads}; {n_heads - len(heads)} show no role)"
    return Table(title, columns, rows, caption=left_out(len(listed), len(heads), "head", file))


def _notes(profile: Profile) -> Iterator[str]:
    control = "No untrained copy was measured (--control)"
    if profile.control_texts is not None:
        texts = [counted(profile.control_texts, "text")] if profile.control_texts else []
        read = " and ".join([*texts, *(["the same random tokens"] if profile.repeats is not None else [])])
        control = f"Untrained: the best head of a freshly initialised copy, in the same direction, on {read}"
    yield (
        "A role passes by its threshold (a relation: 0.1 above its baseline), with the interval of score less baseline "
        f"above 0, a false discovery rate of at most {ERROR_RATE:g} over all heads, and its own interval above an "
        f"untrained copy. {control}. {DESCRIBING} profile.json has every score."
    )
    if profile.relations is not None:
        trees = "gold" if profile.gold else "a parser's, not gold"
        yield (
            f"Trees: {trees}. Baseline: the largest of six guesses (+1: the next word). Pass: heads that pass; too "
            f"few: below {ENOUGH_INSTANCES} instances, or texts."
        )
    if profile.why_no_copying:
        yield f"Copying and copy-suppression were not measured: {profile.why_no_copying}."


def _table(profile: Profile, _: ViewOptions) -> Table[Role]:
    """All roles; those that hold have their sentence."""

    def sentence_of(role: Role) -> str | None:
        return sentence(role, profile.checkpoint.full_name) if role.holds else None

    said: Field[Role] = Field(value=sentence_of, name="sentence", csv={})
    return Table("", [*ROLE_FIELDS, kv_head_field(profile.checkpoint), said], profile.roles, name="roles")


def _in_paper(profile: Profile, _: ViewOptions) -> Table[Role]:
    """The roles that heads have; where there are none, the best head of each."""
    best: dict[str, Role] = {}
    for role in profile.roles:
        best[role.role] = max(best.get(role.role, role), role, key=attrgetter("margin"))
    rows = [role for role in profile.roles if role.holds] or [*best.values()]
    return Table("", ROLE_FIELDS, rows, name="roles")


def _kv_heads(profile: Profile) -> Table[Any]:
    heads = select_heads((), profile.checkpoint.kinds)
    by_name = {entry["key"]: dict(zip(heads, entry["values"], strict=True)) for entry in statistic_entries(profile)}
    return kv_table(profile.checkpoint, by_name)


SPEC = CommandSpec[Profile](
    content=_content,
    tables=_tables,
    table=_table,
    kv_heads=_kv_heads,
    further=exported,
    patterns=True,
    top=15,
    in_paper=_in_paper,
    paper=tuple("role id direction score low high baseline baseline_name untrained n too_few".split()),
)
