"""Files beside the figures: JSON document, CSV table, captions. What cannot be measured is None."""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attnviz.errors import OutputError
from attnviz.models.head_ids import LayerId, number_of
from attnviz.present.latex import latex

if TYPE_CHECKING:
    from attnviz.inputs.prompt import Prompt
    from attnviz.models.checkpoint import Checkpoint
    from attnviz.run.checks import LayerCheck, Verification
    from attnviz.run.passes import SampleVerification

Entry = dict[str, Any]  # an object of JSON, such as the entry of a row in a document
CAPTIONS = "captions.md"
LATEX_CAPTIONS = "captions.tex"
_LATEX_HEADER = (
    "% Captions, ready to paste. XeLaTeX and LuaLaTeX print every letter (UTF-8), pdfLaTeX [U+732B] for some."
)

_MARKUP = re.compile(r"([\\`*_<>\[\]#|&$~@]|:(?=//)|(?<=www)\.)", re.IGNORECASE)
# Fields of a check on a layer's output; null for given weights
_OF_OUTPUTS = ("output_error", "output_scale", "residual_error", "input_error", "head_output_error")


def model_entry(model: "Checkpoint") -> Entry:
    """What every document says of a model."""
    stack_keys = ("name", "letter", "n_layers", "n_heads")
    stacks = [{key: getattr(stack, key) for key in stack_keys} for stack in model.stacks]
    adapter = model.adapter and {key: getattr(model.adapter, key) for key in ("name", "kind", "revision", "sha256")}
    return {
        "name": model.names[0],
        "full_name": model.full_name,
        **({"adapter": adapter} if adapter else {}),
        "architecture": model.architecture.name,
        "revision": model.revision,
        "weights_sha256": model.weights_sha256,
        "n_layers": len(model.every_layer),
        "n_heads": model.n_heads,
        **({"attending_layers": list(map(number_of, model.layers))} if model.other_layers else {}),
        **({"stacks": stacks} if stacks else {}),
        **({"part": "encoder"} if model.encoder_only else {}),
        "d_model": model.d_model,
        "d_head": model.d_head,
        "device": model.device_names,
        "dtype": str(model.dtype).removeprefix("torch."),
        **({"quantised": list(model.quantised)} if model.quantised else {}),
    }


def layer_entry(layer: int | None) -> Entry:
    """The number of a layer; of an encoder-decoder that within its kind of attention, and this kind."""
    entry = {"layer": None if layer is None else number_of(layer)}
    return entry | {"stack": layer.stack.name} if isinstance(layer, LayerId) else entry


def tokens_entry(tokens: "Prompt") -> list[Entry]:
    """The text as the model read it, an entry a token; ``text`` as figures show it.

    ``sink`` is the reason why a token is one (``special``, ``first``, ``found``) or None.
    """
    columns = zip(tokens.ids, tokens.labels, tokens.special, tokens.words, tokens.sink, strict=True)
    return [
        {"id": token_id, "text": text, "special": special, "word": word}
        | {"sink": ("special" if special else "found" if position else "first") if sink else None}
        for position, (token_id, text, special, word, sink) in enumerate(columns)
    ]


def text_entry(result: Any, options: Entry) -> Entry:
    """What a document on one text says of model, text and options."""
    return {
        "model": model_entry(result.checkpoint),
        "text": result.text,
        "pair": result.pair,
        "tokens": tokens_entry(result.tokens),
        "options": options | {"tokens_cut_off": result.tokens.truncated},
    }


def target_entry(target: Any) -> Entry:
    """What the decoder of an encoder-decoder read, with ``text``, ``generated`` and ``tokens``; empty for None."""
    if target is None:
        return {}
    return {"target": target.text, "target_generated": target.generated, "target_tokens": tokens_entry(target.tokens)}


def verification_entry(verification: "Verification", more: "Callable[[LayerCheck], Entry]" = lambda _: {}) -> Entry:
    """What was compared with the model, and how closely; ``more`` gives further keys of a layer's entry."""
    return {
        "passed": verification.level == 4,
        "level": verification.level,
        "heads_compared": verification.heads_compared,
        "attention": verification.attention if verification.level else None,
        "pattern_tolerance": verification.pattern_tolerance,
        "output_tolerance": verification.tolerance.output if verification.level else None,
        "row_tolerance": verification.tolerance.row,
        "layers": [
            {
                **layer_entry(check.layer),
                "pattern_error": check.pattern_error,
                **{name: getattr(check, name) if verification.level else None for name in _OF_OUTPUTS},
                "row_error": check.row_error,
                "scale_error": check.scale_error,
                "scale_limit": None if check.scale_limit == math.inf else check.scale_limit,
                **more(check),
            }
            for check in verification.layers
        ],
    }


def sample_entry(sample: "SampleVerification") -> Entry:
    """What was verified of passes that are resumed."""
    errors = {"values_error": sample.values_error, "resumed_error": sample.resumed_error}
    return verification_entry(sample.attention) | {"rows_verified": sample.n_inputs} | errors


def csv_text(columns: Sequence[str], rows: Iterable[Entry]) -> str:
    """A CSV file with a header."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        cells = [joined(row.get(name)) for name in columns]
        # a spreadsheet would take such a text for a formula
        is_formula = [isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t")) for cell in cells]
        writer.writerow([f"'{cell}" if escape else cell for cell, escape in zip(cells, is_formula, strict=True)])
    return buffer.getvalue()


def joined(value: Any) -> Any:
    """A list as one text for a cell; any other value as it is."""
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else value


def caption_files(captions: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The Markdown and the LaTeX file of captions, from name and caption of each figure."""
    figures: dict[tuple[str, str], list[str]] = {}
    for name, caption in captions:
        figures.setdefault((name.rpartition(".")[0], caption), []).append(name)
    markdown, tex = ["# Captions"], [_LATEX_HEADER]
    for (_, caption), formats in figures.items():
        names = ", ".join(formats)
        lines = caption.split("\n")
        markdown.append(f"**{names}**: " + "\n\n".join(_MARKUP.sub(r"\\\1", line) for line in lines))
        tex.append(f"% {names}\n\\caption{{" + "\n".join(map(latex, lines)) + "\n}")
    return {CAPTIONS: "\n\n".join(markdown) + "\n", LATEX_CAPTIONS: "\n\n".join(tex) + "\n"}


def json_text(content: Entry, indent: int | None = 1) -> str:
    """The document as ASCII JSON, which steers no terminal; OutputError for a number that is not finite."""
    try:
        return json.dumps(content, indent=indent, allow_nan=False) + "\n"
    except ValueError as error:
        path = next(_not_finite(content), "a number")
        raise OutputError(
            f"cannot write the results: {path} is not finite; nothing was written. A wider --dtype may help."
        ) from error


def _not_finite(content: Any, path: str = "") -> Iterator[str]:  # such as ``heads.0.entropy``
    if isinstance(content, float) and not math.isfinite(content):
        yield path
    parts = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in parts:
        yield from _not_finite(value, f"{path}.{key}".removeprefix("."))
