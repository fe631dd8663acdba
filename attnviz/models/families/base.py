"""The interface of an architecture."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from attnviz.errors import ArchitectureError
from attnviz.models.head_ids import Stack, layers_in_words, one_stack
from attnviz.models.offloading import parameter_of
from attnviz.models.quantised import input_rounding
from attnviz.reference.attention import HeadParameters, LayerNorm, Norm, Projection, RMSNorm, Scoring, upcast
from attnviz.reference.positions import Rotary

Family = TypeVar("Family", bound="Architecture")

PositionBias = Callable[[int, int, int], Tensor]  # see attnviz.reference.attention.Scoring

DRAWN = (
    "In Python attnviz.draw(output.attentions, TOKENS) draws what such a model returns with output_attentions=True and "
    'attn_implementation="eager", unverified'
)

_NO_LIMIT = 1_000_000  # positions
_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")

NormKind = Literal["layer", "layer, 1 + w", "rms", "rms, 1 + w", "rms, rounded once"]


@dataclass(frozen=True)
class LayerModules:
    """The modules of a layer whose inputs and outputs are recorded or changed.

    Norms are None where a layer has none. ``output`` and ``block`` return their result alone or first in a tuple.
    """

    block: nn.Module  # the whole layer, residual stream to residual stream [batch, n, d_model]
    # linear maps to queries, keys and values, three or one for all; or two, the second head by head to keys beside
    # values (MLA)
    projections: tuple[nn.Module, ...]
    # takes its input [batch, n, d_model], and of cross-attention ``key_value_states`` (of UMT5
    # ``encoder_hidden_states``); returns the pattern [batch, n_heads, n_queries, n_keys] last (with eager attention)
    attention: nn.Module
    o_proj: nn.Module  # W_O, b_O of the heads' weighted values side by side, [batch, n, n_heads * d_head]
    output: nn.Module  # returns the attention's output after W_O [batch, n, d_model], before the residual
    attention_norm: nn.Module | None  # before the attention (pre-norm), or after its residual
    up_proj: nn.Module | None  # of the feed-forward network, d_model to d_ff; None of experts
    down_proj: nn.Module | None  # d_ff to d_model; likewise
    # before the network (pre-norm), or after its residual; in a pre-norm decoder with cross-attention the norm before
    # that, which comes next; None where the network reads the attention's norm (parallel)
    feed_forward_norm: nn.Module | None
    attention_output_norm: nn.Module | None = None  # of the output, before the residual is added (Gemma)
    feed_forward_output_norm: nn.Module | None = None  # likewise
    head_norms: tuple[nn.Module, ...] = ()  # of queries and keys
    heads_first: bool = False  # whether these give [batch, n_heads, n, d_head]
    # linear map whose activation multiplies the output of ``up_proj`` (Shazeer 2020, "GLU Variants Improve
    # Transformer"); ``up_proj`` itself where one map gives both side by side; None without a gate
    gate: nn.Module | None = None
    activation: nn.Module | None = None  # of the gate; without one where it has weights of its own (xIELU)
    # a feed-forward network (nn.Module) of experts, of which each token takes some (Shazeer et al. 2017); else None
    routed: Any = None
    experts: nn.Module | None = None  # a network whose output is added to that of the other one (Granite hybrid)
    read_last: nn.Module | None = None  # it returns what the block adds after its network (Gemma 4's tables of words)
    keys_layer: int | None = None  # the earlier layer whose keys and values this one takes
    parallel: bool = False  # whether the network reads the block's input (Wang & Komatsuzaki 2021, "GPT-J")
    attends: bool = True  # else its mixer of tokens stands in the place of attention and W_O
    run: int = 0  # of modules that run several times in a pass (ALBERT): which run is this layer
    n_runs: int = 1  # and of how many

    @property
    def network_output(self) -> nn.Module:
        """It returns the output of the feed-forward network [batch, n, d_model]."""
        network: Any = first_of(self.routed, self.down_proj)
        return network  # type: ignore[no-any-return]

    @property
    def writers(self) -> dict[str, nn.Module]:
        """By the name of the part, the modules that return what is added to the residual stream, but for heads."""
        mixer = None if self.attends else first_of(self.attention_output_norm, self.output)
        network = first_of(self.feed_forward_output_norm, self.network_output)
        modules = {"mixer": mixer, "feed-forward": network, "experts": self.experts, "words by layer": self.read_last}
        return {name: module for name, module in modules.items() if module is not None}

    @property
    def stream_factor(self) -> float:
        """What the block multiplies the residual stream by at its end (Gemma 4)."""
        return float(getattr(self.block, "layer_scalar", 1.0))

    @property
    def linear_maps(self) -> tuple[nn.Module, ...]:
        """All linear maps, but for those of experts."""
        maps = (*self.projections, self.o_proj if self.attends else None, self.up_proj, self.down_proj)
        return tuple(module for module in maps if module is not None)

    def after_attention(self, pre_norm: bool) -> nn.Module | None:
        """The norm of the sum of the residual stream and the attention's output; of parallel ones, of the network."""
        if self.parallel:
            return first_of(self.feed_forward_norm, self.attention_norm)
        return self.feed_forward_norm if pre_norm else self.attention_norm

    def sum_input(self, pre_norm: bool) -> nn.Module:
        """The module that takes in this sum: its norm, or the feed-forward network."""
        module: Any = first_of(self.after_attention(pre_norm), self.routed, self.gate, self.up_proj)
        return module  # type: ignore[no-any-return]


def first_of(*modules: nn.Module | None) -> nn.Module | None:
    """The first that there is; a module that torch compiled has no truth value."""
    return next((module for module in modules if module is not None), None)


@dataclass(frozen=True)
class Embeddings:
    """The tables that the first layer's input is made from."""

    words: Tensor  # [vocabulary, d_model]
    positions: Tensor | None = None  # [positions, d_model]; None where positions enter elsewhere (rotary)
    segments: Tensor | None = None  # token types, [2, d_model]
    norm: nn.Module | None = None  # over their sum, before the first layer
    project: nn.Module | None = None  # linear map after that to d_model, where the tables are narrower (ELECTRA)
    scale: float = 1.0  # what the words' rows are multiplied by
    words_project: nn.Module | None = None  # linear map of words alone to d_model, without bias, first (OPT-350m)
    # a token whose row is left out, as if by dropout, so that those of the others are divided by their share of the
    # text (ESM's mask)
    dropped: int | None = None

    def of_words(self, ids: Tensor) -> Tensor:
        """The words' rows of a text, scaled and perhaps projected, [n, width], from its ids [n]."""
        rows = self.words[ids] * self.scale
        if self.words_project is not None:
            rows = rows @ parameter_of(self.words_project, "weight").T.to(rows)
        if self.dropped is None:
            return rows
        kept = torch.ne(ids, self.dropped).to(rows.device)
        return rows * kept[:, None] / kept.float().mean()

    def scale_of(self, ids: Sequence[int]) -> float:
        """What the rows of a text are multiplied by; those of ``dropped`` by 0."""
        return self.scale * len(ids) / sum(token != self.dropped for token in ids)


class LogitsHead(nn.Module):
    """From normed final states to logits [.., vocabulary], with what its model does before and after the linear map."""

    def __init__(self, linear: nn.Module, bias: Tensor | None = None, scale: float = 1.0, divisor: float = 1.0) -> None:
        super().__init__()
        self.linear = linear
        self.scale = scale
        self.divisor = divisor
        self.bias = None if bias is None else nn.Buffer(bias.flatten())

    @property
    def weight(self) -> Tensor:
        """From hidden states to logits, [vocabulary, d_model], scale and divisor included; in float32 at least."""
        return upcast(parameter_of(self.linear, "weight")) * self.scale / self.divisor

    def forward(self, hidden: Tensor) -> Tensor:
        """Scaled, projected on the vocabulary, divided, and with the bias added."""
        logits: Tensor = self.linear(hidden * self.scale) / self.divisor
        return logits if self.bias is None else logits + self.bias


class Architecture:
    """One family of transformers models: where its parts are, and what is special about its attention.

    ``class Mine(Llama, name="mine", prefix="Mine")`` sets ``name`` and ``class_prefix``.
    """

    name: str  # the ``model_type`` of transformers' config: ``bert``, ``gpt2``
    class_prefix: str  # prefix of the names of its model classes: ``Bert``, ``GPT2``
    language_task: str = "ForCausalLM"  # suffix of the name of its class with a language-modelling head
    head_setting: str = ""  # what a config needs so that this head is read, behind the name of the class
    layers_at: str = "layers"  # path of the layers in the bare model, or in each of its stacks
    # path, in the bare model, of the text model of one that also reads images; empty for others
    text_tower_at: str = ""
    # paths of the tables of words, positions and token types and of the norm of their sum; empty for none
    words_at: str = ""
    positions_at: str = ""
    segments_at: str = ""
    embedding_norm_at: str = ""
    first_row: int = 0  # of the position table
    position_table: str = "weight"  # its name in the module of the positions
    # paths of linear maps without bias: of words alone to d_model, of their sum (it may be missing), and from what the
    # last layer and its norm give to final states; empty for none
    words_project_at: str = ""
    project_at: str = ""
    output_map_at: str = ""
    # paths in the whole model of the steps of its heads, or modules; "base." begins one in the bare model
    language_steps: tuple[str | nn.Module, ...] = ("lm_head",)
    class_steps: tuple[str | nn.Module, ...] = ("score",)
    class_pooling: str = ""  # the one ``classifier_pooling`` of a config that reads a single token; empty without such
    token_steps: tuple[str | nn.Module, ...] = ("score",)  # of the head for classes of tokens
    span_steps: tuple[str | nn.Module, ...] = ("qa_outputs",)  # of the head for question answering
    next_steps: tuple[str | nn.Module, ...] = ()  # of the head for next sentence prediction
    # names of a layer's modules, see :meth:`layer_modules`
    attention_at: str = "self_attn"
    pattern_at: str = ""  # path in the attention of the module that returns the pattern; empty where it is that itself
    output_alone: bool = False  # whether W_O stands outside of it, or the attention returns more than its output
    mixer_at: str = ""  # what mixes tokens in the layers that do not attend; empty where all layers do
    projection_names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    head_norm_names: tuple[str, ...] = ("q_norm", "k_norm")
    heads_first: bool = False  # whether the input of these norms is [batch, n_heads, n, d_head]
    # before the attention, after it, before the network, after it
    norm_names: tuple[str | None, ...] = ("input_layernorm", None, "post_attention_layernorm", None)
    network_at: str = "mlp"  # empty where its maps are the layer's own
    experts_at: str = ""  # of a network whose output is added to that of the other one; empty for none
    # of the first linear map, the gate, the gate's activation and the second map
    network_names: tuple[str | None, ...] = ("up_proj", "gate_proj", "act_fn", "down_proj")
    parallel: bool = False  # whether attention and network read the same input; a layer may say so itself (GPT-NeoX)
    final_norm_at: str = ""  # path of the norm after the last layer in the bare model; empty without one
    # first parts of the names of weights of task heads
    head_weights: tuple[str, ...] = ("lm_head", "score", "classifier", "qa_outputs")
    # first parts of the names of weights that no attention depends on, which a checkpoint may lack
    optional_weights: tuple[str, ...] = ()
    # suffixes of the names of constant buffers that earlier versions of transformers saved
    old_buffers: tuple[str, ...] = ()
    # settings that a config may have, and the one value that is reproduced; the last of several of a setting counts
    only: tuple[tuple[str, object], ...] = ()
    needed: tuple[str, ...] = ()  # settings that may not be None
    partial_rotary: bool = False  # whether a part of a head may be without rotary positions
    not_in_float64: str = ""  # a setting with which transformers cannot compute in float64
    has_words: bool = True  # whether its tokens are of words (of ESM they are residues of a protein)
    segments: bool = False  # whether the segments of a pair have token types
    positions_after_padding: bool = False  # whether positions count from ``pad_token_id`` + 1 (RoBERTa)
    positions_computed: bool = False  # whether that table is as long as a text needs, so that no position is lost
    states_d_head: bool = False  # whether its configs may state d_head, which need not be d_model / n_heads (Llama, T5)
    d_head_setting: str = "head_dim"  # the config's setting of it: the width of queries and keys
    causal: bool = False  # whether a query sees only itself and what precedes it; position 0 is then a sink
    pre_norm: bool = False  # whether norms stand before attention and feed-forward network (else after their residuals)
    linear_biases: bool = True  # whether every linear map has a bias
    norm_kind: NormKind = "layer"  # layer norms or RMS norms; 1 + w: the stored weight is less 1
    # whether cos, sin, norms and the softmax are computed in float32 whatever the number format
    float32_steps: bool = False
    softmax_in_float32: bool = False  # whether the softmax alone is
    scaled: bool = True  # whether scores are scaled
    scales_queries: bool = False  # whether queries are scaled, not scores
    upcast_scores: bool = False  # whether scores and softmax are computed in float32
    scores_rounded_once: bool = False  # whether scores and their bias are rounded together
    cap_setting: str = ""  # the config's setting of what bounds scores; empty for nothing
    # the config's setting of the norms' epsilon; or epsilon itself, if fixed
    epsilon_setting: str | float = "layer_norm_epsilon"
    activation_setting: str = "hidden_act"  # the config's setting of the feed-forward network's activation
    fixed_activation: str = ""  # its name where the config names none
    learned_sinks: bool = False  # whether rows of attention may sum to less than 1
    # whether one map gives the queries, key and value of the first heads that share a key, then of the next (GPT-NeoX)
    fused_by_head: bool = False
    # whether W_Q gives of each head its queries, then the logits of a gate, see attnviz.reference.attention.gate_of
    gated: bool = False
    attention_adds_residual: bool = False  # whether its attention takes the residual stream, too, and adds it (BLOOM)
    resumable: bool = True  # whether a pass can begin at any layer: not where layers share modules (ALBERT)
    stream_alone: bool = True  # whether layers read nothing but the residual stream, as earlier ones wrote it
    explained: bool = True  # whether every step of its layers is recomputed, so that ``explain`` can show it
    # the method of its attention that bypasses transformers' attention interface, and is run for all queries at once:
    # ``_attn`` takes queries, keys, values and mask, and returns weighted values [batch, n_heads, n, d_head] and the
    # pattern; ``forward`` returns (.., pattern) with ``output_attentions``, of what its linear maps give, rotated
    bypassing: str = ""
    reads_sound: bool = False  # whether its encoder reads sound; the heads of the decoder alone are then measured
    encoder_commands: tuple[str, ...] = ()  # the commands that measure the encoder of an encoder-decoder alone

    def __init_subclass__(cls, name: str = "", prefix: str = "") -> None:
        super().__init_subclass__()
        if name:
            cls.name, cls.class_prefix = name, prefix

    def declared(self, attribute: str, owner: Any, name: str | None = "") -> Any:
        """What a module or config has under the name, or path, in an attribute; ArchitectureError if it has none."""
        name = getattr(self, attribute) if name == "" else name
        for step in name.split(".") if name else ():
            if not hasattr(owner, step):
                parts = [*owner._parameters, *owner._modules] if isinstance(owner, nn.Module) else []
                near = parts or difflib.get_close_matches(step, dir(owner), 3)
                has = f"; it has {', '.join(near)}" if near else ""
                raise self.misfit(
                    attribute, f"but {getattr(owner, '__name__', type(owner).__name__)} has no {step!r}{has}"
                )
            owner = getattr(owner, step)
        return None if name is None else owner

    def misfit(self, attribute: str, why: str) -> ArchitectureError:
        """The error about an attribute of a declaration that does not fit a model."""
        return ArchitectureError(
            f"the family {self.name!r} is declared with {attribute} = {getattr(self, attribute)!r}, {why}."
        )

    def variant(self, config: Any) -> "Architecture":  # noqa: ARG002 - most have one
        """The declaration for a config: this, or a copy that differs as the config says (OPT-350m)."""
        return self

    def but(self, **declared: Any) -> "Architecture":
        """A copy that declares something else."""
        variant = copy(self)
        vars(variant).update(declared)
        return variant

    @property
    def language_class(self) -> str:
        return self.class_prefix + self.language_task

    def refuse(self, config: Any) -> None:
        """Raise ArchitectureError for settings that the reference does not reproduce."""
        for setting, value in dict(self.only).items():
            stated = getattr(config, setting, None)
            if stated is not None and stated != value:
                raise not_reproduced(self.name, setting, stated, repr(value))
        for setting in self.needed:
            if getattr(config, setting, None) is None:
                raise not_reproduced(self.name, setting, None, "a number")
        for rope in rope_by_layer_type(config).values():
            kind, share = rope.get("rope_type"), rope.get("partial_rotary_factor", 1.0)
            if kind not in _ROPE_TYPES:
                raise not_reproduced(self.name, "rope_type", kind, f"one of: {', '.join(_ROPE_TYPES)}")
            if share != 1 and not self.partial_rotary and kind != "proportional":
                raise not_reproduced(self.name, "partial_rotary_factor", share, "1 in this architecture")

    def stacks(self, config: Any) -> tuple[Stack, ...]:  # noqa: ARG002 - of encoder-decoders
        """The stacks of an encoder-decoder; empty for other models."""
        return ()

    def kinds(self, config: Any) -> Sequence[Stack]:
        """The stacks of an encoder-decoder; of other models one of all layers that attend."""
        return self.stacks(config) or [one_stack(self.attending(config), int(config.num_attention_heads))]

    def attending(self, config: Any) -> Sequence[int]:
        """The numbers of the layers that attend; in an encoder-decoder of all stacks, one after the other."""
        return range(sum(stack.n_layers for stack in self.stacks(config)) or int(config.num_hidden_layers))

    def not_attending(self, config: Any) -> list[int]:
        """The numbers of the layers that do not attend, in a model in which some do not."""
        attending = self.attending(config)
        return [number for number in range(int(config.num_hidden_layers)) if number not in attending]

    def notes(self, config: Any) -> tuple[str, ...]:
        """Which layers do not attend, if any, in a sentence."""
        others = self.not_attending(config)
        does = "does" if len(others) == 1 else "do"
        return (f"{layers_in_words(others).capitalize()} {does} not attend.",) if others else ()

    def longest(self, config: Any) -> tuple[int, str]:
        """Positions of the longest text, and why longer ones are not reproduced, or ''. T5 has no limit."""
        of_target = getattr(config, "max_target_positions", _NO_LIMIT)  # of Whisper
        return int(getattr(config, "max_position_embeddings", of_target)), ""

    def head_counts(self, config: Any, layer: int) -> tuple[int, int]:  # noqa: ARG002 - all layers are alike
        """Numbers of query heads and of key-value heads of a layer."""
        return config.num_attention_heads, config.num_attention_heads

    def base_model(self, model: nn.Module) -> nn.Module:
        """The bare encoder or decoder inside a model with any head, by transformers' own name for it; of text alone.

        A user's own class may lack ``base_model_prefix``, so the name is that of transformers' class.
        """
        inside = getattr(model, getattr(model, "base_model_prefix", ""), model)  # LlamaForQuestionAnswering.transformer
        base: nn.Module = self.declared("text_tower_at", getattr(model, self.bare_class.base_model_prefix, inside))
        return base

    @property
    def bare_class(self) -> Any:
        import transformers

        return self.declared("class_prefix", transformers, f"{self.class_prefix}Model")

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """The head that makes logits [.., vocabulary] of the last hidden state; None without one."""
        steps = self.head_of(model, self.language_steps)
        if steps is None or len(steps) > 1:
            return steps
        bias = getattr(model, "final_logits_bias", None)
        scale, divisor = self.states_scale(model.config), self.logits_divisor(model.config)
        plain = bias is None and scale == divisor == 1
        return steps[0] if plain else LogitsHead(steps[0], bias, scale, divisor)

    def states_scale(self, config: Any) -> float:  # noqa: ARG002 - of T5
        """What final states are multiplied by before the language-modelling head."""
        return 1.0

    def logits_divisor(self, config: Any) -> float:
        """What logits are divided by (Granite)."""
        return float(getattr(config, "logits_scaling", 1.0))

    def class_head(self, model: nn.Module) -> nn.Module | None:
        """The head that makes class logits of a final state, in a model for sequence classification; or None."""
        config: Any = model.config
        averaged = self.class_pooling and config.classifier_pooling != self.class_pooling
        return None if averaged else self.head_of(model, self.class_steps)

    def head_of(self, model: nn.Module, steps: Sequence[str | nn.Module]) -> nn.Sequential | None:
        """Steps that the model calls one by one, as one module in eval mode; None where it lacks one of them."""
        parts: list[Any] = []
        for step in steps:
            part: Any = step
            if isinstance(step, str):
                part = self.base_model(model) if step.startswith("base.") else model
                for name in step.removeprefix("base.").split("."):
                    part = getattr(part, name, None)
            parts.append(getattr(part, "_orig_mod", part))  # of one that torch compiled
        if not parts or None in parts:
            return None
        head = nn.Sequential(*parts)
        head.training = False  # dropout is left out; the model's own modules keep their mode
        return head

    def modules(self, base_model: nn.Module) -> list[LayerModules]:
        """The modules of each layer, first layer first; those that do not attend last."""
        return [self.modules_of(base_model, layer) for layer in range(len(self._layers(base_model)))]

    def modules_of(self, base_model: nn.Module, layer: int) -> LayerModules:
        """The modules of one layer."""
        return self.layer_modules(self._layers(base_model)[layer])

    def _layers(self, base_model: Any) -> Sequence[Any]:
        """The layers, those that do not attend last."""
        layers = self.declared("layers_at", base_model)
        others = self.not_attending(base_model.config)
        numbers = sorted(range(len(layers)), key=lambda number: number in others) if others else range(len(layers))
        return [layers[number] for number in numbers]

    def layer_modules(self, layer: Any) -> LayerModules:
        """The modules of one layer, of which the attention returns (output after W_O, pattern).

        A layer that does not attend has its mixer of tokens in their place.
        """
        mixer = getattr(layer, self.mixer_at, None) if self.mixer_at else None
        attention = self.declared("attention_at", layer) if mixer is None else mixer
        network = self.declared("network_at", layer)
        names = self.projection_names if mixer is None else ()
        *projections, o_proj = [self.declared("projection_names", attention, name) for name in names] or [mixer]
        routed = network if hasattr(network, "experts") else None
        up_proj, gate, activation, down_proj = (
            self.declared("network_names", network, name) if routed is None else None for name in self.network_names
        )
        norms = [self.declared("norm_names", layer, name) for name in self.norm_names]
        return LayerModules(
            block=layer,
            projections=tuple(projections),
            attention=self.declared("pattern_at", attention),
            o_proj=o_proj,
            output=o_proj if self.output_alone else attention,
            attention_norm=None if isinstance(norms[0], nn.Identity) else norms[0],
            attention_output_norm=norms[1],
            up_proj=up_proj,
            down_proj=down_proj,
            feed_forward_norm=norms[2],
            feed_forward_output_norm=norms[3],
            head_norms=tuple(getattr(attention, name) for name in self.head_norm_names if hasattr(attention, name)),
            heads_first=self.heads_first,
            gate=gate,
            activation=activation,
            routed=routed,
            experts=self.declared("experts_at", layer) if self.experts_at else None,
            parallel=self.parallel or getattr(layer, "use_parallel_residual", False),
            attends=mixer is None,
        )

    def embeddings(self, base_model: Any) -> Embeddings:
        """The tables that the first layer's input is made from."""
        words, positions, segments, norm, words_project = (
            self.declared(path, base_model) if getattr(self, path) else None
            for path in ("words_at", "positions_at", "segments_at", "embedding_norm_at", "words_project_at")
        )
        if words is None:
            raise self.misfit("words_at", "expected the path of the table of words")
        rows = parameter_of(words, "weight")
        has_project = self.project_at and hasattr(base_model, self.project_at.partition(".")[0])
        return Embeddings(
            words=rows,
            positions=None if positions is None else parameter_of(positions, self.position_table)[self.first_row :],
            segments=None if segments is None else parameter_of(segments, "weight"),
            norm=norm,
            project=self.declared("project_at", base_model) if has_project else None,
            scale=self.embedding_scale(base_model.config, rows),
            words_project=words_project,
        )

    def embedding_scale(self, config: Any, words: Tensor) -> float:  # noqa: ARG002 - of those that round it
        """What the rows of words are multiplied by (Granite)."""
        return float(getattr(config, "embedding_multiplier", 1.0))

    def final_norm(self, base_model: nn.Module) -> nn.Module | None:
        """The norm after the last layer; None where there is none."""
        return self.declared("final_norm_at", base_model) if self.final_norm_at else None

    def output_map(self, base_model: Any) -> nn.Module | None:
        """The linear map, without bias, from what the last layer and its norm give to final states (OPT-350m)."""
        return self.declared("output_map_at", base_model) if self.output_map_at else None

    def final_states(self, base_model: nn.Module, hidden: Tensor) -> Tensor:
        """Final states, from the output of the last layer."""
        for module in (self.final_norm(base_model), self.output_map(base_model)):
            hidden = hidden if module is None else module(hidden)
        return hidden

    def weight(self, linear: Any) -> Any:
        """The weight [out, in] of one of its linear maps."""
        return parameter_of(linear, "weight")

    def activation(self, config: Any) -> object:
        """The name of the feed-forward network's activation."""
        return self.fixed_activation or self.declared("activation_setting", config)

    def residual_multiplier(self, config: Any) -> float:
        """What outputs of attention and feed-forward network are multiplied by before they are added (Granite)."""
        return float(getattr(config, "residual_multiplier", 1.0))

    def window(self, config: Any, layer: int) -> int | None:  # noqa: ARG002 - most have none
        """Attention window of a layer, in tokens on each visible side, with the query; None for no window."""
        return None

    def scale(self, config: Any, layer: int, d_head: int) -> float:  # noqa: ARG002 - of those that differ
        """What scores are multiplied by."""
        return float(getattr(config, "attention_multiplier", d_head**-0.5)) if self.scaled else 1.0

    def rotary(self, base_model: Any, layer: int, d_head: int) -> Rotary | None:  # noqa: ARG002
        """The rotary positions of a layer; None for none."""
        return None

    def position_bias(self, base_model: Any, layer: int) -> PositionBias | None:  # noqa: ARG002
        """A bias of scores by distance; None for none."""
        return None

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """The layer's parameters, split by head (views, not copies, where the layout permits)."""
        modules: Any = self.modules_of(base_model, layer)
        config = base_model.config
        n_heads, n_shared = self.head_counts(config, layer)
        query, key, value = self.projections(modules, n_heads, n_shared)
        gate = None
        if self.gated:
            query, gate = halves(query)
        d_head = query.weight.shape[-1]
        norms: Any = [norm_of(self, config, norm) for norm in modules.head_norms]
        query_norm, key_norm = norms or (None, None)
        return HeadParameters(
            **vars(self.scoring(base_model, layer, d_head)),
            query=query,
            key=key,
            value=value,
            output_weight=self.weight(modules.o_proj).T.unflatten(0, (n_heads, -1)),
            output_bias=parameter_of(modules.o_proj, "bias"),
            query_scale=self.scale(config, layer, d_head) if self.scales_queries else 1.0,
            output_rounding=input_rounding(modules.o_proj),
            gate=gate,
            query_norm=query_norm,
            key_norm=key_norm,
            rotary=self.rotary(base_model, layer, d_head),
        )

    def projections(self, modules: LayerModules, n_heads: int, n_shared: int) -> tuple[Projection, ...]:
        """Those of queries, keys and values."""
        heads = n_heads, n_shared, n_shared
        maps = [(self.weight(linear), parameter_of(linear, "bias")) for linear in modules.projections]
        roundings = [input_rounding(linear) for linear in modules.projections]
        if len(maps) == 1:  # all three side by side
            d_head = self.weight(modules.o_proj).shape[1] // n_heads
            rows = [n * d_head for n in heads]
            [(weight, bias)] = maps
            if len(weight) != sum(rows):
                expected = f"{sum(rows)} of Q, K and V"
                raise not_reproduced(self.name, self.projection_names[0], f"{len(weight)} rows", expected)
            if self.fused_by_head:
                weight, bias = (
                    None if part is None else heads_apart(part, n_heads, n_shared) for part in (weight, bias)
                )
            biases = [None] * 3 if bias is None else bias.split(rows)
            maps = list(zip(weight.split(rows), biases, strict=True))
            roundings = roundings * 3
        return tuple(map(projection_of, *zip(*maps, strict=True), heads, roundings))

    def scoring(self, base_model: Any, layer: int, d_head: int) -> Scoring:
        """How the layer makes a pattern of queries and keys."""
        config, sinks = base_model.config, None
        if self.learned_sinks:
            sinks = parameter_of(self.modules_of(base_model, layer).attention, "sinks")
        return Scoring(
            scale=1.0 if self.scales_queries else self.scale(config, layer, d_head),
            causal=self.causal,
            upcast=self.upcast_scores,
            rounded_once=self.scores_rounded_once,
            softmax_in_float32=self.softmax_in_float32,
            window=self.window(config, layer),
            cap=getattr(config, self.cap_setting) if self.cap_setting else None,
            position_bias=self.position_bias(base_model, layer),
            sinks=sinks,
        )


def like(kind: type[Family], name: str, prefix: str, **declared: Any) -> type[Family]:
    """A family that differs from another in what is declared alone."""
    return type(prefix, (kind,), declared | {"name": name, "class_prefix": prefix})


def projection_of(
    weight: Tensor, bias: Tensor | None, n_heads: int, rounding: Callable[[Tensor], Tensor] | None = None
) -> Projection:
    """A linear map's weight [n_heads * d_head, d_model] and bias, split by head."""
    by_head = weight.reshape(n_heads, -1, weight.shape[-1]).mT
    return Projection(by_head, None if bias is None else bias.reshape(n_heads, -1), rounding=rounding)


def halves(projection: Projection) -> tuple[Projection, Projection]:
    """The first and the second half of the numbers of each head."""
    biases = (None, None) if projection.bias is None else projection.bias.chunk(2, -1)
    first, second = zip(projection.weight.chunk(2, -1), biases, strict=True)
    return replace(projection, weight=first[0], bias=first[1]), replace(projection, weight=second[0], bias=second[1])


def heads_apart(fused: Tensor, n_heads: int, n_shared: int) -> Tensor:
    """From queries, key and value of the first heads that share a key, then of the next, to all queries first.

    Of [(n_heads + 2 * n_shared) * d_head, ..]: ``n_shared`` keys and as many values.
    """
    groups = fused.reshape(n_shared, n_heads // n_shared + 2, -1, *fused.shape[1:])
    return torch.cat([part.flatten(0, 2) for part in (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])])


def not_reproduced(kind: str, setting: str, value: object, expected: str) -> ArchitectureError:
    """The error about a setting that the reference attention does not reproduce."""
    return ArchitectureError(
        f"this {kind} has {setting}={value!r}, which the reference attention does not reproduce; expected {expected}. "
        f"{DRAWN}."
    )


def rope_by_layer_type(config: Any) -> dict[str, Mapping[str, Any]]:
    """Settings of rotary positions by type of layer; under '' those of all layers, which are left out beside others."""
    settings: dict[str, Any] = getattr(config, "rope_parameters", {})  # Jamba has no positions
    by_type: dict[str, Mapping[str, Any]] = {name: value for name, value in settings.items() if isinstance(value, dict)}
    return by_type if by_type or not settings else {"": settings}


def norm_of(architecture: Architecture, config: Any, module: Any) -> Norm:
    """The parameters of one of its norms, with the epsilon of the config."""
    setting = architecture.epsilon_setting
    epsilon = float(getattr(config, setting) if isinstance(setting, str) else setting)
    if architecture.norm_kind not in ("layer", "layer, 1 + w"):
        architecture.declared("norm_kind", module, "weight")
        return RMSNorm(
            parameter_of(module, "weight"),
            epsilon,
            one_more=architecture.norm_kind == "rms, 1 + w",
            rounded_once=architecture.norm_kind == "rms, rounded once",
        )
    weight, bias = (parameter_of(module, name) if hasattr(module, name) else None for name in ("weight", "bias"))
    if hasattr(module, "norms"):  # StableLM: a module a head
        weight = torch.stack([parameter_of(norm, "weight") for norm in module.norms])
    if weight is not None and architecture.norm_kind == "layer, 1 + w":
        weight = weight + 1.0
    return LayerNorm(weight if weight is None or weight.ndim == 1 else weight[:, None], bias, epsilon)


def first_position(architecture: Architecture, config: Any) -> int:
    """The row of a text's first token among the positions that the config counts."""
    counted = architecture.positions_after_padding and not architecture.positions_computed
    return int(config.pad_token_id) + 1 if counted else 0


def position_rows(architecture: Architecture, config: Any, ids: Tensor) -> Tensor:
    """The rows of the tokens of a text [n] in the position table, [n].

    RoBERTa counts from ``pad_token_id`` + 1; a padding token in the text gets row ``pad_token_id`` and is not counted.
    """
    if not architecture.positions_after_padding:
        return torch.arange(len(ids), device=ids.device)
    counted: Tensor = ids != config.pad_token_id
    return counted.cumsum(0) * counted + int(config.pad_token_id)
