"""The tables of a profile: by relation, by head, by layer."""

import math
from collections import Counter

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnviz.commands.heads.tables import published_table
from attnviz.commands.profile.profiling import CorpusCount, Profile
from attnviz.commands.profile.roles import ERROR_RATE, Role
from attnviz.corpora.texts import LONGEST, SHORTEST
from attnviz.model.head_ids import HeadId
from attnviz.model.tokens import visible
from attnviz.patterns.published import published_heads
from attnviz.patterns.syntax import DIRECTIONS
from attnviz.results.tables import add_row, error, number, plain_table

__all__ = ["profile_report"]

_ROLES = 4
"""Roles of one head that are shown."""

_ARROWS = {
    "dependent_to_head": "dep→head",
    "head_to_dependent": "head→dep",
    "pronoun_to_name": "pronoun→name",
    "name_to_pronoun": "name→pronoun",
}


def profile_report(profile: Profile, *, top: int) -> Group:
    """What was verified, and the tables that these corpora can give.

    Args:
        profile: what was measured.
        top: rows of the tables by relation and by head; 0 for all.
    """
    parts: list[RenderableType] = [_verified(profile)]
    if profile.relations is not None:
        parts += [Text(), _by_relation(profile, top)]
    parts += [Text(), _by_head(profile, top)]
    if profile.statistics is not None:
        parts += [Text(), _by_layer(profile)]
    model = profile.checkpoint
    published = published_heads(model.name, model.architecture.name, model.n_layers, model.n_heads, model.revision)
    if published:
        parts += [Text(), published_table(published)]
    return Group(*parts, Text(), _notes(profile))


def _verified(profile: Profile) -> Text:
    found, model = profile.verification, profile.checkpoint
    sequences = 0 if profile.repeats is None else len(profile.repeats.scores["previous"])
    texts = sum(count.texts for count in profile.corpora) + sequences
    dtype = str(model.dtype).removeprefix("torch.")
    return Text.assemble(
        ("Verified", "bold green"),
        f" {found.heads_compared} heads of {visible(model.name)} ({dtype}, {model.device}) on a sample, "
        f"{profile.texts_verified:,} of {texts:,} texts{', the random ones included' if sequences else ''}: weights "
        f"within {error(found.pattern_error)} of the model's own (tolerance {found.tolerance.pattern:.0e}), outputs "
        f"within {error(found.output_error)} of the largest (tolerance {found.tolerance.output:.0e}).",
    )


def _by_relation(profile: Profile, top: int) -> Table:
    assert profile.relations is not None
    passing = Counter(role.role for role in profile.roles if role.passed)
    judged = Counter(role.role for role in profile.roles)
    shown = profile.relations[: top or None]
    left_out = len(profile.relations) - len(shown)
    count = f"{len(shown)} of {len(profile.relations)}" if left_out else str(len(shown))
    table = plain_table(f"Relations ({count}, the most frequent first)")
    for name in ("Relation", "Best head", "Direction"):
        table.add_column(name, no_wrap=True)
    for name in ("Accuracy", "Offset", "Its accuracy", "n", "Pass"):
        table.add_column(name, justify="right", no_wrap=True)
    for relation in shown:
        direction = max(DIRECTIONS, key=lambda direction: int(relation.hits[direction].max()))
        hits = relation.hits[direction]
        layer, head = divmod(int(hits.argmax()), profile.checkpoint.n_heads)
        add_row(
            table,
            [
                relation.relation,
                f"L{layer}H{head}",
                _ARROWS[direction],
                number(float(hits.max()) / relation.n),
                f"{relation.offset:+d}",
                number(relation.offset_hits / relation.n),
                str(relation.n),
                f"{passing[name]}/{judged[name]}" if judged[name := f"syntactic:{relation.relation}"] else "–",
            ],
        )
    if left_out:
        count = "1 relation is" if left_out == 1 else f"{left_out} relations are"
        table.caption = f"{count} left out: --top 0 lists all; profile.json has them."
    return table


def _by_head(profile: Profile, top: int) -> Table:
    roles: dict[HeadId, list[Role]] = {}
    for role in sorted(profile.roles, key=lambda role: role.baseline - role.score):
        if role.passed:
            roles.setdefault(role.id, []).append(role)
    shown = list(roles.items())[: top or None]
    left_out = len(roles) - len(shown)
    n_heads = profile.checkpoint.n_layers * profile.checkpoint.n_heads
    table = plain_table(f"Heads ({len(shown)} of {n_heads}; {n_heads - len(roles)} show no role)")
    for name in ("Head", "Role", "Direction"):
        table.add_column(name, no_wrap=True)
    for name in ("Score", "Baseline", "Interval", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    for head, of_head in shown:
        for place, role in enumerate(of_head[:_ROLES]):
            low, high = role.interval
            scores = [number(role.score), number(role.baseline), f"{low:.2f}–{high:.2f}", str(role.n)]
            name = role.role if place < _ROLES - 1 or len(of_head) <= _ROLES else f"… {len(of_head) - place} more"
            more = name.startswith("…")
            cells = [""] * 5 if more else [_ARROWS.get(role.direction or "", ""), *scores]
            add_row(table, [str(head) if place == 0 else "", name, *cells])
    if left_out:
        count = "1 head is" if left_out == 1 else f"{left_out} heads are"
        table.caption = f"{count} left out: --top 0 lists all; profile.csv has every role."
    return table


def _by_layer(profile: Profile) -> Table:
    assert profile.statistics is not None
    found, _ = profile.statistics.results()
    baselines = profile.statistics.baselines()
    columns = {
        "Entropy\n(nats)": "entropy", "Distance\n(tokens)": "distance", "Conf": "confidence", "Sink": "sink",
        "Prev": "previous", "Curr": "current", "Next": "next", "Local": "local", "Long": "long_range",
    }  # fmt: skip
    table = plain_table("Layers (means over their heads)")
    table.add_column("Layer", no_wrap=True)
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for layer in range(profile.checkpoint.n_layers):
        means = [float(found[name][layer].mean()) for name in columns.values()]
        add_row(table, [str(layer), *(number(mean if math.isfinite(mean) else None) for mean in means)])
    table.add_section()
    add_row(table, ["uniform", *(number(baselines.get(name)) for name in columns.values())], style="dim")
    return table


def _notes(profile: Profile) -> Text:
    lines = [
        f"Intervals hold for all heads of a role together but for a chance of {ERROR_RATE:g} (Bonferroni). "
        "Roles overlap: a head may have several; profile.json and profile.csv have every score."
    ]
    if profile.relations is not None:
        trees = "gold" if profile.gold else "a parser's, not gold"
        lines.append(
            f"Trees: {trees}. Offset +1: the head is the next word after the dependent. Pass: heads that pass for the "
            "relation; – where it is too rare."
        )
    lines += [
        f"{visible(count.corpus.path.name)}: {count.left_out:,} of {count.texts + count.left_out:,} texts left out: "
        f"{_why(count)}."
        for count in profile.corpora
        if count.left_out
    ]
    return Text("\n".join(lines), style="dim")


def _why(count: CorpusCount) -> str:
    long = "longer than the model"
    if count.corpus.kind == "gap":
        return f"a name after the pronoun, where a causal model cannot look, or {long}"
    return f"not of {SHORTEST} to {LONGEST} words, or {long}" if count.corpus.kind == "conllu" else long
