"""How many parameters a BERT or a GPT-2 has, from its sizes alone: no model is built and torch is not imported."""

from dataclasses import dataclass

__all__ = ["Sizes", "attention_parameters", "bare_parameters"]


@dataclass(frozen=True)
class Sizes:
    """What the number of parameters depends on: layers, widths, and rows of the embedding tables."""

    n_layers: int
    d_model: int
    d_ff: int
    vocabulary: int
    positions: int
    segments: int = 0


def attention_parameters(sizes: Sizes) -> int:
    """W_Q, W_K, W_V and W_O of all layers with their biases: 4 (d_model² + d_model) a layer."""
    return sizes.n_layers * 4 * _linear(sizes.d_model, sizes.d_model)


def bare_parameters(sizes: Sizes, pooler: bool) -> int:
    """A model without its task head: embeddings, layers, one more layer norm, and the pooler.

    Args:
        sizes: of the model.
        pooler: ``BertModel`` has one (Devlin et al. 2019), ``GPT2Model`` has none (Radford et al. 2019).
    """
    d_model, norm = sizes.d_model, 2 * sizes.d_model
    embeddings = (sizes.vocabulary + sizes.positions + sizes.segments) * d_model
    feed_forward = _linear(d_model, sizes.d_ff) + _linear(sizes.d_ff, d_model)
    layers = attention_parameters(sizes) + sizes.n_layers * (feed_forward + 2 * norm)
    return embeddings + layers + norm + pooler * _linear(d_model, d_model)


def _linear(width: int, out: int) -> int:
    return width * out + out
