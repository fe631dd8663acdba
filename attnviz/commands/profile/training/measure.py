"""Induction heads over training: prefix matching, copying and in-context learning at each step (Olsson et al. 2022)."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Module

from attnviz.commands.profile.measure import untrained_copy
from attnviz.errors import CorpusError, OutputError, ProcessError, UsageError
from attnviz.judge.roles import Role, judged_roles, repeat_candidates
from attnviz.measures.bootstrap import text_weights
from attnviz.measures.estimates import Interval
from attnviz.measures.intervals import SAMPLES, of_ratios
from attnviz.measures.repeats import SEQUENCES, RepeatTally, repeated_tokens
from attnviz.measures.writing import WritingTally
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.opening import Model, named_source, open_checkpoint
from attnviz.options import checked
from attnviz.present.documents import model_entry, verification_entry
from attnviz.present.result import Result
from attnviz.progress import Progress, tell
from attnviz.texts.batches import Batch, SampledAttention, batch_of_ids, running_tokens
from attnviz.texts.long_runs import Unfinished, this_process
from attnviz.texts.reading import Corpus, open_corpora
from attnviz.texts.tables import Columns
from attnviz.trace.logits import check_logits
from attnviz.trace.removal import final_states, running
from attnviz.version import __version__
from attnviz.wording import counted

EARLY, LATE = 50, 500
"""Tokens of a context whose losses are compared (Olsson et al. 2022)."""

MOST_STRETCHES = 500
"""Contexts that are read at most."""

_UNTRAINED = "untrained"


@dataclass(frozen=True)
class TrainingStep:
    """What one step of training measures.

    Attributes:
        step: the revision, or the model's name.
        head: that of the highest prefix matching, which ``prefix_matching`` and ``copying`` are of.
        prefix_matching: mean attention to the token after the earlier copy, on random tokens that repeat.
        interval: of it, corrected for the number of heads.
        induction: how many heads pass the role ``induction``; of the untrained copy by threshold and interval alone.
        copying: -1 to 1, see :func:`_copying`; None where logits are no sum of what heads write.
        loss_early, loss_late: mean loss of the 50th and of the 500th token of a context, in nats.
        in_context: ``loss_late`` less ``loss_early``; all three None without contexts of this length.
        in_context_interval: 95 %, over contexts.
        model: the model, as in every document.
        verification: likewise, how closely the heads reproduce it.
    """

    step: str
    head: str
    prefix_matching: float
    interval: Interval | None
    induction: int
    copying: float | None
    loss_early: float | None
    loss_late: float | None
    in_context: float | None
    in_context_interval: Interval | None
    model: dict[str, Any]
    verification: dict[str, Any]


@dataclass(frozen=True, repr=False, eq=False)
class Training(Result):
    """What :func:`profile_training` measured.

    Attributes:
        steps: in the order given.
        untrained: of a freshly initialised copy of the first step; None without control.
        corpora: texts that losses were measured on.
        contexts: how many stretches of 500 tokens of them.
        why_no_loss: the reason why no losses were measured, or ''.
    """

    command: ClassVar[str] = "profile.training"

    name: str
    steps: tuple[TrainingStep, ...]
    untrained: TrainingStep | None
    corpora: tuple[Corpus, ...]
    contexts: int
    seed: int
    why_no_loss: str

    @property
    def first(self) -> TrainingStep | None:
        """The first step with an induction head."""
        return next((each for each in self.steps if each.induction), None)

    def __repr__(self) -> str:
        first = "no induction head" if self.first is None else f"induction heads from {self.first.step} on"
        return f"<Training of {self.name}, {counted(len(self.steps), 'step')}: {first}>"


@checked
def profile_training(
    models: Model | Sequence[Model] | None,
    paths: Sequence[str | Path] = (),
    *,
    revisions: Sequence[str] = (),
    text_column: str | None = None,
    pair_column: str | None = None,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    control: bool = True,
    tokenizer: Any = None,
    device: str | None = None,
    dtype: str | None = None,
    attention: str | None = None,
    unfinished: Path | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Training:
    """Measure where induction heads appear, over revisions of a model or over several models, one after the other.

    ``models`` are one model of the hub with ``revisions``, branches, tags or commits in the order of training;
    or the steps themselves. The texts of the corpora ``paths``, run together, are cut into contexts of 500 tokens for
    the in-context learning score. Without ``control`` no freshly initialised copy of the first step is measured.
    ``unfinished`` is kept after every step. Other arguments, and each model, are as for :func:`attnviz.profile_heads`.

    Raises:
        UsageError: revisions of several models, or a single step.
        OutputError: ``unfinished`` is of other settings, or of other weights.
        AttnvizError: as of :func:`attnviz.profile_heads`.
    """
    if this_process().count > 1:
        raise ProcessError("several steps are measured in one process; start it without torchrun.")
    named: list[Any] = [*models] if isinstance(models, list | tuple) else [models]
    if revisions and len(named) != 1:
        raise UsageError(f"expected one model with revisions (--revisions), found {len(named)} models.")
    wanted: list[tuple[Any, str | None]] = [(named[0], each) for each in revisions] or [(each, None) for each in named]
    if len(wanted) < 2:
        raise UsageError(f"expected two steps of training at least (--revisions step0,step1000), found {len(wanted)}.")
    columns = Columns(text_column, pair_column)
    corpora = open_corpora(paths, columns, refused=("gap", "chats"))
    identity = {
        "attnviz": __version__, "steps": [f"{model} {revision}" for model, revision in wanted], "seed": seed,
        "limit": limit, "corpora": [corpus.identity for corpus in corpora], "dtype": dtype, "control": control,
    }  # fmt: skip
    kept = Unfinished(unfinished, identity)
    done: dict[str, Any] = kept.load() or {"steps": [], "untrained": None, "contexts": 0, "why": "", "name": ""}
    if done["steps"] and warn is not None:
        warn(f"continuing after {counted(len(done['steps']), 'step')}; to start again, delete {unfinished}")
    found = [
        model if isinstance(model, Checkpoint | Module) else named_source(model, revision) for model, revision in wanted
    ]
    for number, (model, (_, revision)) in enumerate(zip(found, wanted, strict=True)):
        tell(progress, "steps", number, len(wanted))
        opening: dict[str, Any] = {}
        if not isinstance(model, Checkpoint):
            opening = {"tokenizer": tokenizer, "device": device, "dtype": dtype, "attention": attention}
        opened, _ = open_checkpoint(model, revision=revision, **opening)
        checkpoint = opened.encoder
        if number < len(done["steps"]):
            if done["steps"][number]["model"]["weights_sha256"] != checkpoint.weights_sha256:
                raise OutputError(
                    f"{unfinished} holds what an interrupted run has measured with other weights of "
                    f"{checkpoint.short_name}; delete it to begin anew."
                )
            continue
        contexts, why = _contexts(checkpoint, corpora, limit)
        more = contexts, seed, batch_size
        if control and done["untrained"] is None:
            fresh = untrained_copy(checkpoint, seed)
            done["untrained"] = asdict(_measured(fresh, _UNTRAINED, {}, *more))
        best = {("induction", ""): done["untrained"]["prefix_matching"]} if control else {}
        done["steps"].append(asdict(_measured(checkpoint, revision or checkpoint.short_name, best, *more)))
        done |= {"contexts": max(done["contexts"], len(contexts)), "why": why, "name": checkpoint.short_name}
        kept.save(done)
    tell(progress, "steps", len(wanted), len(wanted))
    steps = tuple(TrainingStep(**each) for each in done["steps"])
    untrained = TrainingStep(**done["untrained"]) if control else None
    name = done["name"] if revisions else counted(len(steps), "model")
    return Training(name, steps, untrained, corpora, done["contexts"], seed, done["why"])


def _measured(
    checkpoint: Checkpoint, name: str, best: dict[tuple[str, str], float], contexts: Tensor, seed: int, batch_size: int
) -> TrainingStep:
    """One step; ``best`` is what an untrained copy scores, ``contexts`` are tokens [n, LATE + 1]."""
    attention = SampledAttention(checkpoint, seed)
    tally = RepeatTally(checkpoint, seed)
    tally.measure(attention, list(range(SEQUENCES)), batch_size, lambda _: None)
    roles = [role for role in judged_roles(repeat_candidates(tally.results()), best) if role.role == "induction"]
    head: Role = max(roles, key=lambda role: role.score)
    copying = _copying(checkpoint, attention, seed, batch_size)
    losses = _losses(checkpoint, contexts, batch_size, compare=name != _UNTRAINED)
    change = losses[:, 1] - losses[:, 0]
    n, interval = len(losses), None
    if n:
        weights = text_weights(seed, range(n), SAMPLES)
        interval = of_ratios(change[:, None], torch.ones_like(change)[:, None], weights).interval(0)
    means = [float(each.mean()) if n else None for each in (losses[:, 0], losses[:, 1], change)]
    return TrainingStep(
        step=name,
        head=str(head.id),
        prefix_matching=head.score,
        interval=head.interval,
        induction=sum(role.passed is True for role in roles),
        copying=None if copying is None else float(copying[head.id]),
        loss_early=means[0],
        loss_late=means[1],
        in_context=means[2],
        in_context_interval=interval,
        model=model_entry(checkpoint),
        verification=verification_entry(attention.verification),
    )


def _copying(checkpoint: Checkpoint, attention: SampledAttention, seed: int, batch_size: int) -> Tensor | None:
    """How far each head raises the logit of the token that it attends to most, [n_layers, n_heads], -1 to 1."""
    # the paper's evaluator, but for its 25 tokens: signed effects on the logit, by their absolute values
    writing = WritingTally(checkpoint, 0)
    if writing.why_no_copying:
        return None
    sums = torch.zeros(2, checkpoint.n_layers, checkpoint.n_heads, dtype=torch.float64)
    sequences = repeated_tokens(checkpoint, seed)
    patterns: dict[int, Tensor] = {}
    for first in range(0, len(sequences), batch_size):
        batch = batch_of_ids(checkpoint, sequences[first : first + batch_size].tolist())

        def written(layer: int, weighted: Tensor, batch: Batch = batch) -> None:
            moved = writing.moved(layer, patterns.pop(layer), weighted, batch)
            later = moved[..., moved.shape[-1] // 2 :].double().cpu()
            sums[:, layer] += torch.stack([later.sum((0, 2)), later.abs().sum((0, 2))])

        attention.run(batch, patterns.__setitem__, written)
    return sums[0] / sums[1].clamp(min=torch.finfo(sums.dtype).tiny)


def _contexts(checkpoint: Checkpoint, corpora: Sequence[Corpus], limit: int | None) -> tuple[Tensor, str]:
    """Stretches of the texts, run together, [n, LATE + 1], each after the begin token; or none, and why."""
    why = ""
    if not corpora:
        why = "no corpus was given, and random tokens have no loss to learn in context"
    elif checkpoint.language_head is None or not checkpoint.architecture.causal:
        why = "the model predicts no next tokens"
    elif checkpoint.positions < LATE:
        why = f"the model has {checkpoint.positions} positions, and the {LATE}th token is measured"
    if why:
        return torch.empty(0, LATE + 1, dtype=torch.long), why
    begin = checkpoint.tokenizer.bos_token_id
    first = [] if begin is None else [begin]
    tokens = running_tokens(checkpoint, corpora, limit)
    rows: list[list[int]] = []
    while len(rows) < MOST_STRETCHES:
        row = [*first, *islice(tokens, LATE + 1 - len(first))]
        if len(row) <= LATE:
            break
        rows.append(row)
    if not rows:
        raise CorpusError(f"expected {LATE} tokens at least for the in-context learning score, found {len(row)}.")
    return torch.tensor(rows), ""


def _losses(checkpoint: Checkpoint, contexts: Tensor, batch_size: int, compare: bool) -> Tensor:
    """Losses of the early and the late token of each context, [n, 2]; ``compare`` with the whole model's logits."""
    places, found = torch.tensor([EARLY, LATE]), [torch.empty(0, 2, dtype=torch.float64)]
    at_once = max(1, batch_size // 8)
    for first in range(0, len(contexts), at_once):
        rows = contexts[first : first + at_once].to(checkpoint.device)
        inputs = {"input_ids": rows[:, :LATE], "attention_mask": torch.ones_like(rows[:, :LATE])}
        with running(checkpoint):
            states = final_states(checkpoint, inputs)[:, places - 1]
            logits = checkpoint.language_head(states).double()  # type: ignore[misc] # there are no contexts without
            right = logits.gather(-1, rows[:, places, None])[..., 0]
            found.append((logits.logsumexp(-1) - right).cpu())
        if compare:
            check_logits(
                checkpoint, {name: each[:1] for name, each in inputs.items()}, states[0], (places - 1).tolist()
            )
            compare = False
    return torch.cat(found)
