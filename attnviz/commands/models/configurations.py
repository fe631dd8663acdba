"""The configuration of a model: its sizes, where each number comes from, and whether attnviz reproduces it.

What follows from the sizes alone is worked out here: no model is built and torch is not imported.
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

__all__ = ["Configuration", "parameter_counts", "width_of_heads"]


@dataclass(frozen=True)
class Configuration:
    """What is known of a model without its weights; None where it is not.

    Attributes:
        name: as the user gave it, or as a paper's model is called here.
        kind: ``built-in``, ``folder``, ``hub`` or ``paper``.
        source: of a paper's model the paper, of a hub model its commit; None otherwise.
        architecture: the ``model_type`` of its config; ``gpt3`` has none in transformers.
        n_layers, n_heads: of an encoder-decoder those of the encoder; heads in each layer.
        n_decoder_layers, n_decoder_heads: of an encoder-decoder those of its decoder, with as much cross-attention.
        n_kv_heads: keys and values in each layer, where the config names a number.
        d_model, d_head: width of the residual stream, and of a head.
        positions: the longest text, in tokens, as the config or the paper has it.
        vocabulary: entries of the table of words.
        parameters: of the bare model (no task head; embeddings and BERT's pooler counted, what is shared once).
        attention_parameters: those in W_Q, W_K, W_V, W_O and their biases.
        stated_parameters: as the paper rounds them.
        reproduced, reason: whether the reference attention reproduces it, and why it does not.
        origins: by the name of a number, where it comes from: ``config``, ``paper``, ``released`` (the config that the
            authors released, where the paper has no such number), ``derived`` (d_model / n_heads), ``counted``.
        notes: what to know before one relies on the numbers.
    """

    name: str
    kind: str
    source: str | None = None
    architecture: str | None = None
    n_layers: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    d_model: int | None = None
    d_head: int | None = None
    positions: int | None = None
    vocabulary: int | None = None
    parameters: int | None = None
    attention_parameters: int | None = None
    stated_parameters: int | None = None
    reproduced: bool = False
    reason: str | None = None
    origins: dict[str, str] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()
    n_decoder_layers: int | None = None
    n_decoder_heads: int | None = None

    @property
    def level(self) -> int | None:
        """How deep its heads are verified, see :class:`attnviz.attention.checks.Verification`; None: they are not."""
        return 4 if self.reproduced else None

    @property
    def float32_gib(self) -> float | None:
        """What the weights take in float32, in GiB (2**30 bytes)."""
        return None if self.parameters is None else self.parameters * 4 / 2**30

    def with_counts(self, parameters: int, in_attention: int | None) -> "Configuration":
        """The same with its parameters, as counted; those in attention are None where they are not known."""
        origins = {**self.origins, "parameters": "counted"}
        if in_attention is not None:
            origins["attention_parameters"] = "counted"
        return replace(self, parameters=parameters, attention_parameters=in_attention, origins=origins)

    def entry(self) -> dict[str, Any]:
        """The configuration for a JSON document."""
        content = asdict(self)
        trailing = {key: content.pop(key) for key in ("reproduced", "reason", "origins", "notes")}
        return {**content, "float32_gib": self.float32_gib, "level": self.level, **trailing, "notes": list(self.notes)}


def width_of_heads(d_model: int | None, n_heads: int | None, stated: int | None) -> tuple[int | None, str | None]:
    """The stated width of a head, else d_model / n_heads where that is a whole number; and what is odd about it."""
    if d_model is None or not n_heads or n_heads < 0:
        return stated, None
    if stated is None:
        if d_model % n_heads:
            return None, f"d_model {d_model} is no multiple of {n_heads} heads, so there is no d_head"
        return d_model // n_heads, None
    if n_heads * stated != d_model:
        return stated, f"{n_heads} heads of {stated} are {n_heads * stated} wide, d_model is {d_model}"
    return stated, None


def parameter_counts(
    n_layers: int, d_model: int, d_ff: int, vocabulary: int, positions: int, segments: int = 0
) -> tuple[int, int]:
    """Parameters of a BERT or a GPT-2 without its task head, and those of them in attention.

    The latter are W_Q, W_K, W_V and W_O of all layers with their biases: 4 (d_model² + d_model) a layer. A model with
    a table of segments is a ``BertModel``, which has a pooler, too (Devlin et al. 2019); ``GPT2Model`` has neither
    (Radford et al. 2019).
    """
    square, norm = d_model * d_model + d_model, 2 * d_model
    in_attention = n_layers * 4 * square
    feed_forward = 2 * d_model * d_ff + d_ff + d_model
    embeddings = (vocabulary + positions + segments) * d_model
    pooler = square if segments else 0
    return embeddings + in_attention + n_layers * (feed_forward + 2 * norm) + norm + pooler, in_attention
