"""Gather what the other commands measure of one head."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar

from attnviz.commands.ablate.measure import Ablation
from attnviz.commands.ablate.measure import ablate as measure_ablation
from attnviz.commands.circuits.measure import Circuits
from attnviz.commands.circuits.measure import circuits as measure_circuits
from attnviz.commands.heads.analysis import Analysis, Options
from attnviz.commands.heads.measure import Reader, profile_of
from attnviz.commands.outputs.measure import HeadOutputs, head_outputs
from attnviz.commands.profile.measure import Profile, profile_heads
from attnviz.errors import UsageError
from attnviz.models.head_ids import HeadId, head_named, is_of_source, select_heads
from attnviz.models.offloading import DeviceMap
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import checked
from attnviz.present.documents import json_text
from attnviz.present.result import TextResult
from attnviz.profiles.store import StoredProfile, StoredRole, profile_from
from attnviz.progress import Progress
from attnviz.texts.reading import open_corpus, read_texts
from attnviz.trace.recorder import block_memory

_NEAREST = 3
_CORPORA = {".conllu", ".txt", ".tsv"}


@dataclass(frozen=True, repr=False)
class Card(TextResult):
    """Result of :func:`card`: what the other commands measured of one head; None where it was not measured.

    Attributes:
        head: the head.
        analysis: of the text, with the statistics of every head.
        outputs: of the text.
        profile: of a corpus: measured now, or stored.
        nearest: the heads with the most similar patterns over that corpus and their mean Jensen-Shannon divergence in
            nats, the nearest first; of a profile measured now.
        circuits: from the weights.
        ablation: the model without this head.
        corpus: the one that was read.
        texts: the head, and the texts as they were given, which name the folder.
    """

    command: ClassVar[str] = "card"
    offered: ClassVar[tuple[str, ...]] = ("ablation", "analysis", "circuits", "head", "nearest", "outputs", "roles")

    head: HeadId
    analysis: Analysis
    outputs: HeadOutputs
    profile: StoredProfile | None
    nearest: tuple[tuple[HeadId, float], ...]
    circuits: Circuits | None
    ablation: Ablation | None
    corpus: Path | None
    texts: tuple[str, ...]

    @property
    def roles(self) -> tuple[StoredRole, ...]:
        """The roles that it passes over a corpus, the clearest first."""
        return () if self.profile is None else self.profile.of(self.head)

    @property
    def part(self) -> Analysis:
        """The analysis of its kind of attention; the whole in a model of one kind."""
        return next(part for part in self.analysis.parts if any(head.id == self.head for head in part.heads))

    def __repr__(self) -> str:
        roles = ", ".join(role.role for role in self.roles) or "no role"
        return f"<Card of {self.head} in {self.checkpoint.short_name}: {roles}>"


@checked
def card(
    head: str | HeadId,
    source: str | Path | None = None,
    model: Model | None = None,
    *,
    tokenizer: Any = None,
    revision: str | None = None,
    adapter: str | Path | None = None,
    device: str | None = None,
    device_map: DeviceMap | Path | None = None,
    dtype: str | None = None,
    target: str | None = None,
    repeats: bool = False,
    limit: int | None = None,
    circuits: bool = True,
    ablate: bool = False,
    syntax: bool = True,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Card:
    """Gather everything that attnviz measures of one head.

    >>> print(attnviz.card("L2H8").report())  # doctest: +SKIP

    Args:
        head: ``"L2H8"``, ``"2.8"`` or a HeadId.
        source: a text; or a corpus (``.conllu``, ``.txt``, GAP ``.tsv``) to profile all heads on. Without a text its
            pattern is shown on the shortest of its role's best examples, or on the first text of the corpus.
        model: see :data:`attnviz.models.opening.Model`.
        tokenizer: of a model in memory; a fast one.
        revision: branch, tag or commit of a hub id.
        adapter: as for :func:`attnviz.analyze`.
        device: ``auto`` (default), ``cpu``, ``cuda``, ``cuda:N``, ``mps``.
        device_map: instead of a device, as for :func:`attnviz.analyze`.
        dtype: ``float32`` (default), ``float64``, ``bfloat16``, ``float16``, or ``auto``, the checkpoint's own.
        target: of an encoder-decoder, the text that its decoder reads; default one that it generates, greedily.
        repeats: also profile all heads on random tokens, repeated.
        limit: sentences, or rows, of the corpus that are read.
        circuits: also read from the weights which heads it composes with, and what it copies.
        ablate: also remove the head, on the corpus or the text.
        syntax: parse the text, and ``.txt`` corpora, where spaCy and a pipeline are installed.
        progress: callback for each step of each measurement.
        warn: callback for a stored profile that cannot be used, and for texts that are left out.

    Raises:
        AttnvizError: as the functions of these commands do; UsageError for a head that is not there, or for no text
            where no example is known.
    """
    corpus = _corpus(source)
    checkpoint, found = open_checkpoint(
        model, tokenizer, revision, device, dtype, language_head=True, device_map=device_map, adapter=adapter
    )
    chosen = head_named(head, checkpoint.n_layers, checkpoint.n_heads, stacks=checkpoint.stacks)
    stored, nearest = profile_of(checkpoint, found, warn), tuple[tuple[HeadId, float], ...]()
    of_text = None if corpus is not None or source is None else str(source)
    text = of_text or _example(stored, chosen)
    if text is None and corpus is None:
        raise UsageError(
            f"no example of {chosen} is known: expected a TEXT on which to show its pattern, such as attnviz card "
            f'{chosen} "The cat ran away", or a CORPUS.'
        )
    if corpus is not None or repeats:
        profile = profile_heads(
            checkpoint, [] if corpus is None else [corpus], repeats=repeats, limit=limit, syntax=syntax,
            control=not checkpoint.weight_devices, progress=progress, warn=warn,
        )  # fmt: skip
        assert profile is not None  # it is of one process
        stored, nearest = profile_from(json.loads(json_text(profile.document()))), _nearest(profile, chosen)
        text = of_text or _example(stored, chosen) or text
    text = text or next(read_texts(open_corpus(corpus or Path()))).text
    reader = Reader(checkpoint, stored, Options(), syntax, None, False, None, block_memory(None))
    analysis = reader.read(text, None, target, progress)
    outputs = head_outputs(text, checkpoint, target=target, progress=progress)
    of_weights = measure_circuits(checkpoint, progress=progress) if circuits and is_of_source(chosen.layer) else None
    removed = None
    if ablate:
        removed = measure_ablation(
            text if corpus is None else corpus, checkpoint, select=str(chosen), target=target, limit=limit, curve=False,
            gradient=False, progress=progress, warn=warn,
        )  # fmt: skip
    texts = tuple(each for each in (str(head), of_text, target) if each is not None)
    return Card(
        text, None, checkpoint, analysis.tokens, chosen, analysis, outputs, stored, nearest, of_weights, removed,
        corpus, texts,
    )  # fmt: skip


def _corpus(source: str | Path | None) -> Path | None:
    """The path of a corpus; None for a text, which has no suffix of one."""
    path = Path(source or "")
    return path if isinstance(source, Path) or path.suffix.lower() in _CORPORA else None


def _nearest(profile: Profile, head: HeadId) -> tuple[tuple[HeadId, float], ...]:
    """The heads nearest to one, by the distances of their patterns."""
    model, distances = profile.checkpoint, profile.head_distances
    ids = select_heads((), model.n_layers, model.n_heads, model.stacks)
    if distances is None or head not in ids:
        return ()
    others = sorted(zip(distances[ids.index(head)].tolist(), ids, strict=True))
    return tuple((other, distance) for distance, other in others if other != head and isfinite(distance))[:_NEAREST]


def _example(profile: StoredProfile | None, head: HeadId) -> str | None:
    """The shortest of the best examples of its clearest role, or of its best relation; None without any."""
    examples = [] if profile is None else [each for each in profile.examples if each.id == head and each.best]
    if profile is None or not examples:
        return None
    ranks = {role.role: rank for rank, role in enumerate(profile.of(head))}
    clearest = min(examples, key=lambda each: ranks.get(each.role, len(ranks)))
    return min((example.text for example in clearest.best), key=len)
