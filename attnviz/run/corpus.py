"""One loop over many texts: batches through a model, a sample of them verified, resumed, shared by processes."""

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from heapq import nsmallest
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from attnviz.errors import CorpusError, OutputError, TextError, UsageError, VerificationError
from attnviz.inputs.batches import MOST_WEIGHTS, Batch, batches, collate, split_batch
from attnviz.inputs.encoding import unknown_note_of
from attnviz.inputs.prompt import Prompt, Text
from attnviz.inputs.reading import Corpus, read_texts, unread_columns
from attnviz.inputs.sound import COLUMNS
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.opening import Model, open_checkpoint, resolve_device
from attnviz.options import ModelOptions
from attnviz.progress import Progress, report_once, tell
from attnviz.run.checks import LayerCheck, Verification, worse_of
from attnviz.run.patterns import PatternCallback
from attnviz.run.processes import Process, Unfinished, gathered, own_file
from attnviz.run.record import OnLayer, record_attention
from attnviz.run.verify import VerifiedRows, Verifier
from attnviz.version import __version__
from attnviz.wording import counted, visible

EVERY = 20  # one of so many batches is verified, of the first ones the very first
_SAVED_EVERY = 10.0  # seconds between two saves
_Checked = TypeVar("_Checked")
_Result = TypeVar("_Result")


class SampledAttention:
    """Runs batches through a model and passes on the patterns of each layer.

    Verifying costs about as much as the forward pass itself, so over a corpus a sample is verified: the first batch,
    and a random one of every twenty after it. In a verified batch every head of every text is recomputed
    and compared, and the patterns are the reference's; in the others they are the model's.
    """

    def __init__(self, checkpoint: Checkpoint, seed: int = 0) -> None:
        self._checkpoint = checkpoint
        self._random = random.Random(seed)  # noqa: S311 - a sample, not a secret
        self._batches = self._chosen = 0
        self._checks: dict[int, LayerCheck] = {}
        self.texts_verified = 0

    @property
    def next_is_verified(self) -> bool:
        return self._batches % EVERY == self._chosen

    def run(
        self,
        batch: Batch,
        on_pattern: OnLayer,
        on_weighted_values: OnLayer | None = None,
    ) -> None:
        """Run the model once; ``on_pattern`` gets each layer's patterns, [batch, n_heads, n, n], first layer first.

        They are in float32 at least, so that sums over them are exact enough. After that ``on_weighted_values`` gets
        the weighted values A v of the same patterns, behind any gate, [batch, n, n_heads, d_head]. VerificationError
        where a head of a verified batch does not reproduce the model.
        """
        verifying = self.next_is_verified
        self._batches += 1
        if self._batches % EVERY == 0:
            self._chosen = self._random.randrange(EVERY)
        if verifying:
            self.verify(batch, lambda rows: on_pattern(rows.layer, rows.in_float32), torch.inf, on_weighted_values)
        else:
            patterns = PatternCallback(self._checkpoint, on_pattern, on_weighted_values, batch.keys)
            record_attention(self._checkpoint, batch.inputs, patterns, torch.inf)
            patterns.check()

    def verify(
        self,
        batch: Batch,
        on_rows: Callable[[VerifiedRows], None],
        memory: float | None = None,
        on_weighted_values: OnLayer | None = None,
    ) -> None:
        """Run the model once on a batch and verify it; ``on_rows`` gets each layer in chunks of rows.

        VerificationError where a head does not reproduce the model.
        """
        verifier = Verifier(
            self._checkpoint,
            batch.inputs,
            on_rows,
            batch.keys,
            keep=False,
            on_weighted_values=on_weighted_values,
        )
        verifier.run(memory)
        for layer, check in verifier.checks.items():
            self._checks[layer] = worse_of(self._checks.get(layer), check)
        self.texts_verified += len(batch.items)

    @property
    def verification(self) -> Verification:
        checks = tuple(self._checks[layer] for layer in sorted(self._checks))
        return Verification(self._checkpoint.tolerance, checks)

    def state(self) -> dict[str, Any]:
        """Number of verified texts and checks, to save."""
        checks = [asdict(check) | {"layer": int(layer)} for layer, check in self._checks.items()]
        return {"texts_verified": self.texts_verified, "checks": checks}

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the :meth:`state` of another process or an earlier run."""
        self.texts_verified += state["texts_verified"]
        for entry in state["checks"]:
            check = LayerCheck(**entry)
            self._checks[check.layer] = worse_of(self._checks.get(check.layer), check)


class Additive(Protocol):
    """Counts over batches that can be saved, and added up over runs and processes."""

    def state(self) -> dict[Any, Any]:
        """The counts so far: tensors, numbers and dicts of them."""

    def merge(self, state: dict[Any, Any]) -> None:
        """Add the counts of another one of the same kind and shape."""


@dataclass
class Measured:
    """Progress on one corpus: the numbers of the texts that are done, and counts of those that were measured."""

    corpus: Corpus
    numbers: set[int] = field(default_factory=set)
    texts: int = 0
    tokens: int = 0
    unknown: int = 0  # tokens that stand for what the vocabulary lacks

    @property
    def left_out(self) -> int:
        return len(self.numbers) - self.texts

    def add(self, batch: Batch) -> None:
        """Count the texts of a batch as measured."""
        self.numbers.update(item.source.number for item in batch.items)
        self.texts += len(batch.items)
        self.tokens += batch.n_tokens
        self.unknown += sum(item.n_unknown for item in batch.items)

    def state(self) -> dict[str, Any]:
        """To save."""
        return {"numbers": sorted(self.numbers), "counts": [self.texts, self.tokens, self.unknown]}

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the :meth:`state` of another process or an earlier run."""
        self.numbers.update(state["numbers"])
        texts, tokens, unknown = state["counts"]
        self.texts, self.tokens, self.unknown = self.texts + texts, self.tokens + tokens, self.unknown + unknown


@dataclass(kw_only=True)
class CorpusLoop:
    """A model over the texts of corpora, batch by batch; the arguments are options of ``attnviz profile``.

    ``attention`` verifies a sample of the batches; ``measured`` is the progress on each corpus, of this process's share
    of the texts. What was measured is kept in ``unfinished``, for a run with the same ``identity``.
    """

    checkpoint: Checkpoint
    corpora: tuple[Corpus, ...]
    limit: int | None = None  # texts that are read of each corpus
    batch_size: int
    seed: int
    process: Process = field(default_factory=Process)
    unfinished: Path | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)  # all else that the counts depend on
    progress: Progress | None
    warn: Callable[[str], None] | None

    def __post_init__(self) -> None:
        settings = {
            "attnviz": __version__,
            "corpora": [corpus.identity for corpus in self.corpora],
            "limit": self.limit,
            "seed": self.seed,
            **self.identity,
        }
        self._unfinished = Unfinished(self.unfinished and own_file(self.unfinished, self.process), settings)
        self._warn = report_once(self.warn)
        self.attention = SampledAttention(self.checkpoint, self.seed)
        self.measured = [Measured(corpus) for corpus in self.corpora]
        self._tallies: Mapping[str, Additive] = {}
        self._save_at = time.monotonic() + _SAVED_EVERY

    def measure(
        self,
        tallies: Mapping[str, Additive],
        count: Callable[[int, Batch], None],
        prepared: Callable[[Text], Text | None],
    ) -> None:
        """Measure all corpora, from where an earlier run stopped, and save the counts now and then.

        ``count`` adds a batch of the corpus with this index to the ``tallies``, which start at zero. ``prepared``
        returns a text as it is measured; None for one to leave out.

        CorpusError for a malformed corpus, before anything is measured; OutputError where the file of an unfinished run
        is of other settings.
        """
        self._tallies = tallies
        totals = [sum(1 for _ in read_texts(corpus, self.limit)) for corpus in self.corpora]
        state = self._unfinished.load()
        if state is not None:
            with self._unfinished.restoring():
                self._merge(state)
            done = counted(sum(measured.texts for measured in self.measured), "text")
            self._warn(
                f"continuing after {done} that an earlier run measured; to start again, delete {self._unfinished.path}"
            )
        for number, (measured, total) in enumerate(zip(self.measured, totals, strict=True)):
            self._measure(measured, partial(count, number), prepared, total)
        self._save()

    def _measure(
        self, measured: Measured, count: Callable[[Batch], None], prepared: Callable[[Text], Text | None], total: int
    ) -> None:
        corpus, done = measured.corpus, frozenset(measured.numbers)

        def texts() -> Iterator[Text]:
            for text in read_texts(corpus, self.limit):
                if text.number in done or not self.process.owns(text.number):
                    continue
                ready = prepared(text)
                if ready is None:
                    measured.numbers.add(text.number)
                else:
                    yield ready

        def skipped(text: Text, why: str) -> None:
            measured.numbers.add(text.number)
            self.leave_out(text, why)

        for batch in batches(self.checkpoint, texts(), self.batch_size, skipped):
            count(batch)
            measured.add(batch)
            if time.monotonic() > self._save_at:
                try:
                    self._save()
                except OutputError as error:  # the run itself may yet succeed
                    self._warn(f"{error} Until that is mended, an interruption loses what was measured.")
                    self._save_at = math.inf
            tell(self.progress, corpus.path.name, len(measured.numbers) * self.process.count, total)

    def leave_out(self, text: Text, why: str) -> None:
        """Tell of a text that is not measured."""
        self._warn(f"{text.place}: left out: {why}.")

    def over(self, texts: Iterable[Text], on_batch: Callable[[Batch], None], name: str, total: int) -> None:
        """Give ``on_batch`` all batches of other texts, of which nothing is kept; texts that do not fit are left out.

        ``name`` and ``total`` are what progress is told of them.
        """
        done = 0
        for batch in batches(self.checkpoint, texts, self.batch_size, lambda *_: None):
            on_batch(batch)
            done += len(batch.items)
            tell(self.progress, name, done, total)

    def sample(self, number: int, most: int) -> list[Text]:
        """A random sample of the corpus with this index, ``most`` texts at most, in their order."""

        def priority(text: Text) -> float:
            return random.Random(f"{self.seed}:{number}:{text.number}").random()  # noqa: S311 - a sample, not a secret

        texts = read_texts(self.corpora[number], self.limit)
        return sorted(nsmallest(most, texts, key=priority), key=attrgetter("number"))

    def gather(self) -> bool:
        """Add up the counts of all processes, in the first; True there. CorpusError where nothing could be measured."""
        states = gathered(self.process, self._state())
        for state in states[1:]:
            self._merge(state)
        for done in self.measured:
            if states and not done.texts:
                self._unfinished.remove()
                raise CorpusError(
                    f"no text of {done.corpus.path} could be measured: all {done.left_out} are too long, too short, or "
                    "not within what the model can see."
                )
        return bool(states)

    def text_notes(self) -> list[str]:
        """Sentences on unknown tokens, and on columns that are not read."""
        notes = [
            unknown_note_of(self.checkpoint, done.unknown, done.tokens, f" of {visible(done.corpus.path.name)}")
            for done in self.measured
        ]
        return [*filter(None, notes), *unread_columns(corpus.table for corpus in self.corpora)]

    def _save(self) -> None:
        if any(measured.numbers for measured in self.measured):
            self._unfinished.save(self._state())
        self._save_at = time.monotonic() + _SAVED_EVERY

    def _state(self) -> dict[str, Any]:
        parts = {name: tally.state() for name, tally in self._tallies.items()}
        return {"parts": parts, "measured": [measured.state() for measured in self.measured]}

    def _merge(self, state: Mapping[str, Any]) -> None:
        for name, tally in self._tallies.items():
            tally.merge(state["parts"][name])
        for measured, other in zip(self.measured, state["measured"], strict=True):
            measured.merge(other)


def measure_each(
    texts: Sequence[Text],
    check: Callable[[Text], _Checked],
    measure: Callable[[Text, _Checked], _Result],
    progress: Progress | None,
) -> Iterator[_Result]:
    """Measure texts one by one, in order, each with what ``check`` gave; all are checked before the first is measured.

    Errors of a text say which it is.
    """
    checked = list[_Checked]()
    for text in texts:
        with _located(text, " No text was analysed: all are checked first."):
            checked.append(check(text))
    for number, (text, ready) in enumerate(zip(texts, checked, strict=True)):
        tell(progress, "texts", number, len(texts))
        with _located(text):
            result = measure(text, ready)
        yield result
    tell(progress, "texts", len(texts), len(texts))


@contextmanager
def _located(text: Text, more: str = "") -> Iterator[None]:
    """Let errors of a text say which it is, and ``more``."""
    try:
        yield
    except (TextError, VerificationError) as error:
        raise type(error)(f"{text.place}: {error}{more}") from error


def open_for(process: Process, model: Model | None, opening: ModelOptions) -> Checkpoint:
    """The checkpoint of a model, by name on this process's device: a GPU of its own for each of several."""
    if process.count > 1 and not isinstance(model, Checkpoint | torch.nn.Module):
        if opening.get("device_map") is not None:
            raise UsageError(
                "--device-map (device_map=...) gives all devices to one process; start it without torchrun."
            )
        if resolve_device(str(opening.get("device") or "auto")) == torch.device("cuda"):
            opening = {**opening, "device": f"cuda:{process.local_rank % torch.cuda.device_count()}"}
    return open_checkpoint(model, **opening)[0]


def give_parts(
    checkpoint: Checkpoint, items: Sequence[Prompt], on_part: Callable[[Batch], None], most: int = MOST_WEIGHTS
) -> None:
    """Give ``on_part`` texts in batches of which a layer has ``most`` weights, but for a single text."""
    if items:
        for part in split_batch(checkpoint, collate(checkpoint, items), most):
            on_part(part)


def verified_texts(checkpoint: Checkpoint, items: Sequence[Prompt]) -> Verification:
    """Verify every head on some texts at once; of a model of sounds beside as many sounds at random."""
    batch = collate(checkpoint, items)
    if checkpoint.architecture.reads_sound:
        n_bins, n = checkpoint.config.num_mel_bins, checkpoint.config.max_source_positions
        features = torch.randn(len(items), n_bins, COLUMNS * n, generator=torch.Generator().manual_seed(0))
        inputs = {name: value for name, value in batch.inputs.items() if name.startswith("decoder_")}
        inputs["input_features"] = features.to(checkpoint.device, checkpoint.dtype)
        batch = replace(batch, inputs=inputs, valid=batch.valid.new_ones(len(items), n))
    attention = SampledAttention(checkpoint)
    attention.verify(batch, lambda _: None)
    return attention.verification
