"""What the rest of attnviz asks of an architecture."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from attnviz.attention.norms import LayerNorm, Norm, RMSNorm
from attnviz.attention.reference import HeadParameters

__all__ = [
    "Architecture", "Embeddings", "LayerModules", "NormKind", "chained", "first_position", "norm_of", "position_rows",
]  # fmt: skip

NormKind = Literal["layer", "rms", "rms, 1 + w"]


@dataclass(frozen=True)
class LayerModules:
    """The modules of a layer from which its steps are read, and at which they are changed.

    Attributes:
        block: the whole layer: its first argument is the residual stream [batch, n, d_model], and so is what it
            returns, alone or as the first of a tuple.
        projections: they give queries, keys and values [batch, n, d_model] each, or one gives all three side by side.
        pattern: its first argument is the attention's input [batch, n, d_model], and of cross-attention
            ``key_value_states`` is what keys are made of; it returns a tuple of which the last is the pattern
            [batch, n_heads, n_queries, n_keys] (with eager attention).
        concatenated: its first argument is the heads' weighted values side by side, [batch, n, n_heads * d_head]:
            the linear map W_O, b_O.
        output: it returns the attention's output after W_O and b_O [batch, n, d_model], alone or as
            the first of a pair, before the residual is added.
        attention_norm: the norm before the attention (pre-norm), or after its residual (post-norm).
        expand: the feed-forward network's first linear map, d_model to d_ff.
        contract: its second one, d_ff to d_model; its first argument is what the activation gives [batch, n, d_ff].
        feed_forward_norm: the norm before the feed-forward network (pre-norm), or after its residual; of a decoder's
            own attention (pre-norm) the one before its cross-attention, which comes next.
        attention_output_norm: a norm of the attention's output before the residual is added (Gemma); None elsewhere.
        feed_forward_output_norm: likewise of the feed-forward network's.
        head_norms: the norms of queries and keys, a head at a time; empty where there are none.
        heads_first: whether these give [batch, n_heads, n, d_head], else [batch, n, n_heads, d_head].
        gate: of a gated network (Shazeer 2020, "GLU Variants Improve Transformer") the linear map whose activation the
            numbers of ``expand`` are multiplied by; ``expand`` itself where one map gives the gate and those numbers
            side by side; None without a gate.
        activation: of a gated network, the activation of the gate.
    """

    block: nn.Module
    projections: tuple[nn.Module, ...]
    pattern: nn.Module
    concatenated: nn.Module
    output: nn.Module
    attention_norm: nn.Module
    expand: nn.Module
    contract: nn.Module
    feed_forward_norm: nn.Module
    attention_output_norm: nn.Module | None = None
    feed_forward_output_norm: nn.Module | None = None
    head_norms: tuple[nn.Module, ...] = ()
    heads_first: bool = False
    gate: nn.Module | None = None
    activation: nn.Module | None = None

    def after_attention(self, pre_norm: bool) -> nn.Module:
        """The norm that is given the sum of the residual stream and the attention's output."""
        return self.feed_forward_norm if pre_norm else self.attention_norm


@dataclass(frozen=True)
class Embeddings:
    """The tables that the first layer's input is made from.

    Attributes:
        words: [vocabulary, d_model].
        positions: [positions, d_model]; None where positions come in elsewhere (rotary).
        segments: [2, d_model]: token types; None where the model has none.
        norm: the layer norm over their sum; None where there is none before the first layer.
        project: the linear map after that, to d_model, where the tables are narrower (ELECTRA); else None.
        scale: what the words' rows are multiplied by.
    """

    words: Tensor
    positions: Tensor | None
    segments: Tensor | None
    norm: nn.Module | None
    project: nn.Module | None = None
    scale: float = 1.0


class Architecture(Protocol):
    """One family of transformers models, as the reference attention needs to see it."""

    name: str
    """The ``model_type`` of transformers' config: ``bert``, ``gpt2``."""

    class_prefix: str
    """What the names of its model classes begin with: ``Bert``, ``GPT2``."""

    head_weights: tuple[str, ...]
    """First name of the weights that belong to a task's head, not to the model under it."""

    optional_weights: tuple[str, ...]
    """First name of the weights that no attention depends on, so that a checkpoint may lack them."""

    old_buffers: tuple[str, ...]
    """Endings of what earlier versions of transformers saved beside the weights: constant masks."""

    segments: bool
    """Whether it tells the two segments of a sentence pair apart by token type."""

    positions_after_padding: bool
    """Whether positions are counted from ``pad_token_id`` + 1, past padding, whose row they leave out (RoBERTa)."""

    sink_first: bool
    """Whether position 0 counts as a sink even where no special token stands there."""

    causal: bool
    """Whether a query sees only itself and what precedes it."""

    pre_norm: bool
    """Whether norms stand before attention and feed-forward network (else after their residuals)."""

    norm_kind: NormKind
    """Layer norms, or root-mean-square norms: with their weight as it is kept, or with 1 added."""

    float32_steps: bool
    """Whether cos, sin, norms and the softmax are computed in float32 whatever the number format."""

    @property
    def epsilon_setting(self) -> str | float:
        """What its config calls the small number that norms add to the variance; or that number, if fixed."""

    activation_setting: str
    """What its config calls the name of the feed-forward network's activation."""

    explained: bool
    """Whether every step of its layers is recomputed, so that ``explain`` can show it."""

    language_class: str
    """The class of transformers that is the model with its language-modelling head."""

    def refuse(self, config: Any, dtype: torch.dtype) -> None:
        """Raise ArchitectureError where the config asks for what the reference does not reproduce."""

    def base_model(self, model: nn.Module) -> nn.Module:
        """The bare encoder or decoder inside a model with any head."""

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """What makes logits [.., vocabulary] of the last hidden state, in a model with any head; None without one."""

    def class_head(self, model: nn.Module) -> nn.Module | None:
        """What makes class logits of the final state that it reads, in a model for sequence classification; or None."""

    def modules(self, base_model: nn.Module) -> list[LayerModules]:
        """Where to read each layer's own steps, first layer first."""

    def embeddings(self, base_model: nn.Module) -> Embeddings:
        """The tables that the first layer's input is made from."""

    def final_norm(self, base_model: nn.Module) -> nn.Module | None:
        """The norm after the last layer; None where there is none."""

    def parameters(self, base_model: nn.Module, layer: int) -> HeadParameters:
        """The layer's parameters, split by head (views, not copies, where the layout permits)."""


def chained(*steps: nn.Module | None) -> nn.Module | None:
    """A head whose steps its model calls one by one, as one module; None where the model lacks one of them.

    It counts as in eval mode, so that nobody sets the mode of steps that belong to a model; heads drop nothing out.
    """
    if None in steps:
        return None
    head = nn.Sequential(*(step for step in steps if step is not None))
    head.training = False
    return head


def norm_of(architecture: Architecture, config: Any, module: Any) -> Norm:
    """The parameters of one of its norms, with the epsilon of the config."""
    setting = architecture.epsilon_setting
    epsilon = float(getattr(config, setting) if isinstance(setting, str) else setting)
    if architecture.norm_kind == "layer":
        return LayerNorm(module.weight, module.bias, epsilon)
    return RMSNorm(module.weight, epsilon, one_more=architecture.norm_kind == "rms, 1 + w")


def first_position(architecture: Architecture, config: Any) -> int:
    """The row of the table of positions that a text's first token gets; those before it are for no text."""
    return int(config.pad_token_id) + 1 if architecture.positions_after_padding else 0


def position_rows(architecture: Architecture, config: Any, ids: Tensor) -> Tensor:
    """The rows of the table of positions that the tokens of a text [n] get, [n].

    RoBERTa counts them from ``pad_token_id`` + 1; a padding token in the text gets the row ``pad_token_id``, and is not
    counted.
    """
    if not architecture.positions_after_padding:
        return torch.arange(len(ids), device=ids.device)
    counted: Tensor = ids != config.pad_token_id
    return counted.cumsum(0) * counted + int(config.pad_token_id)
