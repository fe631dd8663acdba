"""Compare two models over a corpus: every head where they have the same shape, and the best head of each by role.

The distance of a head is the mean over texts, with an interval from a bootstrap over them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rich.console import RenderableType
from torch import Tensor, nn

from attnviz.commands.compare import DIFFERENCE, FEW, MOST_DIFFERENT_FIRST, THOUSANDTHS
from attnviz.commands.compare_roles import (
    CHOSEN_HERE,
    RoleComparison,
    content,
    flip_table,
    found_lines,
    left_out_note,
    role_table,
)
from attnviz.commands.compare_roles import SPEC as ROLE_SPEC
from attnviz.errors import TextError, UsageError
from attnviz.inputs.batches import Batch
from attnviz.inputs.prompt import Prompt, Text
from attnviz.inputs.reading import Parser, find_parser, open_one, ready
from attnviz.inputs.refusals import refuse
from attnviz.inputs.tables import Columns
from attnviz.inputs.text import encode, rendered
from attnviz.judge.roles import (
    MIN_TEXTS_SHARES,
    Role,
    best_heads,
    judged_roles,
    roles_by_head,
    statistic_candidates,
    syntax_candidates,
)
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.decisions import DecisionTally
from attnviz.measures.differences import Difference, DifferenceTally
from attnviz.measures.intervals import ERROR_RATE, LEAST_WITH_EFFECT
from attnviz.measures.relations import RelationTally
from attnviz.measures.tallies import StatisticsTally, batch_weights, counting
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.compared import shape_of, why_not_compared
from attnviz.models.head_ids import HeadId
from attnviz.models.opening import Model, named_source
from attnviz.options import ModelOptions, checked
from attnviz.present.fields import HEAD, Field, Table, interval_field, pick, plain, values_of
from attnviz.present.published import role_name
from attnviz.present.report import CommandSpec
from attnviz.present.result import OfHeads
from attnviz.present.tables import notes
from attnviz.present.view import ViewOptions
from attnviz.progress import Progress
from attnviz.run.corpus import Additive, CorpusLoop, SampledAttention, give_parts, open_for
from attnviz.run.processes import joined_processes, this_process
from attnviz.wording import bracketed, counted, span, visible

# Attention weights of all layers that are kept at once, but for a single text: a quarter of a gigabyte in float32.
_MOST_WEIGHTS = 1 << 26


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadChange(Difference):
    """Difference of one head over a corpus."""

    before: Role | None  # its clearest role in A; None if it has none
    after: Role | None  # likewise in B
    on_flips: Difference | None = None  # on texts of which two classifiers have different classes; None without any
    on_others: Difference | None = None  # likewise, on all other texts

    @property
    def role_changed(self) -> bool:
        return getattr(self.before, "role", None) != getattr(self.after, "role", None)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class CorpusComparison(RoleComparison, OfHeads[HeadChange]):  # type: ignore[override]
    """Of two models of one shape every head, too."""

    command: ClassVar[str] = "compare.corpus"

    heads: tuple[HeadChange, ...]  # one entry a head, the most different first
    # mean over texts of the largest possible distance: in a causal model the first token of a text sees itself alone
    # and cannot differ
    largest: float

    @property
    def judged(self) -> bool:
        return self.texts >= ENOUGH_TEXTS

    @property
    def in_words(self) -> str:
        first, second = self.side_names
        most = self.heads[0]
        return f"of {first} with {second} on {self.source}: {most.id} first ({most.distance:.3f})"


@checked
def compare_corpus(
    first: Model,
    second: Model,
    corpus: Any,
    *,
    labels: Any = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    syntax: bool = True,
    parser: str | None = None,
    tokenizer: Any = None,
    device: str | None = None,
    device_map: str | None = None,
    dtype: str | None = None,
    attention: str | None = None,
    unfinished: Path | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> CorpusComparison | RoleComparison | None:
    """Compare two models over the texts of a corpus, which is read as a stream.

    Models A and B of the same architecture, with as many layers and heads and the same tokenizer, are compared head by
    head, as before and after fine-tuning; any others role by role, with a :class:`RoleComparison` as the result. See
    :data:`attnviz.models.opening.Model`. ``corpus`` is a file, or texts in memory
    (:func:`attnviz.inputs.reading.open_corpora`), perhaps with their right classes, ``labels``. Of encoder-decoders the
    encoders alone are compared. Of two classifiers the decisions are compared, too; ``label_column`` of a table has the
    right ones. ``tokenizer`` is for models in memory; or, of two models by name, the name of the one that both lack.
    ``device``, ``device_map``, ``dtype`` and ``attention`` are for models by name, as for :func:`attnviz.analyze`; all
    other arguments are as for :func:`attnviz.profile_heads`. Under torchrun the texts are split over the processes; in
    all but the first the result is None.

    Raises:
        UsageError: options that the models cannot have, or a label column for models without classes.
        TextError: a text that models of one shape read as different tokens, with its line.
        OutputError: ``unfinished`` holds what a run with other settings has measured.
        CorpusError: the corpus cannot be read, or has no text to compare.
        VerificationError: the heads do not reproduce a model.
    """
    columns = Columns(text_column, pair_column, label_column)
    file = open_one(corpus, columns, ("gap", "chats"), labels)
    parse = find_parser([file], parser, syntax)
    process = this_process()
    first, second = models = [
        named_source(model, None) if isinstance(model, str | Path | None) else model for model in (first, second)
    ]
    options: ModelOptions = {"device": device, "device_map": device_map, "dtype": dtype, "attention": attention}
    # a tokenizer is for models of transformers, if there are any; other options are for those by name
    of_transformers = [isinstance(model, nn.Module) for model in models]
    by_name = [not isinstance(model, nn.Module | Checkpoint) for model in models]
    opened = []
    for model, is_of_transformers, is_by_name in zip(models, of_transformers, by_name, strict=True):
        opening = options.copy() if is_by_name or not any(by_name) else ModelOptions()
        if is_of_transformers or not any(of_transformers):
            opening["tokenizer"] = tokenizer
        checkpoint = open_for(process, model, opening)
        refuse({"parser": parser, "treebanks": file.has_words_marked}, checkpoint)
        opened.append(checkpoint)
    a, b = opened
    why_not = why_not_compared(a, b)
    if why_not and (label_column is not None or labels is not None):
        raise UsageError(
            f"--label-column (label_column=..., labels=...) is for two models with the same classes: {why_not}."
        )
    like = shape_of(a) == shape_of(b)
    if file.kind == "ids" and not like:
        raise UsageError("token ids are of one tokenizer: expected texts to compare models of unlike shape.")
    parse = parse if a.architecture.has_words and b.architecture.has_words else None
    identity = {
        side: [model.name, model.weights_sha256, str(model.dtype)] for side, model in zip("AB", opened, strict=True)
    }
    loop = CorpusLoop(
        checkpoint=a.encoder,
        corpora=(file,),
        limit=limit,
        batch_size=batch_size,
        seed=seed,
        process=process,
        unfinished=unfinished,
        identity={**identity, "parser": parse and parse.name},
        progress=progress,
        warn=warn,
    )
    with joined_processes(process):
        return _Run(loop, parse, b.encoder, like=like).result()


class _Run:
    """One pass over a corpus with both models, which may be ``like`` in shape; memory does not grow with it."""

    def __init__(self, loop: CorpusLoop, parse: Parser | None, b: Checkpoint, *, like: bool) -> None:
        self.loop, self.parse, self.like = loop, parse, like
        self.models = (loop.checkpoint, b)
        self.attention = [loop.attention, SampledAttention(b, loop.seed)]
        self.roles = [(StatisticsTally(model), RelationTally(model)) for model in self.models]
        self.decisions = None if why_not_compared(*self.models) else DecisionTally()
        # of texts of which two classifiers have different classes, and of all others
        self.flipped, self.others = (self._tally(loop.seed) for _ in range(2))

    def _tally(self, seed: int = 0) -> DifferenceTally:
        model = self.models[0]
        return DifferenceTally(model.kinds, model.architecture.causal, model.architecture.learned_sinks, seed)

    def prepared(self, text: Text) -> Text | None:
        """The text with its relations; None where it is too short or too long, also for a B of another shape."""
        known = ready(rendered(text, self.loop.checkpoint), self.parse)
        if known is None or self.like:
            return known
        items = encode(self.models[1], [known], self.loop.leave_out)
        return known if items and not all(items[0].sink) else None

    def count(self, number: int, batch: Batch) -> None:  # noqa: ARG002 - there is one corpus
        """Compare A with B on a batch; TextError where models of one shape tokenise a text differently."""
        others = encode(self.models[1], [item.source for item in batch.items])
        for item, other in zip(batch.items, others, strict=True):
            if self.like and (item.ids, item.sink, item.type_ids) != (other.ids, other.sink, other.type_ids):
                pairs = zip([*item.ids, None], [*other.ids, None], strict=False)
                position = next((index for index, (one, two) in enumerate(pairs) if one != two), 0)
                raise TextError(
                    f"{item.source.place}: the models read the text differently, from token {position} on "
                    f"({len(item)} and {len(other)} tokens); expected models with the same tokenizer."
                )
        flips = [False for _ in others]
        if self.decisions is not None:
            flips = self.decisions.add(self.models, (batch.items, others))
        if not self.like:
            for side, items in enumerate(same_instances(batch.items, others)):
                give_parts(self.models[side], items, partial(self._read, side))
            return
        for tally, flipped in ((self.flipped, True), (self.others, False)):
            items = [item for item, flips_here in zip(batch.items, flips, strict=True) if flips_here == flipped]
            give_parts(self.models[0], items, partial(self._compare, tally), _MOST_WEIGHTS // self.models[0].n_layers)

    def _compare(self, tally: DifferenceTally, part: Batch) -> None:
        of_a = dict[int, Tensor]()
        tally.count_texts([item.source.number for item in part.items], [*map(len, part.items)])

        def compare(layer: int, pattern: Tensor) -> None:
            tally.compare(layer, [(0, of_a.pop(layer), pattern)], part.valid)

        self._read(0, part, of_a.__setitem__)
        self._read(1, part, compare)

    def _read(self, side: int, part: Batch, on_pattern: Callable[[int, Tensor], None] = lambda *_: None) -> None:
        """Run texts through A or B."""
        with counting(self.roles[side], part, batch_weights(self.loop.seed, part)) as count:

            def on_layer(layer: int, pattern: Tensor) -> None:
                count(layer, pattern)
                on_pattern(layer, pattern)

            self.attention[side].run(part, on_layer)

    def result(self) -> CorpusComparison | RoleComparison | None:
        """Measure, merge all processes and judge the heads; None in all processes but the first."""
        parts: dict[str, Additive] = {"differences": self.others}
        if self.decisions is not None:
            parts |= {"flipped": self.flipped, "decisions": self.decisions}
        for side, attention, (statistics, relations) in zip("AB", self.attention, self.roles, strict=True):
            parts |= {f"attention {side}": attention, f"statistics {side}": statistics, f"relations {side}": relations}
        self.loop.measure(parts, self.count, self.prepared)
        if not self.loop.gather():
            return None
        (done,), (first, second) = self.loop.measured, self.attention
        candidates = [
            [*statistic_candidates(statistics), *syntax_candidates(relations.results())]
            for statistics, relations in self.roles
        ]
        best = sorted(best_heads(*candidates), key=lambda row: (row.interval is None, -abs(row.difference), row.role))
        common = RoleComparison(
            first=self.models[0],
            second=self.models[1],
            corpus=done.corpus,
            texts=done.texts,
            tokens=done.tokens,
            left_out=done.left_out,
            seed=self.loop.seed,
            verifications=(first.verification, second.verification),
            texts_verified=first.texts_verified,
            parser=None if self.parse is None else self.parse.name,
            roles=tuple(replace(row, a=self._numbered(row.a, 0), b=self._numbered(row.b, 1)) for row in best),
            decisions=None if self.decisions is None else tuple(sorted(self.decisions.texts)),
            text_notes=tuple(self.loop.text_notes()),
        )
        if not self.like:
            return common
        whole = self._tally()
        for tally in (self.flipped, self.others):
            whole.merge(tally.state())
        ranked = whole.ranked()
        ids = [head.id for head in ranked]
        # judged without an untrained copy, the largest error reduction first
        before, after = (roles_by_head(judged_roles(of_side, {}), ids) for of_side in candidates)
        apart = 0 < len(common.flips) < done.texts
        on_flips, on_others = (
            {head.id: head for head in tally.ranked()} if apart else {} for tally in (self.flipped, self.others)
        )
        heads = [
            HeadChange(
                **vars(head),
                before=next(iter(before[head.id]), None),
                after=next(iter(after[head.id]), None),
                on_flips=on_flips.get(head.id),
                on_others=on_others.get(head.id),
            )
            for head in ranked
        ]
        return CorpusComparison(**vars(common), heads=tuple(heads), largest=whole.largest)

    def _numbered(self, role: Role, side: int) -> Role:
        """The role with its head as the whole model numbers it: an encoder's, or one whose layer comes after others."""
        return replace(role, id=HeadId(self.models[side].layers[role.id.layer], role.id.head))


def same_instances(*sides: Sequence[Prompt]) -> Iterator[list[Prompt]]:
    """The items of each model, with the relations at both ends of which every model has a token that is no sink."""
    common = []
    for same in zip(*sides, strict=True):
        arcs = same[0].source.arcs
        for item in same:
            content = [not all(item.sink[position] for position in word) for word in item.members]
            arcs = tuple(arc for arc in arcs if content[arc.dependent] and content[arc.head])
        common.append(arcs)
    for items in sides:
        yield [replace(item, source=replace(item.source, arcs=of)) for item, of in zip(items, common, strict=True)]


# What is written and said


def _content(result: CorpusComparison, choices: ViewOptions) -> dict[str, Any]:
    roles = ROLE_SPEC.table(result, choices).entries()
    return {**content(result, choices), "largest_possible": result.largest, "roles": roles}


def _role(side: str) -> Field[HeadChange]:
    def value(head: HeadChange) -> dict[str, Any] | None:
        role = getattr(head, side)
        return role and {"name": role.role, **values_of(role, "direction", "score", "baseline", "n")}

    meaning = f"the clearest role of the {'first' if side == 'before' else 'second'} model's head"
    return Field(value=value, name=f"role_{side}", csv={f"role_{side}": ("name",)}, meaning=meaning)


def _roles(head: HeadChange) -> str:
    names = ["none" if role is None else role_name(role.role, None) for role in (head.before, head.after)]
    return visible(f"{names[0]} → {names[1]}" if head.role_changed else names[1])


_WRITE_INTERVAL = partial(bracketed, write=THOUSANDTHS)


def _distance_on(group: str, title: str) -> tuple[Field[HeadChange], Field[HeadChange]]:
    return (
        Field(title, f"{group}.distance", name=group, unit="√nats", write=THOUSANDTHS),
        interval_field(f"{group}_interval", f"{group}.interval", write=_WRITE_INTERVAL),
    )


_ON_FLIPS = (*_distance_on("on_flips", "On these"), *_distance_on("on_others", "On others"))
_FIELDS: tuple[Field[HeadChange], ...] = (
    *HEAD,
    *pick(DIFFERENCE, "rank", "distance"),
    interval_field(write=_WRITE_INTERVAL, over="for all heads together", detail=True),
    *pick(DIFFERENCE, "divergence", "total_variation"),
    _role("before"),
    _role("after"),
    *plain("role_changed"),
)


def _tables(result: CorpusComparison, choices: ViewOptions) -> Iterator[RenderableType]:
    yield found_lines(result, heads_headline(result))
    columns: list[Field[HeadChange]] = [
        *pick(_FIELDS, "rank", "id", "distance", *(["interval"] if result.judged else [])),
        Field("Role (A → B)", _roles),
        *pick(_FIELDS, "total_variation"),
    ]
    last = ["", "largest", THOUSANDTHS(result.largest), *[""] * (len(columns) - 3)]
    table, rows = Table("Heads", columns, result.select(choices.select), last), choices.rows(FEW)
    yield table.first(rows, "compare-corpus.csv", order=MOST_DIFFERENT_FIRST)
    if result.flips:
        yield from _flips(result, rows)
    if not choices.verbose:
        yield notes(left_out_note(result))
        return
    yield role_table(result, rows, "compare-corpus.json")
    intervals = (
        f"Intervals: at {ERROR_RATE} over all heads together, by a bootstrap over texts; not known where fewer than "
        f"{LEAST_WITH_EFFECT} texts differ."
    )
    if not result.judged:
        intervals = f"With fewer than {ENOUGH_TEXTS} texts there are no intervals."
    shares = ""
    if result.texts < MIN_TEXTS_SHARES:
        shares = f" Shares of attention give no role with fewer than {MIN_TEXTS_SHARES} texts."
    yield notes(
        "Distance: square root of the Jensen-Shannon divergence averaged over the queries of a text, then the mean "
        f"over texts. The largest possible here is {result.largest:.3f}.",
        intervals,
        f"Role: the clearest on this corpus, without the control by an untrained copy that profile has.{shares}",
        CHOSEN_HERE,
        left_out_note(result),
    )


def _flips(result: CorpusComparison, rows: int | None) -> Iterator[RenderableType]:
    """The texts that change their class, and the heads that change more on these than on others."""
    yield flip_table(result, rows, "compare-corpus.json")
    if min(len(result.flips), result.texts - len(result.flips)) < ENOUGH_TEXTS:
        yield notes(
            f"Too few to tell which heads change with the class: {ENOUGH_TEXTS} are needed, and as many others."
        )
        return

    def difference(head: HeadChange) -> float:
        assert head.on_flips is not None
        assert head.on_others is not None
        return head.on_flips.distance - head.on_others.distance

    heads = sorted(result.heads, key=difference, reverse=True)
    table = Table("Heads on texts that change their class", [HEAD[0], *_ON_FLIPS], heads)
    yield table.first(rows, "compare-corpus.csv", order="the largest difference first")


def _table(result: CorpusComparison, choices: ViewOptions) -> Table[HeadChange]:
    fields = _FIELDS if result.heads[0].on_flips is None else (*_FIELDS, *_ON_FLIPS)
    return Table("", fields, result.select(choices.select), name="heads")


SPEC = CommandSpec(
    content=_content,
    tables=_tables,
    table=_table,
    patterns=True,
    all_selected=True,
    paper=("id", "distance", "low", "high", "role_before", "role_after"),
)


def heads_headline(result: CorpusComparison) -> str:
    """Sentence on the head that moved most, and on roles."""
    moved = [head for head in result.heads if head.distance]
    if not moved:
        return "Nothing changed: every head attends the same way on both sides"
    most = moved[0]
    interval = "" if most.interval is None else f" ({span(most.interval, digits=3)})"
    n_roles = sum(head.role_changed for head in result.heads)
    roles = f"{counted(n_roles, 'role')} changed" if n_roles else "no role changed"
    return (
        f"{len(moved)} of {counted(len(result.heads), 'head')} moved, most {most.id}: {most.distance:.3f}{interval} of "
        f"at most {result.largest:.2f}; {roles}"
    )
