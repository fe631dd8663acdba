"""Measure every step of a layer on one text, verified."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from attnviz.arguments import is_whole
from attnviz.commands.explain.stages import StageCheck, VerifiedStages, verify_stages
from attnviz.errors import ArchitectureError, UsageError
from attnviz.inputs.prompt import position_of
from attnviz.inputs.text import tokenize
from attnviz.models.head_ids import HeadId, head_named
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import ModelOptions, checked
from attnviz.present.result import TextResult
from attnviz.progress import Progress, tell
from attnviz.reference.attention import BY_POSITION, HeadParameters, upcast
from attnviz.wording import counted

MOST_KEYS = 32  # keys of which explain.json has the vectors: those with the largest weights


@dataclass(frozen=True, eq=False)
class FollowedRow:
    """The row of a token in a head: ``weight = exponential / total``, ``output = weight @ value``."""

    query: Tensor  # [d_head]
    key: Tensor  # [n, d_head], as is value
    value: Tensor
    product: Tensor  # [n], key @ query
    scale: float  # what products are multiplied by
    added: dict[str, Tensor]  # [n] each, to scaled products by position
    score: Tensor  # [n], the sum
    capped: Tensor | None  # [n]; None without a cap
    allowed: Tensor  # [n]
    largest: float  # score that enters the softmax
    exponential: Tensor  # [n], of the score less the largest; 0 of masked keys
    sink: float | None  # exponential of a learned sink, which is no token; None without
    total: float  # sum of all exponentials
    weight: Tensor  # [n]
    output: Tensor  # [d_head]

    def strongest(self, most: int) -> list[int]:
        """The keys with the largest weights, in the order of the text."""
        return sorted(self.weight.argsort(descending=True, stable=True)[:most].tolist())


def queries_and_keys(stages: VerifiedStages) -> Tensor:
    """Queries and keys as they enter the scores, [2, n_heads, n, d_head]: normed, scaled, turned."""
    *_, last = (name for name in stages if name in ("split", "head_norm", "rotated"))
    query, key = stages[last].wide[:2]
    return torch.stack([query if "rotated" in stages else query * stages.parameters.heads.query_scale, key])


@dataclass(frozen=True, repr=False, eq=False)
class Explanation(TextResult):
    """Result of :func:`explain`: every tensor of one layer from its input to its output, recomputed and verified."""

    command: ClassVar[str] = "explain"

    head: HeadId  # followed head, of the explained layer
    token: int  # position of the followed token
    stages: VerifiedStages  # every step of the layer by name; each has ``name``, ``tensor`` and ``check``

    @property
    def layer(self) -> int:
        return self.stages.layer

    @property
    def norm_order(self) -> str:
        """``pre-norm`` (GPT-2; GPT-NeoX ``in parallel``), ``post-norm`` (BERT) or ``reordered norm`` (OLMo 2)."""
        if not self.stages.parameters.pre_norm:
            return "post-norm"
        order = "pre-norm" if "attention_norm" in self.stages else "reordered norm"
        return f"{order}, in parallel" if self.stages.parameters.parallel else order

    @property
    def experts(self) -> int:
        """Of a mixture of experts their number; its feed-forward network is one step, the model's own output."""
        routed: Any = self.checkpoint.modules[self.layer].routed
        return 0 if routed is None else len(routed.experts.down_proj)

    @property
    def d_ff(self) -> int:
        """Width of the feed-forward network; of a mixture, of each expert."""
        if not self.experts:
            return self.stages["expanded"].shape[-1]
        routed: Any = self.checkpoint.modules[self.layer].routed
        return int(routed.experts.down_proj[0].numel() // self.checkpoint.d_model)

    @property
    def output(self) -> StageCheck:
        return self.stages.checks["output"]

    @property
    def parameters(self) -> HeadParameters:
        return self.stages.parameters.heads

    @cached_property
    def row(self) -> FollowedRow:
        """The row of the followed token in the followed head: its scores, weights and values, key by key."""
        stages, parameters, head, token = self.stages, self.parameters, self.head.head, self.token
        queries, keys = queries_and_keys(stages)[:, head]
        of_row = {name: stages[name].wide[head, token] for name in stages if stages[name].tensor.ndim == 3}
        allowed = stages["mask"].tensor[token].cpu()
        entering = of_row.get("capped", of_row["scores"])
        sinks = torch.empty(0) if parameters.sinks is None else upcast(parameters.sinks.detach()[head : head + 1]).cpu()
        largest = torch.cat([entering[allowed], sinks]).max()
        exponential = torch.where(allowed, (entering - largest).exp(), 0)
        of_sink = (sinks - largest).exp()
        return FollowedRow(
            query=queries[token],
            key=keys,
            value=stages["split"].wide[2, head, :, : parameters.output_weight.shape[1]],
            product=keys @ queries[token],
            scale=float(parameters.scale),
            added={name: of_row[name] for name in BY_POSITION if name in stages},
            score=of_row["scores"],
            capped=of_row.get("capped"),
            allowed=allowed,
            largest=float(largest),
            exponential=exponential,
            sink=None if parameters.sinks is None else float(of_sink),
            total=float(exponential.sum() + of_sink.sum()),
            weight=of_row["pattern"],
            output=of_row["weighted"],
        )

    @checked
    def tensor(self, name: str) -> Tensor:
        """A step's tensor on the CPU, in float32 at least (the mask as 0 and 1); UsageError for an unknown step."""
        return self.stages[name].wide

    @property
    def in_words(self) -> str:
        return (
            f"of layer {self.layer} of {self.checkpoint.short_name} on "
            f"{counted(len(self.tokens), 'token')}: {len(self.stages)} steps, output within {self.output.error:.1e}"
        )


@checked
def explain(
    text: str,
    model: Model | None = None,
    *,
    pair: str | None = None,
    layer: int | None = None,
    head: str | int | HeadId | None = None,
    token: str | int | None = None,
    truncate: bool = False,
    progress: Progress | None = None,
    **opening: Unpack[ModelOptions],
) -> Explanation:
    """Recompute one layer of a model on one text step by step, and verify it.

    >>> result = attnviz.explain("The cat that I saw ran away", layer=2)  # doctest: +SKIP
    >>> result.tensor("pattern").shape, result.stages["output"].check.error  # doctest: +SKIP

    ``layer`` counts from 0; default that of ``head``, or the first. ``head``: to follow with numbers, as ``3``,
    ``L2H3`` or a HeadId; default the layer's first. ``token``: to follow, as figures show it, ``#3`` or 3; default the
    last of the text. The other arguments are as of :func:`attnviz.head_outputs`.

    Raises:
        AttnvizError: VerificationError where a step differs from the model's own; UsageError for a layer, head or token
            that is not there.
    """
    checkpoint, _ = open_checkpoint(model, encoder_decoders=False, **opening)
    if not checkpoint.architecture.explained:
        family = checkpoint.architecture.name
        raise ArchitectureError(
            f"explain recomputes whole layers, but not those of {family!r}; attnviz heads takes it."
        )
    if layer is not None:
        checkpoint.layer_of(layer)
    if isinstance(head, str) and re.fullmatch(r"\s*[0-9]{1,6}\s*", head):
        head = int(head)
    if head is None or is_whole(head):
        head = HeadId(layer or 0, int(head or 0))
    followed = head_named(head, checkpoint.kinds, "the number of a head, such as 3, or")
    if layer is not None and followed.layer != layer:
        raise UsageError(f"--head {followed} is not in the layer that --layer names, {layer}; leave one of them out.")
    tokens = tokenize(checkpoint, text, pair, truncate)
    position = position_of(tokens, token)
    (stages,) = verify_stages(checkpoint, tokens, [followed.layer])
    tell(progress, "verifying", 1, 1)
    return Explanation(
        text=text,
        pair=pair,
        checkpoint=checkpoint,
        tokens=tokens,
        head=followed,
        token=position,
        stages=stages,
    )
