"""The figures of a profile: the map of roles, and relations beside their baselines; and its page, with tables."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import ListedColormap, Normalize, to_hex
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from attnviz.commands.profile.examples import DECILES
from attnviz.commands.profile.exports import statistic_entries
from attnviz.commands.profile.measure import Profile
from attnviz.commands.profile.report import ROLE_FIELDS, relation_fields
from attnviz.commands.profile.show import LONGEST, StoredPictures, named_examples
from attnviz.figures.families import ABBREVIATIONS, FAMILIES, UNNAMED, family_of_label
from attnviz.figures.fonts import fitted, font_families
from attnviz.figures.maps import HeadMap, HeadMapPlan
from attnviz.figures.page import PIXEL, ChartPlan, dress_scores
from attnviz.figures.style import Style, text_colour
from attnviz.judge.roles import Role, role_key
from attnviz.judge.rules import MARGIN as PASS_MARGIN
from attnviz.judge.verdicts import ENOUGH
from attnviz.measures.chats import SHARE
from attnviz.measures.intervals import ERROR_RATE
from attnviz.models.head_ids import HeadId
from attnviz.page.page import label_entry, short_float
from attnviz.present.fields import Table, pick
from attnviz.present.figure_context import caption_of
from attnviz.present.published import DESCRIBING, role_name, role_numbers
from attnviz.present.sentences import verification_line
from attnviz.present.view import Drawing, ViewOptions, page_drawing
from attnviz.profiles.examples import Example, RoleExamples, Unit, parts_of_text
from attnviz.profiles.store import JudgedRelation
from attnviz.wording import counted, signed, visible

MOST_RELATIONS = 60  # most relations in one figure; the most frequent, of ENOUGH instances or more

# Widths of a page in inches below which the text beside a relation takes two lines, and is the shortest.
_NARROW, _NARROWEST = 6.0, 4.0

_NO_PAGE = "it says what one run verified, and a stored profile may be of several; it is in the folder of the run"
_NEEDED = "#D55E00"


@dataclass(frozen=True)
class _RelationsPlan(ChartPlan):
    rows: tuple[JudgedRelation, ...]  # the largest gain above the baseline first; without a verdict last

    def body(self, style: Style) -> tuple[float, float]:
        """Width and height in inches."""
        return 7.6, (0.26 if (style.room or math.inf) < _NARROW else 0.16) * (len(self.rows) + 2) + 0.7

    def handles(self, style: Style) -> list[Artist]:
        """The dots and rules of a row."""
        (strong, pale) = _blues(style)
        dot: dict[str, Any] = {"marker": "o", "ls": "", "mec": style.paper, "mew": 0.5, "ms": 6}
        return [
            Line2D([], [], **dot | {"mec": style.ink, "ms": 4}, mfc=style.paper, label="largest baseline"),
            Line2D([], [], **dot, mfc=strong, label="best head, passes"),
            Line2D([], [], **dot, mfc=pale, label="best head, does not pass"),
            Line2D([], [], marker="|", ls="", mec=_NEEDED, ms=7, label=f"{100 * PASS_MARGIN:.0f} points above it"),
            Line2D([], [], color=style.ink, lw=0.6, label="interval of the difference"),
        ]

    def draw(self, ax: Axes, style: Style) -> PathCollection:
        """Draw accuracies by relation, with texts on both sides; returns the dots of the best heads."""
        (strong, pale) = _blues(style)
        y = np.arange(len(self.rows))
        heads = [row.verdict for row in self.rows]
        scores, baselines = [head.score for head in heads], np.array([head.baseline for head in heads])
        differences = (head.difference or (head.margin, head.margin) for head in heads)
        lows, highs = (baselines + ends for ends in zip(*differences, strict=True))
        rules = [pale if head.passed else style.frame for head in heads]
        ax.hlines(y, baselines, scores, colors=rules, lw=3, alpha=0.6, zorder=2)
        ax.hlines(y, lows, highs, colors=style.ink, lw=0.6, zorder=3)
        ax.vlines(baselines + PASS_MARGIN, y - 0.4, y + 0.4, colors=_NEEDED, lw=1, zorder=4)
        shades = [strong if head.passed else pale for head in heads]
        dots = ax.scatter(scores, y, s=40, c=shades, edgecolors=style.paper, lw=0.5, clip_on=False, zorder=5)
        ax.scatter(baselines, y, s=15, c=style.paper, edgecolors=style.ink, lw=0.8, clip_on=False, zorder=6)
        narrow = (style.room or math.inf) < _NARROW
        counts = ["" if narrow else f" ({row.n:,})" for row in self.rows]
        names = [fitted(visible(row.relation), 7, 130) for row in self.rows]
        dress_scores(ax, style, [name + count for name, count in zip(names, counts, strict=True)], "accuracy")
        ax.set_xticks(np.linspace(0, 1, 3 if narrow else 6))
        beside = [_beside(row, style) for row in self.rows]
        right = ax.secondary_yaxis("right")
        right.set_yticks(y, beside, family=font_families(beside), parse_math=False)
        right.tick_params(length=0, labelsize=7, labelcolor=text_colour(style, "xtick.color"))
        right.spines[:].set_visible(False)
        return dots


def plan_relations(profile: Profile | StoredPictures, _: ViewOptions) -> Iterator[_RelationsPlan]:
    """Plan the best head of each judged relation, beside its largest baseline."""
    rows = _drawn(profile)
    notes = [
        f"Each relation's best head, chosen and scored on the same corpus ({profile.trees}), beside the largest of its "
        f"baselines. It passes {100 * PASS_MARGIN:.0f} points above that (after Voita et al. 2019), if the interval of "
        f"the difference, at {ERROR_RATE:g} over all heads together, is above 0, and above an untrained copy. The thin "
        "line is this interval, drawn from the baseline. Cannot be decided: the threshold is within it. +1: the head "
        "of the relation is the next word after the dependent; dep → head: the dependent attends to its head."
    ]
    left_out = len(profile.judged_relations) - len(rows)
    if left_out:
        notes.append(f"{counted(left_out, 'rarer relation')} left out.")
    tested = [row.relation for row in rows if not row.verdict.too_few]
    passing = {role.relation for role in profile.roles if role.passed}
    title = f"{profile.checkpoint.short_name}: best head against its largest baseline; "
    title += f"{len(passing.intersection(tested))} of {counted(len(tested), 'relation')} tested have a head that passes"
    counts = [row.n for row in rows if ":" not in row.relation]  # a subtype counts for its relation
    source = profile.source("syntactic", f"n = {sum(counts):,} instances")
    rows.sort(key=lambda row: (bool(row.verdict.too_few), -row.verdict.margin, row.relation))
    caption = caption_of(title, profile.trees, source)
    yield _RelationsPlan("relations", caption, title, (*notes, source), tuple(rows))


def _drawn(profile: Profile | StoredPictures) -> list[JudgedRelation]:
    return [relation for relation in profile.judged_relations if relation.n >= ENOUGH][:MOST_RELATIONS]


def _why_no_relations(profile: Profile | StoredPictures) -> str:
    measured = isinstance(profile, StoredPictures) and profile.stored.document.get("syntax")
    if measured and measured.get("relations") and not profile.judged_relations:
        return "only roles that hold are stored; attnviz profile CORPUS stores the verdict of every best head"
    return "" if _drawn(profile) else f"no relation occurs {ENOUGH} times in these corpora"


def _beside(row: JudgedRelation, style: Style) -> str:
    """``L2H8 dep → head, +0.22 above offset +1: fails``; narrow pages have two lines, the narrowest head and gain."""
    best, width = row.verdict, style.room or math.inf
    gain = signed(best.margin)
    if width < _NARROWEST:
        return f"{best.id}\n{'too few' if best.too_few else gain}"
    direction = (best.direction or "").replace("_to_", " → ").replace("dependent", "dep")
    separator = "\n" if width < _NARROW else ", "
    verdict = "" if best.passed else ": fails" if best.refuted else ": cannot be decided"
    return f"{best.id} {direction}{separator}{best.too_few or f'{gain} above {row.largest_guess}{verdict}'}"


def _blues(style: Style) -> tuple[str, str]:
    return to_hex(style.colour_map()(0.75)), to_hex(style.colour_map()(0.4))


_NAME_WIDTH = 86  # largest width of a name in the map of roles, in pixels


def _plan_roles(profile: Profile | StoredPictures, choices: ViewOptions) -> Iterator[HeadMapPlan]:
    by_head = profile.roles_by_head()
    of_heads, layers = list(by_head.values()), list(dict.fromkeys(head.layer for head in by_head))
    families = [family_of_label(roles[0].role) if roles else UNNAMED for roles in of_heads]
    drawn = [family for family in FAMILIES if family is not UNNAMED]
    values = [math.nan if family is UNNAMED else drawn.index(family) for family in families]
    texts = []
    for roles in of_heads:  # the name of the first role, short if it must, and on a second line the number of others
        name = short_name(roles[0].role) if roles else ""
        if fitted(name, 6.5, _NAME_WIDTH) != name:
            name = fitted(ABBREVIATIONS.get(name, name), 6.5, _NAME_WIDTH)
        texts.append(f"{name}\n+{len(roles) - 1}" if len(roles) > 1 else name)
    frame = choices.style.frame
    handles = [
        Patch(
            facecolor="none" if family is UNNAMED else family.colour,
            edgecolor=frame,
            linewidth=PIXEL,
            label=f"{family.name} ({families.count(family)})",
        )
        for family in FAMILIES
        if family in families
    ]
    source = profile.source()
    title = f"{profile.checkpoint.short_name}: the clearest role of every head, "
    title += f"{sum(map(bool, of_heads))} of {len(of_heads)} have one"
    clearest = f"Clearest: the largest error reduction, specific roles first, sink last. {DESCRIBING} +2: two more."
    head_map = HeadMap(
        np.array(values).reshape(len(layers), -1),
        layers,
        norm=Normalize(0, len(drawn) - 1),
        bar="",
        colours=ListedColormap([family.colour for family in drawn]),
        texts=tuple(map(tuple, np.reshape(texts, (len(layers), -1)).tolist())),
        legend=tuple(handles),
    )
    yield HeadMapPlan("roles", caption_of(title, source, clearest), title, (clearest, source), (head_map,))


def short_name(role: str) -> str:
    """Name of a role without its kind: ``nsubj``, ``offset −3``."""
    kind, _, rest = role.partition(":")
    return visible(f"offset {rest.replace('-', '−')}" if kind == "offset" else rest or role)


def page_data(profile: Profile, _: ViewOptions) -> dict[str, Any]:
    """``PageData`` as in ``attnviz/page/patterns.js``, without patterns of single texts."""
    model = profile.checkpoint
    of_heads = profile.roles_by_head()
    telling = min(of_heads, key=lambda head: role_key(of_heads[head][0]) if of_heads[head] else (math.inf,))
    judged = {(role.id, role.role): role for role in profile.roles}
    notes = [
        "A head's label is its clearest role: that of the largest error reduction among those it has. Roles overlap; "
        "the table has all, profile.json every score."
    ]
    if profile.relations is not None:
        notes.append(f"Dependency relations rest on {profile.trees}.")
    sample = f" on a sample of {counted(profile.texts_verified, 'text')}"
    options = [*model.model_options, *(["--seed", str(profile.seed)] if profile.seed else [])]
    texts = [str(count.corpus.path) for count in profile.corpora if count.corpus.rows.content is None]
    data = {
        "command": "profile",
        "title": profile.source(),
        "caption": caption_of(f"Interactive page of the roles of {counted(len(of_heads), 'head')}, {profile.source()}"),
        "verification": verification_line(profile.verification, model, sample=sample).plain,
        "notes": notes,
        "sides": [],
        "axes": [],
        "end": 1,
        "rows": [HeadId(layer, 0).layer_name for layer in model.layers],
        "columns": model.n_heads,
        "statistics": list(statistic_entries(profile)),
        "heads": [_entry(head, roles) for head, roles in of_heads.items()],
        "patterns": [],
        "dropped": "",
        "command_line": {"program": ["profile"], "texts": texts, "options": options},
        "start": {"head": str(telling), "scale": "shared", "drop": False, "token": []},
        "tables": list(_tables(profile)),
        "examples": [
            *(sentences_entry(role, judged[role.id, role.role]) for role in profile.examples),
            *(_by_decile(profile, head) for head in of_heads if len(profile.texts) >= DECILES),
        ],
    }
    shares = [pair for pair in profile.chats if pair.measure == SHARE]
    if shares:  # the roles of chats, and the share of every head from one to another
        names = sorted({name for pair in shares for name in (pair.source, pair.target)})
        pairs = [
            {
                "from": names.index(pair.source),
                "to": names.index(pair.target),
                "uniform": short_float(float(pair.scores.baseline.mean())),
                "values": [short_float(value) for value in pair.scores.scores.flatten().tolist()],
            }
            for pair in shares
        ]
        data["spans"] = {"names": names, "places": [[] for _ in names], "pairs": pairs}
    return data


def _entry(head: HeadId, roles: list[Role]) -> dict[str, Any]:
    names = [role.role for role in roles] or [UNNAMED.name]
    return {
        "id": str(head),
        "row": int(head.layer),
        "column": head.head,
        **label_entry(role_name(names[0], None), names[0]),
        "kinds": list(dict.fromkeys(family_of_label(name).name for name in names)),
        "evidence": " · ".join(f"{role_name(role.role, role.direction)}, {role_numbers(role)}" for role in roles),
        "role": None,
        "patterns": [],
    }


def _tables(profile: Profile) -> Iterator[dict[str, Any]]:
    names = ("id", "role", "direction", "score", "baseline", "error_reduction", "interval", "n", "untrained")
    roles = [role for of_head in profile.roles_by_head().values() for role in of_head]
    note = f"A head may have several. Untrained: the best head of a freshly initialised copy. {DESCRIBING}"
    yield Table(f"Roles ({len(roles)})", pick(ROLE_FIELDS, *names), roles).for_page(note, head=0)
    if profile.relations is not None:
        note = "The head that is right most often, beside the largest of its baselines."
        title = f"Relations ({len(profile.relations)})"
        yield Table(title, relation_fields(profile), profile.judged_relations).for_page(note, head=1)


def sentences_entry(of: RoleExamples, role: Role | None) -> dict[str, Any]:
    """``Examples`` as in ``attnviz/page/patterns.js``: sentences of one role of a head; None for numbers not kept."""
    name = role_name(of.role, of.direction)
    failed = "" if role is not None and role.holds else "does not pass"
    numbers = filter(None, (failed, "" if role is None else role_numbers(role)))
    examples = [_sentence(example_name, example, example.hit) for example_name, example in named_examples(of)]
    title = f"{name}: {', '.join(numbers)}"
    return {"head": str(of.id), "role": role_name(of.role, None), "title": title, "examples": examples}


def _sentence(name: str, example: Example, hit: bool | None) -> dict[str, Any]:
    right = None if example.hit else short_float(example.gold_weight)
    weight, parts = short_float(example.weight), _runs(example)
    return {"name": name, "hit": hit, "weight": weight, "right": right, "parts": parts}


def _by_decile(profile: Profile, head: HeadId) -> dict[str, Any]:
    """The text in the middle of each decile of a head's largest weight from one content token to another."""
    found = [(text, *text.strongest(head, torch.tensor(text.item.sink))) for text in profile.texts]
    found.sort(key=lambda text: -text[1])
    examples = []
    for decile in range(DECILES):
        text, weight, *pair = found[(2 * decile + 1) * len(found) // (2 * DECILES)]
        source, offsets = text.item.source, text.item.offsets
        query, key = (Unit(text.item.pieces[place], *offsets[place]) for place in pair)
        example = Example(text.corpus, source.number, source.text, query, key, weight, True, None, None)
        examples.append(_sentence(f"decile {DECILES - decile}", example, None))
    role = "all texts, by decile"
    return {"head": str(head), "role": role, "title": f"{role} of its largest weight", "examples": examples}


def _runs(example: Example) -> list[list[str]]:
    """The text of an example as runs of words; those of its pair apart, with their part in it."""
    runs: list[list[str]] = []
    for part in parts_of_text(example, LONGEST):
        space = "" if part.joined or not runs else " "
        if part.ends:
            runs += [[space, ""]] if space else []
            runs.append([visible(part.text), " ".join(sorted(part.ends))])
        elif runs and not runs[-1][1]:
            runs[-1][0] += space + visible(part.text)
        else:
            runs.append([space + visible(part.text), ""])
    return runs


ROLES = Drawing(_plan_roles)
RELATIONS = Drawing(plan_relations, missing=_why_no_relations)
PAGE = page_drawing("profile", page_data, lambda profile: _NO_PAGE if isinstance(profile, StoredPictures) else "")
