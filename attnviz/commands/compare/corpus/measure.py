"""Compare every head of two models over a corpus: mean distance with interval, noise level and maximum.

Of one text the distance of a head is the one of :mod:`attnviz.commands.compare.measure`, the square root of the mean
Jensen-Shannon divergence over its queries. Over a corpus it is the mean over texts, with an interval from a bootstrap
over texts. Beside it stand the distance that dropout makes between two passes of A over the same texts, and the
largest possible one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from attnviz.commands.compare.corpus.tallies import DifferenceTally, clearest_roles, dropping_out, role_tallies
from attnviz.commands.compare.sides import check_shapes, model_names
from attnviz.errors import TextError
from attnviz.judge.roles import ERROR_RATE, Role
from attnviz.measures.bootstrap import ENOUGH_TEXTS, text_weights
from attnviz.measures.estimates import Evidence, cosine_evidence, false_discovery
from attnviz.measures.tallies import Tally
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, all_heads
from attnviz.models.offloading import DeviceMap
from attnviz.models.opening import Model, open_checkpoint
from attnviz.models.sources import Source
from attnviz.models.wording import counted, visible
from attnviz.options import checked
from attnviz.present.result import OfHeads, Result
from attnviz.progress import Progress, named, report_once
from attnviz.texts.batches import Batch, SampledAttention, encode, pieces
from attnviz.texts.long_runs import Process, Unfinished, joined_processes, own_file, this_process
from attnviz.texts.parsing import find_parser, ready
from attnviz.texts.reading import Corpus, Text, open_corpus
from attnviz.texts.runs import Additive, LongRun, RunSettings, own_device
from attnviz.trace.checks import Verification
from attnviz.trace.recorder import PatternsAlone, record_attention
from attnviz.version import __version__

_MOST_WEIGHTS = 1 << 26
"""Attention weights of all layers that are kept at once, but for a single text: a quarter of a gigabyte in float32."""


@dataclass(frozen=True)
class HeadChange:
    """Difference of one head between two models over a corpus.

    Attributes:
        rank: 1 for the head that differs most.
        distance: mean over texts of the Jensen-Shannon distance, root nats, 0 to 0.833.
        interval: of it, at 0.05 over all heads together (Bonferroni); None where there are too few texts.
        divergence, total_variation: means over texts; as for :class:`attnviz.commands.compare.measure.HeadDifference`.
        noise: the same distance between two passes of A with dropout; None without dropout in A.
        above_noise: interval of distance minus noise, paired by text; without noise that of the distance.
        p: one-sided, of no more distance than noise; None with too few texts.
        q: its false discovery rate over all heads (Benjamini-Yekutieli 2001).
        changed: whether the head differs by more than noise: both intervals above it, and q at most 0.05.
        before, after: its clearest role on this corpus in A and in B; None if none passes.
    """

    id: HeadId
    rank: int
    distance: float
    interval: tuple[float, float] | None
    divergence: float
    total_variation: float
    noise: float | None
    above_noise: tuple[float, float] | None
    p: float | None
    q: float | None
    changed: bool
    before: Role | None
    after: Role | None

    @property
    def role_changed(self) -> bool:
        """Whether the clearest role differs in B."""
        return getattr(self.before, "role", None) != getattr(self.after, "role", None)


@dataclass(frozen=True, repr=False)
class CorpusComparison(Result, OfHeads[HeadChange]):
    """What :func:`compare_corpus` measured; both models are verified on a sample of the texts.

    Attributes:
        first, second: the models, A and B.
        corpus: the file.
        texts, tokens, left_out: how many were compared, and how many texts were not.
        seed: of everything random.
        verifications: of A and of B.
        texts_verified: on how many texts.
        parser: the parser of a corpus without trees; None without one.
        heads: one entry a head, the most different first.
        largest: mean over texts of the largest possible distance: in a causal model the first token of a
            text sees itself alone and cannot differ.
        dropout: probability of dropout of hidden states in A, the largest of any module; 0 without dropout.
    """

    command: ClassVar[str] = "compare.corpus"

    first: Checkpoint
    second: Checkpoint
    corpus: Corpus
    texts: int
    tokens: int
    left_out: int
    seed: int
    verifications: tuple[Verification, Verification]
    texts_verified: int
    parser: str | None
    heads: tuple[HeadChange, ...]
    largest: float
    dropout: float

    @property
    def checkpoint(self) -> Checkpoint:  # type: ignore[override] # of the heads' numbers
        """A, which has as many layers and heads as B."""
        return self.first

    @property
    def judged(self) -> bool:
        """Whether there are enough texts for intervals and verdicts."""
        return self.texts >= ENOUGH_TEXTS

    @property
    def changed(self) -> list[HeadChange]:
        """The heads that differ by more than noise, the most different first."""
        return [head for head in self.heads if head.changed]

    @property
    def source(self) -> str:
        """One line: the corpus and how much of it was read."""
        counts = f"{counted(self.texts, 'text')}, {counted(self.tokens, 'token')}"
        return f"{visible(self.corpus.path.name)} ({counts})"

    def __repr__(self) -> str:
        first, second = model_names(self.first, self.second)
        heads = f"{len(self.changed)} of {counted(len(self.heads), 'head')} changed"
        return f"<CorpusComparison of {first} with {second} on {self.source}: {heads}>"


@checked
def compare_corpus(
    first: Model,
    second: Model,
    corpus: str | Path,
    *,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    syntax: bool = True,
    parser: str | None = None,
    device: str | None = None,
    device_map: DeviceMap | Path | None = None,
    dtype: str | None = None,
    unfinished: Path | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> CorpusComparison | None:
    """Compare every head of two models over the texts of a corpus, which is read as a stream.

    Of encoder-decoders the encoders alone are compared. Under torchrun the texts are split over the processes.

    Args:
        first: A, the model before; a name, a folder, a Source or a Checkpoint.
        second: B, of the same architecture, with as many layers and heads and the same tokenizer.
        corpus: ``.txt`` (a text a line) or ``.conllu`` (gold trees).
        limit: texts that are read.
        batch_size: texts that the models read at once; it changes no result but by rounding.
        seed: of the bootstrap, of dropout, and of which batches are verified.
        syntax: find relations in a ``.txt`` file where spaCy and a pipeline are installed, for the roles of heads.
        parser: the spaCy pipeline to use; default an installed English one.
        device: as for :func:`attnviz.analyze`, for models by name.
        device_map: likewise, of one process.
        dtype: likewise.
        unfinished: as for :func:`attnviz.profile_heads`.
        progress: callback with how many texts are done, and about how many there are.
        warn: callback for each text that was left out because the models cannot read it.

    Returns:
        the comparison; None in all processes but the first.

    Raises:
        UsageError: models of other shapes.
        TextError: a text that the models read as different tokens, with its line.
        OutputError: ``unfinished`` holds what a run with other settings has measured.
        CorpusError: the corpus cannot be read, or has no text to compare.
        VerificationError: the heads do not reproduce a model.
    """
    file = open_corpus(Path(corpus), ("conllu", "txt"))
    parse = find_parser([file], parser) if syntax else None
    process = this_process()
    a, b = (_opened(model, device, device_map, dtype, process) for model in (first, second))
    check_shapes(a, b)
    identity = {
        "attnviz": __version__, "A": a.name, "B": b.name, "weights of A": a.weights_sha256,
        "weights of B": b.weights_sha256, "dtypes": [str(a.dtype), str(b.dtype)], "seed": seed, "limit": limit,
        "corpus": str(file.path), "parser": parse and parse.name,
    }  # fmt: skip
    settings = RunSettings(
        a.encoder, (file,), parse, limit, batch_size, seed, process,
        Unfinished(unfinished and own_file(unfinished, process), identity), named("", progress), report_once(warn),
    )  # fmt: skip
    with joined_processes(process):
        return _Run(settings, b.encoder).result()


def _opened(
    model: Model, device: str | None, device_map: DeviceMap | Path | None, dtype: str | None, process: Process
) -> Checkpoint:
    """Open a model; device and dtype are for models by name."""
    if not isinstance(model, str | Path | Source):
        return open_checkpoint(model)[0]
    own = own_device(process, device or "auto", device_map)
    return open_checkpoint(model, device=own, dtype=dtype, device_map=device_map)[0]


class _Run:
    """One pass over a corpus with both models; memory does not grow with it."""

    def __init__(self, settings: RunSettings, b: Checkpoint) -> None:
        self.settings, a = settings, settings.checkpoint
        self.models = a, b
        self.attention = SampledAttention(a, settings.seed), SampledAttention(b, settings.seed)
        self.roles = role_tallies(a), role_tallies(b)
        self.tally = DifferenceTally(a.n_layers, a.n_heads)
        self._drops = True  # until a pass of A has dropped nothing
        parts: dict[str, Additive] = {"differences": self.tally}
        for side, attention, (statistics, relations) in zip("AB", self.attention, self.roles, strict=True):
            parts |= {f"attention {side}": attention, f"statistics {side}": statistics, f"relations {side}": relations}
        self.run = LongRun(settings, parts, self.count, self.prepared)

    def prepared(self, text: Text) -> Text | None:
        """Encode a text with words and relations; None if its tree has another size."""
        return ready(text, self.settings.parse)

    def count(self, number: int, batch: Batch) -> None:  # noqa: ARG002 - there is one corpus
        """Run one batch of the corpus through both models."""
        _check_same_tokens(self.models[1], batch)
        for piece in pieces(self.models[0], batch, _MOST_WEIGHTS // self.models[0].n_layers):
            self._count_piece(piece)

    def _count_piece(self, batch: Batch) -> None:
        """Run a batch through both models, and twice through A with dropout."""
        weights = text_weights(self.settings.seed, [item.source.number for item in batch.items])
        self.tally.begin(batch, weights, self.models[0].architecture.causal)
        kept: dict[int, Tensor] = {}  # of A, until B comes
        for attention, tallies, compare in zip(self.attention, self.roles, (False, True), strict=True):
            for tally in tallies:
                tally.begin(batch, weights)

            def visit(layer: int, pattern: Tensor, tallies: Sequence[Tally] = tallies, compare: bool = compare) -> None:
                for tally in tallies:
                    tally.add(layer, pattern, batch)
                if compare:
                    self.tally.add(layer, kept.pop(layer), pattern)
                else:
                    kept[layer] = pattern

            attention.run(batch, visit)
        if self._drops:
            self._count_noise(batch)

    def _count_noise(self, batch: Batch) -> None:
        a, seed, kept = self.models[0], self.settings.seed, dict[int, Tensor]()
        with dropping_out(a, batch, seed, 0) as dropped:
            record_attention(a, batch.inputs, PatternsAlone(kept.__setitem__), torch.inf)
        self._drops = bool(dropped)
        if not dropped:
            return
        self.tally.dropout = max(dropped)
        with dropping_out(a, batch, seed, 1):
            compare = PatternsAlone(lambda layer, pattern: self.tally.add_noise(layer, kept.pop(layer), pattern))
            record_attention(a, batch.inputs, compare, torch.inf)

    def result(self) -> CorpusComparison | None:
        """Measure, merge all processes and judge the heads; None in all processes but the first."""
        self.run.measure()
        if not self.run.gather():
            return None
        a, b = self.models
        settings, (done,), (first, second) = self.settings, self.run.measured, self.attention
        return CorpusComparison(
            a, b, settings.corpora[0], done.texts, done.tokens, done.left_out, settings.seed,
            (first.verification, second.verification), first.texts_verified,
            None if settings.parse is None else settings.parse.name,
            self._heads(done.texts), self.tally.largest, self.tally.dropout,
        )  # fmt: skip

    def _heads(self, n_texts: int) -> tuple[HeadChange, ...]:
        """Every head with its verdict, the most different first."""
        model, means = self.models[0], self.tally.means()
        ids = all_heads(model.n_layers, model.n_heads)
        ranked = sorted(ids, key=lambda id: (-float(means["distance"][id]), id))
        evidence = self._evidence(ranked, means, n_texts) if n_texts >= ENOUGH_TEXTS else {}
        q = dict(zip(evidence, false_discovery([each.p for each in evidence.values()]), strict=True))
        before, after = (clearest_roles(*tallies, ids) for tallies in self.roles)
        heads = []
        for rank, id in enumerate(ranked, start=1):
            test, values = evidence.get(id), {name: float(each[id]) for name, each in means.items()}
            noise = values.get("noise")
            heads.append(
                HeadChange(
                    HeadId(model.layers[id.layer], id.head), rank, values["distance"],
                    None if test is None else (max(0.0, test.interval[0]), test.interval[1]), values["divergence"],
                    values["total_variation"], noise, test and test.difference, test and test.p, q.get(id),
                    test is not None and q[id] <= ERROR_RATE
                    and test.interval[0] > (noise or 0.0) and test.difference[0] > 0,
                    before[id], after[id],
                )
            )  # fmt: skip
        return tuple(heads)

    def _evidence(self, ids: Sequence[HeadId], means: dict[str, Tensor], n_texts: int) -> dict[HeadId, Evidence]:
        """Intervals of each head's distance, and of distance minus noise, at a level over all heads together."""
        noise = means.get("noise", torch.zeros_like(means["distance"]))
        numbers = torch.stack([means["distance"], noise, *self.tally.errors()])
        evidence = {}
        for id in ids:
            distance, baseline, *errors = numbers[:, id.layer, id.head].tolist()
            evidence[id] = cosine_evidence(distance, baseline, (errors[0], errors[1]), n_texts, ERROR_RATE / len(ids))
        return evidence


def _check_same_tokens(b: Checkpoint, batch: Batch) -> None:
    """Raise TextError if A and B tokenise the text differently."""
    others = encode(b, [item.source for item in batch.items])
    for item, other in zip(batch.items, others, strict=True):
        if (item.ids, item.sink, item.type_ids) != (other.ids, other.sink, other.type_ids):
            pairs = zip([*item.ids, None], [*other.ids, None], strict=False)
            position = next((index for index, (one, two) in enumerate(pairs) if one != two), 0)
            raise TextError(
                f"{item.source.place}: the models read the text differently, from token {position} on ({len(item)} and "
                f"{len(other)} tokens); expected models with the same tokenizer."
            )
