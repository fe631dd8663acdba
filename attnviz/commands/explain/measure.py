"""Measure every step of a layer on one text, verified."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Unpack

from torch import Tensor

from attnviz.arguments import is_whole
from attnviz.commands.explain.followed_row import FollowedRow, row_of
from attnviz.commands.explain.stages import StageCheck, VerifiedStages, verify_stages
from attnviz.errors import ArchitectureError, UsageError
from attnviz.models.head_ids import HeadId, head_named
from attnviz.models.opening import Model, open_checkpoint
from attnviz.models.tokens import find_positions, merge_subwords
from attnviz.options import ModelOptions, checked
from attnviz.present.result import TextResult
from attnviz.progress import Progress, tell
from attnviz.reference.attention import HeadParameters
from attnviz.wording import counted


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
        if not self.pre_norm:
            return "post-norm"
        order = "pre-norm" if "attention_norm" in self.stages else "reordered norm"
        return f"{order}, in parallel" if self.parallel else order

    @property
    def pre_norm(self) -> bool:
        """Whether layer norms stand before attention and feed-forward network."""
        return self.checkpoint.architecture.pre_norm

    @property
    def parallel(self) -> bool:
        """Whether attention and feed-forward network both read the layer's input."""
        return self.checkpoint.modules[self.layer].parallel

    @property
    def mixture(self) -> bool:
        """Whether the feed-forward network is a mixture of experts, which is one step: the model's own output."""
        return self.checkpoint.modules[self.layer].routed is not None

    @property
    def d_ff(self) -> int:
        """Width of the feed-forward network; of a mixture, of each expert."""
        routed: Any = self.checkpoint.modules[self.layer].routed
        if routed is None:
            return self.stages["expanded"].shape[-1]
        return int(routed.experts.down_proj[0].numel() // self.checkpoint.d_model)

    @property
    def activation(self) -> str:
        return str(self.checkpoint.architecture.activation(self.checkpoint.config))

    @property
    def output(self) -> StageCheck:
        return self.stages.checks["output"]

    @property
    def parameters(self) -> HeadParameters:
        return self.checkpoint.architecture.parameters(self.checkpoint.model, self.layer)

    @cached_property
    def row(self) -> FollowedRow:
        """The row of the followed token in the followed head: its scores, weights and values, key by key."""
        return row_of(self.stages, self.parameters, self.head.head, self.token)

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
    tokens = checkpoint.tokenize(text, pair, truncate)
    # by default the last token that is not special, or the last one
    last = max((place for place, special in enumerate(tokens.special) if not special), default=len(tokens) - 1)
    # of a word of several pieces the last
    position = last if token is None else find_positions(merge_subwords(tokens, words=False), token)[-1]
    kept: list[VerifiedStages] = []
    verify_stages(checkpoint, tokens, [followed.layer], kept.append)
    tell(progress, "verifying", 1, 1)
    (stages,) = kept
    return Explanation(
        text=text,
        pair=pair,
        checkpoint=checkpoint,
        tokens=tokens,
        head=followed,
        token=position,
        stages=stages,
    )
