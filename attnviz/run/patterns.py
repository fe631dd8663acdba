"""The patterns of a layer, computed in chunks of query rows from its queries and keys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attnviz.errors import VerificationError
from attnviz.memory import MOST_MASKS
from attnviz.models.checkpoint import Checkpoint
from attnviz.reference import attention
from attnviz.reference.attention import HeadParameters, Scoring
from attnviz.run.record import AttentionCall, LayerRecord, Observer, OnLayer, Rows

# Masks of a text or batch by what they depend on, so that layers with the same window share them.
MaskCache = dict[object, Tensor | None]


@dataclass(frozen=True)
class LayerHeads:
    """What a layer's heads attend with; in float32 at least where its attention does not round scores."""

    query: Tensor  # [batch, n_heads, n_queries, d_head]
    key: Tensor  # [batch, n_heads, n_keys, d_head]
    value: Tensor  # as the keys
    scoring: Scoring
    mask: Tensor | None = None  # [batch, n_keys], 1 for a token and 0 for padding; None without padding
    across: bool = False  # whether keys are of another text (cross-attention)
    mask_cache: MaskCache = field(default_factory=dict)  # masks that other layers have made

    @property
    def parameters(self) -> HeadParameters:
        """Those of the layer, where queries, keys and values were made of its input."""
        assert isinstance(self.scoring, HeadParameters)
        return self.scoring

    def without_rounding(self) -> "LayerHeads":
        """As all implementations but eager attend: in float32 at least, throughout."""
        query, key, value = map(attention.upcast, (self.query, self.key, self.value))
        scoring = replace(self.scoring, upcast=False, softmax_in_float32=False)
        return replace(self, query=query, key=key, value=value, scoring=scoring)

    def of(self, heads: Sequence[int]) -> "LayerHeads":
        """Some of the heads."""
        numbers, scoring = list(heads), self.scoring
        bias, relative, sinks = scoring.position_bias, scoring.relative, scoring.sinks
        if bias is not None:
            scoring = replace(scoring, position_bias=lambda *rows: bias(*rows)[numbers])
        if relative is not None:
            vectors = {name: vector[numbers] for name, vector in relative.vectors.items()}
            scoring = replace(scoring, relative=replace(relative, vectors=vectors))
        if sinks is not None:
            scoring = replace(scoring, sinks=sinks[numbers])
        query, key, value = (x[:, numbers] for x in (self.query, self.key, self.value))
        return replace(self, query=query, key=key, value=value, scoring=scoring)

    def weighted(self, pattern: Tensor) -> Tensor:
        """The values weighted by rows of the pattern over the first keys, [batch, n_heads, rows, d_head]."""
        return torch.matmul(pattern, self.value[..., : pattern.shape[-1], :])

    @property
    def row_bytes(self) -> int:
        """Bytes of one query row of the patterns, over all heads and texts."""
        return self.query.shape[:2].numel() * self.key.shape[-2] * self.query.element_size()

    def rows(self, first: int, last: int, n_keys: int | None = None) -> Tensor:
        """Some rows of the pattern, [batch, n_heads, rows, n_keys], over the keys that they see, or ``n_keys``."""
        scoring = self.scoring
        total = self.key.shape[-2]
        seen = total
        if scoring.causal and not self.across:
            seen = last
        elif scoring.window is not None:
            seen = min(total, last - 1 + scoring.window)
        if n_keys is None:
            n_keys = seen
        elif n_keys < seen:
            n_keys = total  # the model hides what the reference does not: the comparison will say so
        allowed = self.allowed(first, last, n_keys)
        query, key = self.query[:, :, first:last], self.key[:, :, :n_keys]
        return attention.pattern_of(query, key, scoring, allowed, first)

    def scores(self) -> Tensor:
        """What the softmax of every row is taken of, [batch, n_heads, n_queries, n_keys]; -inf where it is hidden."""
        n_queries, n_keys = self.query.shape[-2], self.key.shape[-2]
        scores = attention.scores_of(self.query, self.key, self.scoring)
        if self.scoring.cap is not None:
            scores = attention.softcap(scores, self.scoring.cap)
        allowed = self.allowed(0, n_queries, n_keys)
        if allowed is not None:
            scores[..., n_keys - allowed.shape[-1] :].masked_fill_(~allowed, -torch.inf)
        return scores

    def allowed(self, first: int, last: int, n_keys: int) -> Tensor | None:
        """Which of the last of so many keys these rows may attend to; None for all."""
        cache, scoring = self.mask_cache, self.scoring
        kind = self.across, scoring.causal, scoring.window, self.mask is None, first, last, n_keys, self.key.device
        if kind not in cache:
            allowed = self._allowed(first, last, n_keys)
            if sum(mask.nbytes for mask in (*cache.values(), allowed) if mask is not None) > MOST_MASKS:
                return allowed
            cache[kind] = allowed
        return cache[kind]

    def _allowed(self, first: int, last: int, n_keys: int) -> Tensor | None:
        scoring, mask = self.scoring, self.mask
        if self.across:
            return None if mask is None else mask.bool()[:, None, None, :n_keys]
        if mask is None:
            if not scoring.causal and scoring.window is None:
                return None
            mask = torch.ones(1, self.key.shape[-2], dtype=torch.bool, device=self.key.device)
        allowed = attention.allowed_positions(mask, scoring.causal, scoring.window, first, last - first)[..., :n_keys]
        if self.mask is None and scoring.window is None:
            return allowed[..., first + 1 :].contiguous()  # all rows see the keys before
        if scoring.relative is not None:
            return allowed & mask.bool()[:, None, first:last, None]
        return allowed


@dataclass
class PatternCallback(Observer):
    """Passes the model's patterns, unverified, to ``on_pattern``, and its weighted values to ``on_weighted_values``.

    They are the model's own weights where it shows them; else they are computed from its own queries and keys. A layer
    comes at once, [batch, n_heads, n_queries, n_keys], in float32 at least, if memory for a chunk is unlimited.
    ``masks`` gives the keys of a layer that are tokens, [batch, n_keys].
    """

    checkpoint: Checkpoint
    on_pattern: OnLayer
    on_weighted_values: OnLayer | None
    masks: Callable[[int], Tensor]

    _mask_cache: MaskCache = field(default_factory=dict)
    _heads: LayerHeads = field(init=False)  # of the layer that attends, under an implementation that returns no weights
    _weighted: list[Tensor] = field(default_factory=list)
    _errors: list[Tensor] = field(default_factory=list)

    def begin(self, call: AttentionCall) -> None:
        """Keep what the layer attends with."""
        self._weighted = []
        if call.attention != "eager":
            model = self.checkpoint
            scoring = model.architecture.scoring(model.model, call.layer, call.query.shape[-1])
            key, value = (attention.repeat_kv(x, call.query.shape[1]) for x in (call.key, call.value))
            across = call.source is not None and bool(model.stacks)
            heads = LayerHeads(call.query, key, value, scoring, self.masks(call.layer), across, self._mask_cache)
            self._heads = heads.without_rounding()

    def rows(self, layer: int, rows: Rows) -> None:
        """Pass the rows on."""
        pattern = rows.weights
        if pattern is None:
            pattern = self._heads.rows(rows.first, rows.last, rows.n_keys)
            self._weighted.append(self._heads.weighted(pattern).transpose(1, 2))
        self.on_pattern(layer, attention.upcast(pattern))

    def end(self, record: LayerRecord) -> None:
        """Pass the weighted values on, behind any gate, and keep how far those of the patterns are."""
        if self._weighted:
            weighted = attention.upcast(record.weighted)
            difference = (torch.cat(self._weighted, 1) - weighted).abs_()
            if not self._heads.across:  # implementations differ in rows of padding
                difference = difference * self.masks(record.layer)[:, :, None, None]
            scale = weighted.abs().amax().clamp_min(torch.finfo(weighted.dtype).tiny)
            self._errors.append(difference.amax() / scale)
        if self.on_weighted_values is not None:
            self.on_weighted_values(record.layer, record.gated)

    def check(self) -> None:
        """Raise VerificationError unless the patterns of all layers give the model's own weighted values.

        Where they are not its own, an attention that ignores padding, or attends in another way in some texts alone, is
        seen here.
        """
        if not self._errors:
            return
        errors = torch.stack([error.to(self._errors[0]) for error in self._errors])
        worst = float(errors.max())
        limit = self.checkpoint.tolerance.output
        if not worst <= limit:
            raise VerificationError(
                f"on some texts the model attends otherwise than on those that were verified: what its heads give "
                f"differs from what their patterns give by {worst:.2g} of the largest (tolerance {limit:g}). Nothing "
                "was written."
            )
