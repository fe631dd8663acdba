"""The head patterns, one entry each.

A pattern is a mask: the keys that a head of this kind attends to. Its score is the share of attention under the mask
(as in Clark et al. 2019's analysis), beside that of uniform attention. An entry of :data:`PATTERNS` gives the mask and
the words; its statistics (:func:`attnviz.measures.statistics.statistics`), verdicts, labels, tables, JSON and CSV,
maps, marks, roles of a profile and the documentation's table follow from it. Plug-ins add entries of their own
(:mod:`attnviz.plugins`). A family of its own also needs a
colour and a mark (``FAMILIES`` in figures/families.py), the mark's outline on the page (``SHAPES`` in page/scene.js),
and a letter in the summary (``LABEL_KINDS`` in commands/heads/first_look.py), which otherwise counts it as "other".
"""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.errors import UsageError
from attnviz.language.universal import RELATIONS
from attnviz.plugins import Registry
from attnviz.reference.attention import allowed_positions

HOST = torch.device("cpu")


def allowed_units(n: int, causal: bool, window: int | None = None) -> Tensor:
    """Which keys each query may attend to, boolean [n, n], of tokens or words.

    ``window``: number of keys on each side, the query's own included; None for all.
    """
    return allowed_positions(torch.ones(1, n), causal, window)[0, 0].contiguous()


# A head chooses a key that gets at least so many times what uniform attention would give it (our own choice).
CHOSEN_OF_UNIFORM = 5

# ... and at least this share of the query's attention (our own choice), so that in long texts, too, it stands out.
CHOSEN_OF_ROW = 0.1


@dataclass(frozen=True)
class MaskInput:
    """The input of a pattern's mask: a text of n positions, and the queries that are its rows."""

    labels: Sequence[str]  # of tokens or words in ``heads``, characters in ``profile``; empty if nothing reads_text
    tokens: Sequence[Hashable]  # [n], equal where two positions hold the same token
    causal: bool  # whether a query sees only itself and what precedes it
    local_window: int = 1  # largest distance that counts as local, in units
    long_range_from: int = 4  # smallest distance that counts as long-range
    first: int = 0  # the rows are queries from ``first`` to before ``last``
    last: int | None = None
    device: torch.device | None = None  # of the mask; None for the processor

    @property
    def n(self) -> int:
        return len(self.labels)

    @cached_property
    def distances(self) -> Tensor:
        """Key position minus query position, [rows, n]."""
        positions = torch.arange(self.n, device=self.device)
        return positions - positions[self.first : self.last, None]

    @cached_property
    def earlier_copies(self) -> Tensor:
        """Keys that are an earlier copy of the query's own token, boolean [rows, n]."""
        numbers: dict[Hashable, int] = {}
        of_tokens = [numbers.setdefault(token, len(numbers)) for token in self.tokens]
        ids = torch.tensor(of_tokens, dtype=torch.long, device=self.device)
        return (ids[self.first : self.last, None] == ids) & (self.distances < 0)

    @property
    def after_earlier_copies(self) -> Tensor:
        """Keys just after an earlier copy of the query's token, but for the query itself, boolean [rows, n]."""
        return pad(self.earlier_copies[:, :-1], (1, 0)) & (self.distances != 0)


@dataclass(frozen=True)
class PatternSpec:
    """One pattern. Rows of its mask are those of :attr:`MaskInput.distances`; None where it cannot apply to the model.

    In ``target`` stands ``{unit}`` for token or word, ``{window}`` and ``{far}`` for the two distances.
    """

    statistic: str  # its key in JSON, CSV and ``--map``
    name: str  # the label and the role of heads that show it
    mask: Callable[[MaskInput], Tensor | None]
    target: str
    family: str  # of roles that share a colour and a mark in figures (attnviz.figures.style.FAMILIES)
    column: str = ""  # header of its column in the table of heads; empty for none
    source: str = ""  # paper that defined or named it
    specific: bool = False  # ranks before broader patterns, which may include it
    reads_text: bool = False  # the mask depends on labels or tokens, not only on positions
    chosen: bool = False  # only keys count that the head chooses (chosen_weights); baseline: each row's keys shuffled
    on_repeats: bool = False  # judged only at tokens that have a copy before them (prefix matching, Olsson et al. 2022)


def pattern_of_mask(name: str, mask: Callable[[MaskInput], Tensor | None]) -> PatternSpec:
    """A pattern of which nothing but its name and mask is given: specific, of the family ``other``."""
    statistic = name.replace("-", "_")
    target = f"the {{unit}}s of the pattern {name}"
    return PatternSpec(statistic, name, mask, target, "other", specific=True, reads_text=True)


_neighbour = partial(PatternSpec, family="local", source="Clark et al. 2019", specific=True)
_of_repeats = partial(PatternSpec, family="repeats", specific=True, reads_text=True, on_repeats=True)

_NATIVE = (
    _neighbour("previous", "previous-token", lambda text: text.distances == -1, "the previous {unit}", column="Prev"),
    _neighbour("current", "current-token", lambda text: text.distances == 0, "the {unit} itself", column="Curr"),
    _neighbour(
        "next",
        "next-token",
        lambda text: None if text.causal else text.distances == 1,
        "the next {unit}",
        column="Next",
    ),
    PatternSpec(
        statistic="local",
        name="local",
        mask=lambda text: text.distances.abs() <= text.local_window,
        target="{unit}s at most {window} away",
        family="local",
        column="Local",
        source="Pande et al. 2021",
    ),
    PatternSpec(
        statistic="long_range",
        name="long-range",
        mask=lambda text: text.distances.abs() >= text.long_range_from,
        target="{unit}s at least {far} away that it chooses",
        family="long-range",
        column="Long",
        source="attnviz",
        chosen=True,
    ),
    _of_repeats(
        "induction",
        "induction",
        lambda text: text.after_earlier_copies,
        "the {unit} after an earlier copy of the query",
        source="Olsson et al. 2022",
    ),
    _of_repeats(
        "duplicate",
        "duplicate-token",
        lambda text: text.earlier_copies,
        "an earlier copy of the query",
        source="Wang et al. 2022",
    ),
)

# First words of what attnviz names itself, besides patterns, statistics and relations: labels, roles, columns, entries,
# figures.
_OWN_WORDS = (
    "alignment apart baseline broad copy copying coreference diagonal head id inactive kv label layer none offset page "
    "patterns profile published queries rare relation retrieval role rows semantic special stack syntactic too total "
    "unnamed"
).split()

# Families of roles that a pattern from outside may belong to.
FAMILIES = ("local", "long-range", "semantic", "repeats", "other")


def own_words() -> set[str]:
    """First words of all that attnviz names itself, its patterns and statistics among them."""
    registries = [registry for registry in Registry.every if registry.kind in ("pattern", "statistic")]
    names = [name for registry in registries for name in registry.natives]
    return {*_OWN_WORDS, *RELATIONS, *(re.split("[-_]", name)[0] for name in names)}


def check_words(words: Sequence[str], example: str) -> None:
    """Raise ValueError where the name of a plug-in with these words may be one of attnviz."""
    if words[0] in own_words() or not all(word.isalpha() and word.islower() for word in words):
        raise ValueError(
            f"expected a name such as {example}, in small letters, whose first word attnviz has no use for"
        )


def _check(spec: PatternSpec) -> None:
    words = spec.name.split("-")
    check_words(words, "in-brackets")
    if spec.statistic != "_".join(words) or spec.family not in FAMILIES or spec.chosen or spec.on_repeats:
        raise ValueError(
            f"expected the statistic {'_'.join(words)}, a family of {', '.join(FAMILIES)}, and neither "
            "chosen nor on_repeats, which attnviz judges by rules of their own"
        )


# Native patterns and those of plug-ins, by name, in the order of documents; sink, broad and relations have no mask.
PATTERNS = Registry("pattern", f"{__name__}.PatternSpec", {spec.name: spec for spec in _NATIVE}, check=_check)


def shares() -> list[str]:
    """The statistics of patterns that need no repeated tokens, in the order of the documents."""
    return [spec.statistic for spec in PATTERNS.values() if not spec.on_repeats]


# The statistic of the pattern of which only chosen keys count.
[CHOSEN] = (spec.statistic for spec in _NATIVE if spec.chosen)

# What the same weights would score with the keys of each row shuffled.
SHUFFLED = f"{CHOSEN}_baseline"

# Statistics of patterns that need repeated tokens.
REPEATS = tuple(spec.statistic for spec in _NATIVE if spec.on_repeats)

# The role of heads that attend to the token to be copied next (Wu et al. 2024), and its key in profile.json.
RETRIEVAL = "retrieval"

# Roles that are best measured on repeated random tokens.
ROLES_ON_REPEATS = (*(spec.name for spec in _NATIVE if spec.on_repeats), RETRIEVAL)

# From such a statistic to that of queries with an earlier copy alone.
ON_REPEATS = {statistic: f"{statistic}_on_repeats" for statistic in REPEATS}

# From such a statistic to the number of different tokens from which a head shows the pattern.
TYPES = {statistic: f"{statistic}_types" for statistic in REPEATS}

# Share of attention on sinks above which no positional pattern holds (paper: Vig & Belinkov 2019, section 4.3, who
# leave such heads out).
SINK_ONLY = 0.9

SINK = "sink"  # the role of heads whose attention rests on sinks; what they do among other tokens is another

# The role of heads that write little beside the other heads of their layer (Sandoval-Segura et al. 2025).
INACTIVE = "inactive"

# Roles of heads that raise (Elhage et al. 2021), or lower (McDougall et al. 2023), the logit of the attended token.
COPYING, COPY_SUPPRESSION = "copying", "copy-suppression"

RARE_WORD = "rare-word"  # the role of heads that point to the rarest token of a text (Voita et al. 2019).

WRITTEN = (COPYING, COPY_SUPPRESSION, INACTIVE)  # roles that rest on what a head writes


def describes(role: str) -> bool:
    """Whether a label or role says only where attention is, as for any weights that are broad, sharp, or near.

    It holds by its rule alone. All others are evidence of something learned, and stand beside a control.
    """
    return role in (SINK, "broad") or (role in PATTERNS and not PATTERNS[role].specific)


def rank_of_role(role: str) -> int:
    """Rank of a role among a head's, before error reduction.

    First where specific heads look; then retrieval, since on random tokens every induction head retrieves, and copying,
    which says what a head writes; then local, long-range and broad; inactive; sink.
    """
    if role in (INACTIVE, SINK):
        return 3 + (role == SINK)
    return 2 if describes(role) else int(role in (RETRIEVAL, COPYING, COPY_SUPPRESSION))


def masks_of(text: MaskInput, patterns: Iterable[PatternSpec]) -> Tensor:
    """The masks of patterns that can apply to the model, boolean [n_patterns, rows, n].

    UsageError for a mask from outside that fails, or is no boolean tensor of this shape.
    """
    masks = [_mask_of(text, spec) for spec in patterns]
    return torch.stack([mask for mask in masks if mask is not None])


def _mask_of(text: MaskInput, spec: PatternSpec) -> Tensor | None:
    with PATTERNS.errors_named(spec.name):
        mask = spec.mask(text)
    if mask is None:
        return None
    expected = f"{[len(range(text.n)[text.first : text.last]), text.n]} of torch.bool, torch.strided"
    is_plain = isinstance(mask, Tensor) and not mask.is_nested and not mask.is_meta
    given = f"{[*mask.shape]} of {mask.dtype}, {mask.layout}" if is_plain else repr(mask)
    if given != expected:
        raise UsageError(f"the mask of the pattern {spec.statistic!r} is {given}; expected {expected}.")
    return mask.to(text.device or HOST)


@cache
def applicable(patterns: tuple[PatternSpec, ...], causal: bool) -> tuple[PatternSpec, ...]:
    """The patterns that can apply to a model."""
    text = MaskInput(("",), (0,), causal)
    return tuple(spec for spec in patterns if _mask_of(text, spec) is not None)
