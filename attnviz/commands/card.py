"""Gather what the other commands measure of one head, or of every head with a role, and draw a card of each."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from attnviz.analysis.result import Analysis
from attnviz.commands.ablate import Ablation
from attnviz.commands.ablate import ablate as measure_ablation
from attnviz.commands.card_result import (
    SPEC,
    Card,
    Cards,
    Cell,
    Row,
    ablation_table,
    cell_text,
    examples_of,
    first_relation,
    notes_of,
    sentence_of,
    tables_of,
    title_of,
)
from attnviz.commands.circuits import circuits as measure_circuits
from attnviz.commands.heads.measure import Reader, profile_of
from attnviz.commands.heads.relations import OWN, without_relations
from attnviz.commands.outputs import HeadOutputs, head_outputs
from attnviz.commands.profile.measure import Profile, profile_heads
from attnviz.errors import TextError, UsageError
from attnviz.inputs.prompt import read_prompt
from attnviz.inputs.reading import open_corpus, read_texts, source_kind
from attnviz.inputs.refusals import GAP_TABLE, NO_CORPUS, refuse
from attnviz.inputs.text import encode
from attnviz.judge.roles import Role
from attnviz.measures.patterns import ROLES_ON_REPEATS
from attnviz.measures.predictions import CLASSES, prediction_kind
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, head_named, is_of_source, selection_texts
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import ModelOptions, checked, typed
from attnviz.page.page import ERROR, short_float
from attnviz.present.documents import Entry
from attnviz.present.fields import Table
from attnviz.present.figure_context import caption_of, hatched_in_words
from attnviz.present.published import role_name
from attnviz.present.view import Drawing, ViewOptions, page_drawing
from attnviz.profiles.parts import merged
from attnviz.profiles.store import StoredProfile, profile_of_document
from attnviz.progress import Progress, tell

if TYPE_CHECKING:
    from attnviz.figures.card import CardPlan, ClaimPlan, PictureTable

__all__ = ["SPEC", "Card", "Cards"]  # beside the function what the command prints and writes

_TELLING = 6  # words from which on a sentence makes a telling picture
_ROWS = 6  # rows of a table that are drawn


@checked
def card(
    head: str | HeadId,
    source: str | Path | None = None,
    model: Model | None = None,
    *,
    target: str | None = None,
    repeats: bool = False,
    limit: int | None = None,
    circuits: bool = True,
    ablate: bool = False,
    patch: str | Path | None = None,
    syntax: bool = True,
    truncate: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
    **opening: Unpack[ModelOptions],
) -> Card:
    """Gather everything that attnviz measures of one head.

    >>> print(attnviz.card("L2H8").report())  # doctest: +SKIP

    ``source`` is a text; or a corpus (``.conllu``, ``.txt``, GAP ``.tsv``) to profile all heads on, of which ``limit``
    sentences, or rows, are read. Without a text its pattern is shown on the shortest of its role's best examples, or on
    the first text of the corpus. ``target`` is what the decoder of an encoder-decoder reads; default a text that it
    generates, greedily.

    ``repeats`` also profiles all heads on random tokens, repeated; ``circuits`` also reads from the weights which heads
    it composes with, and what it copies; ``ablate`` also removes the head, on the corpus or the text, and with
    ``repeats`` on these; ``patch`` is the patch.json of a run of :func:`attnviz.patch` on this model, which has the
    head's effect. ``syntax`` parses the text, and ``.txt`` corpora, where spaCy and a pipeline are installed;
    ``truncate`` cuts a text that is longer than the model. ``warn`` is called for a stored profile that cannot be used,
    and for texts that are left out. See also :class:`attnviz.options.ModelOptions`.

    Raises:
        AttnvizError: as the functions of these commands do; UsageError for a head that is not there, or for no text
            where no example is known.
    """
    given = {name: value for name, value in locals().items() if name not in ("head", "opening")}
    return cards(**given, **opening, select=(head,)).cards[0]


@checked
def cards(
    source: str | Path | None = None,
    model: Model | None = None,
    *,
    select: str | HeadId | Sequence[str | HeadId] = (),
    target: str | None = None,
    repeats: bool = False,
    limit: int | None = None,
    circuits: bool = True,
    ablate: bool = False,
    patch: str | Path | None = None,
    syntax: bool = True,
    truncate: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
    **opening: Unpack[ModelOptions],
) -> Cards:
    """Gather everything that attnviz measures of several heads: each profile, ablation and reading of the weights once.

    ``select`` names heads (``"L2H8"``); default those that have a role other than broad. All other arguments, and
    errors, are as of :func:`card`.
    """
    if source is not None and not str(source).strip():
        raise TextError("the text is empty or blank; expected a sentence, or a corpus, or leave it out.")
    corpus = Path(source) if source is not None and source_kind(source) != "text" else None
    reads = NO_CORPUS
    if corpus is not None:
        reads = GAP_TABLE if ablate and open_corpus(corpus).kind == "gap" else ""
    refuse({"limit": limit, "ablate": ablate}, None, reads)
    names = selection_texts(select)
    if ablate and source is None and len(names) != 1:
        raise UsageError("several heads are removed on the same texts: expected --ablate with a TEXT or a CORPUS.")
    once = cache(warn or (lambda _: None))  # a text may be left out of several measurements
    checkpoint, opened_from = open_checkpoint(model, **opening)
    named = {head_named(name, checkpoint.kinds): name for name in names}
    chosen = list(named)
    patched = {} if patch is None else _patched(checkpoint, Path(patch))
    text = None if corpus is not None or source is None else str(source)
    stored = profile_of(checkpoint, opened_from, warn)
    nearest = dict[HeadId, tuple[tuple[HeadId, float], ...]]()
    if source is None:
        _texts(checkpoint, stored, chosen or _with_roles(stored), None, None)  # before anything takes long
    if corpus is not None or repeats:
        profile = profile_heads(
            checkpoint,
            [] if corpus is None else [corpus],
            repeats=repeats,
            limit=limit,
            syntax=syntax,
            control=not checkpoint.weight_devices,
            progress=progress,
            warn=once,
        )
        assert profile is not None  # it is of one process
        nearest = _nearest(profile)
        earlier = None if stored is None else stored.document
        stored = profile_of_document(merged(profile.document(), earlier, None, smaller=True).document)
    chosen = chosen or _with_roles(stored)
    texts = _texts(checkpoint, stored, chosen, text, corpus)
    removed = on_repeats = None
    if ablate:
        roles = {head: () if stored is None else stored.of(head) for head in chosen}
        cut = truncate and corpus is None  # a profile leaves out what is too long
        read_here = {"limit": limit, "target": target, "truncate": cut, "warn": once}
        on = corpus or text or texts[chosen[0]]
        removed, on_repeats = _ablations(checkpoint, on, roles, repeats, progress, read_here)
    of_source = any(is_of_source(head.layer) for head in chosen)
    circuits = circuits and not checkpoint.architecture.gated
    of_weights = measure_circuits(checkpoint, progress=progress) if circuits and of_source else None
    reader = Reader(checkpoint, stored, syntax=syntax, truncate=truncate)
    inner = progress if len(chosen) == 1 else None

    @cache
    def read(text: str) -> tuple[Analysis, HeadOutputs]:
        outputs = head_outputs(text, checkpoint, target=target, truncate=truncate, progress=inner)
        return reader.read(read_prompt(text, checkpoint, truncate), target, inner), outputs

    options: Entry = {"repeats": repeats, "limit": limit, "truncate": truncate, "circuits": circuits}
    options |= {"ablate": ablate, "patch": None if patch is None else str(patch), "syntax": syntax}
    of_heads = []
    given = tuple(words for words in (text, target) if words is not None)
    for number, head in enumerate(chosen):
        if len(chosen) > 1:
            tell(progress, "cards", number + 1, len(chosen))
        analysis, outputs = read(texts[head])
        has_repeats = on_repeats is not None and any(effect.id == head for effect in on_repeats.heads)
        card = Card(
            checkpoint=checkpoint,
            tokens=analysis.tokens,
            head=head,
            analysis=analysis,
            outputs=outputs,
            profile=stored,
            nearest=nearest.get(head, ()),
            circuits=of_weights if is_of_source(head.layer) else None,
            ablation=removed,
            on_repeats=on_repeats if has_repeats else None,
            patched=patched.get(str(head)),
            corpus=corpus,
            texts=(named.get(head, str(head)), *given),
            options=options,
        )
        of_heads.append(card)
    return Cards(checkpoint, tuple(of_heads), (*(names or ["all"]), *given))


def _patched(checkpoint: Checkpoint, file: Path) -> dict[str, Entry]:
    """What a patch.json says of each head; UsageError where it is none, or of another model."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        names = ("direction", "metric", "receiver", "networks")
        run = {name: document["options"][name] for name in names} | {"pairs": document["pairs"]}
        model = document["model"]
        entries = {entry["id"]: {**entry, **run} for entry in document["heads"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"expected the patch.json of attnviz patch as --patch (patch=...), found {file}.") from error
    if model["weights_sha256"] != checkpoint.weights_sha256:
        raise UsageError(
            f"{file} is of {model['name']}, with other weights than {checkpoint.short_name}; patch this one."
        )
    return entries


def _with_roles(profile: StoredProfile | None) -> list[HeadId]:
    """The heads that have a role other than broad; UsageError without any."""
    if profile is None:
        raise UsageError(
            "there is no stored profile of this model: expected a CORPUS, on which heads show their roles."
        )
    heads = sorted(head for head in profile.roles if any(role.role != "broad" for role in profile.of(head)))
    if not heads:
        raise UsageError(
            f"no head has a role other than broad over {profile.measured_on}: expected one by its id, without --all."
        )
    return heads


def _nearest(profile: Profile) -> dict[HeadId, tuple[tuple[HeadId, float], ...]]:
    if profile.head_distances is None:
        return {}
    ids = list(profile.roles_by_head())
    nearest = {}
    for head, row in zip(ids, profile.head_distances.tolist(), strict=True):
        others = sorted(zip(row, ids, strict=True))
        nearest[head] = tuple((other, distance) for distance, other in others if other != head and isfinite(distance))
    return nearest


def _texts(
    checkpoint: Checkpoint,
    profile: StoredProfile | None,
    heads: Sequence[HeadId],
    text: str | None,
    corpus: Path | None,
) -> dict[HeadId, str]:
    """The text for each head's pattern: the given one, its example, or the corpus' first; UsageError for none."""
    first = None
    if corpus is not None:  # the first that the model can read
        readable = (encode(checkpoint, [line], lambda *_: None) for line in read_texts(open_corpus(corpus)))
        first = next((items[0].source.text for items in readable if items), None)
    texts = dict[HeadId, str]()
    for head in heads:
        hits = [example.text for examples in examples_of(profile, head)[:1] for example in examples.best]
        telling = min(hits, key=lambda hit: (len(hit.split()) < _TELLING, len(hit)), default=None)
        shown = text or telling or first
        if shown is None:
            raise UsageError(
                f"no example of {head} is known: expected a TEXT on which to show its pattern, or a CORPUS after the "
                "head."
            )
        texts[head] = shown
    return texts


def _ablations(
    checkpoint: Checkpoint,
    source: str | Path,
    roles: Mapping[HeadId, Sequence[Role]],
    repeats: bool,
    progress: Progress | None,
    options: Mapping[str, Any],
) -> tuple[Ablation, Ablation | None]:
    """The model without each head, and without those that have a role on random tokens, repeated, on these."""
    plain: Any = {"curve": False, "gradient": False, "progress": progress}
    predicts = prediction_kind(checkpoint) not in CLASSES and not checkpoint.stacks
    clearest = map(first_relation, roles.values())
    relations = dict.fromkeys(role.relation for role in clearest if role is not None and role.relation)
    asked = list(relations) if isinstance(source, Path) and predicts else ()
    removed = measure_ablation(source, checkpoint, select=list(roles), role=asked, **options, **plain)
    heads = [head for head, of_head in roles.items() if {role.role for role in of_head} & {*ROLES_ON_REPEATS}]
    if not (repeats and heads and predicts and checkpoint.architecture.causal):
        return removed, None
    return removed, measure_ablation((), checkpoint, repeats=True, select=heads, **plain)


# --- pictures


def _plans(result: Card | Cards, choices: ViewOptions) -> "Iterator[CardPlan]":
    """What the head does, its pattern, three tables, hits and failures."""
    from attnviz.commands.heads.views import HEADS
    from attnviz.commands.profile.show import named_examples
    from attnviz.figures.card import CardPlan

    for card in result.cards:
        pattern = next(iter(HEADS.plans(card.analysis, of_pattern(card, choices))))
        outlined = ""
        if pattern.outlines:
            dashed = "" if all(outline.found for outline in pattern.outlines) else ", dashed where it misses them"
            outlined = f" Outlined: pairs of its first role{dashed}."
        drawn = card.analysis.part_of(card.head.layer).figure_context.drawn_line
        feet = [f"Pattern: {drawn}. Colours: {pattern.bar}.{outlined}", *notes_of(card)]
        hatched = hatched_in_words(pattern.values)
        title, details, shown = title_of(card), sentence_of(card), card.shown_examples
        yield CardPlan(
            stem="card" if isinstance(result, Card) else f"cards/{card.head.file_stem}",
            caption=caption_of(title, details, *feet, hatched),
            title=title,
            notes=(details,) if details else (),
            feet=tuple(feet),
            pattern=replace(pattern, title="", evidence=""),
            tables=tuple(map(_drawn, tables_of(card))),
            sentences=() if shown is None else tuple(named_examples(shown)),
            heading="" if shown is None else f"{role_name(shown.role, shown.direction)}: clearest hits and failures",
        )


def _drawn(table: Table[Row]) -> "PictureTable":
    """The first rows of a table as texts."""
    from attnviz.figures.card import PictureTable

    n, rows = len(table.rows), table.rows[:_ROWS]
    title = table.title if n <= _ROWS else f"{table.title} ({_ROWS} of {n})"
    columns = [
        [column.title.lower(), *(cell.plain for cell in cells)]
        for column, cells in zip(table.columns, replace(table, rows=rows).cells(), strict=True)
    ]
    is_text = [all(isinstance(row[at], str | None) for row in rows) for at in range(len(columns))]
    return PictureTable(title, columns, is_text)


def _claims(result: Card | Cards, _: ViewOptions) -> "Iterator[ClaimPlan]":
    """One statement on the head."""
    from attnviz.commands.heads.claim_view import claim_plan, no_claim
    from attnviz.figures.card import Bar

    for card in result.cards:
        if not card.roles:
            raise UsageError(f"{no_claim(card.profile, card.checkpoint, [card.head])}.")
        assert card.profile is not None
        stem = "claim" if isinstance(result, Card) else f"claims/{card.head.file_stem}"
        without = ablation_table(card)
        bars = [
            Bar(str(on), float(effect), f"{cell_text(effect)} ({cell_text(interval)})", interval)
            for on, effect, interval, _ in without.rows
            if isinstance(effect, float) and isinstance(interval, tuple)
        ]
        effect = without.title.partition(": ")[2]
        yield claim_plan(card.profile, card.checkpoint, card.roles[0], stem, effect, bars)


def of_pattern(card: Card, choices: ViewOptions) -> ViewOptions:
    """Choices for the pattern of a card: pairs of its first role are outlined if that is a relation of the text."""
    outlined = bool(card.roles) and card.roles[0].relation is not None and not without_relations(card.analysis)
    return replace(choices, select=(str(card.head),), relation=OWN if outlined else None)


def page_data(card: Card, choices: ViewOptions) -> Entry:
    """``PageData`` as in ``attnviz/page/patterns.js``: the page of ``heads`` on the text, with this card."""
    from attnviz.commands.heads.page_view import page_data as page_of_heads
    from attnviz.commands.profile.show import licence_lines
    from attnviz.commands.profile.views import sentences_entry

    data = page_of_heads(card.analysis, of_pattern(card, choices))
    (of_head,) = [head for head in data["heads"] if head["id"] == str(card.head)]
    of_head["words"] = [["Card", title_of(card)], *(["Note", note] for note in notes_of(card))]
    title = f"{card.head} of {data['title']}"
    by_name = {role.role: role for role in card.roles}
    licences = [] if card.profile is None else licence_lines(card.profile, card.examples)

    def page_cell(value: Cell) -> object:  # numbers as numbers, so that the page sorts them
        if isinstance(value, float):
            return short_float(value)
        return value if isinstance(value, int) else cell_text(value)

    return data | {
        "command": "card",
        "title": title,
        "sentences": [title],
        "look": None,
        "caption": caption_of(f"Interactive page of {title}; opens from disk, without network"),
        "command_line": {
            "program": ["card"],
            "texts": [str(card.corpus or card.text)],
            "options": [*data["command_line"]["options"], *typed(card.options)],
        },
        "tables": [
            {
                "title": table.title,
                "note": "",
                "columns": ["head", *(field.title.lower() for field in table.columns)],
                "rows": [[str(card.head), *map(page_cell, row)] for row in table.rows],
                "head": 0,
            }
            for table in tables_of(card)
        ],
        "examples": [sentences_entry(examples, by_name.get(examples.role)) for examples in card.examples],
        "notes": [
            "Labels are of this text alone; ? marks an indication only.",
            f"Weights on the page are within {ERROR} of the recomputed ones.",
            *licences,
        ],
    }


CARD = Drawing(_plans)
CLAIM = Drawing(_claims)
PAGE = page_drawing(
    "card", page_data, lambda result: "" if isinstance(result, Card) else "a page is of one head; name it"
)
