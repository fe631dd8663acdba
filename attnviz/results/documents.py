"""The parts that the JSON documents of all commands share, and CSV tables; what cannot be measured is None."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnviz.attention.verify import LayerCheck, Verification
    from attnviz.model.checkpoint import Checkpoint
    from attnviz.model.tokens import Tokens

__all__ = ["csv_text", "model_entry", "tokens_entry", "verification_entry"]


def model_entry(model: "Checkpoint") -> dict[str, Any]:
    """What every document says of a model."""
    return {
        "name": model.name,
        "architecture": model.architecture.name,
        "revision": model.revision,
        "n_layers": model.n_layers,
        "n_heads": model.n_heads,
        "d_model": model.d_model,
        "d_head": model.d_head,
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
    }


def tokens_entry(tokens: "Tokens") -> list[dict[str, Any]]:
    """The text as the model read it, an entry a token; ``text`` as figures show it."""
    columns = zip(tokens.ids, tokens.labels, tokens.special, tokens.words, strict=True)
    return [
        {"id": token_id, "text": text, "special": special, "word": word} for token_id, text, special, word in columns
    ]


def verification_entry(
    verification: "Verification", more: "Callable[[LayerCheck], dict[str, Any]]" = lambda _: {}
) -> dict[str, Any]:
    """What was compared with the model, and how closely.

    Args:
        verification: of all layers.
        more: further keys of a layer's entry.
    """
    return {
        "passed": True,
        "heads_compared": verification.heads_compared,
        "pattern_tolerance": verification.tolerance.pattern,
        "output_tolerance": verification.tolerance.output,
        "layers": [
            {
                "layer": check.layer,
                "pattern_error": check.pattern_error,
                "output_error": check.output_error,
                "output_scale": check.output_scale,
                **more(check),
            }
            for check in verification.layers
        ],
    }


def csv_text(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    """A CSV file with a header; None is an empty cell, and values of other names are left out."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()
