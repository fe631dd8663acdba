"""How many parameters a BERT or a GPT-2 has, from its sizes alone: no model is built and torch is not imported."""

from dataclasses import dataclass

__all__ = ["Sizes", "attention_parameters", "bert_parameters", "gpt2_parameters"]


@dataclass(frozen=True)
class Sizes:
    """What the number of parameters depends on.

    Attributes:
        n_layers: layers.
        d_model: width of the residual stream.
        d_ff: width inside the feed-forward network.
        vocabulary: entries of the table of words.
        positions: entries of the table of positions.
        segments: entries of the table of token types; 0 where there is none.
    """

    n_layers: int
    d_model: int
    d_ff: int
    vocabulary: int
    positions: int
    segments: int = 0


def attention_parameters(sizes: Sizes) -> int:
    """W_Q, W_K, W_V and W_O of all layers with their biases: 4 (d_model² + d_model) a layer."""
    return sizes.n_layers * 4 * _linear(sizes.d_model, sizes.d_model)


def bert_parameters(sizes: Sizes) -> int:
    """``BertModel``: embeddings and their norm, layers, pooler (Devlin et al. 2019)."""
    norm, tables = _norm(sizes.d_model), sizes.vocabulary + sizes.positions + sizes.segments
    return tables * sizes.d_model + norm + _layers(sizes) + _linear(sizes.d_model, sizes.d_model)


def gpt2_parameters(sizes: Sizes) -> int:
    """``GPT2Model``: embeddings, layers, final norm (Radford et al. 2019)."""
    return (sizes.vocabulary + sizes.positions) * sizes.d_model + _layers(sizes) + _norm(sizes.d_model)


def _layers(sizes: Sizes) -> int:
    """Attention, feed-forward network and two layer norms each: the same in BERT and GPT-2."""
    feed_forward = _linear(sizes.d_model, sizes.d_ff) + _linear(sizes.d_ff, sizes.d_model)
    return attention_parameters(sizes) + sizes.n_layers * (feed_forward + 2 * _norm(sizes.d_model))


def _linear(width: int, out: int) -> int:
    return width * out + out


def _norm(width: int) -> int:
    return 2 * width
