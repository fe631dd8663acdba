"""What was verified of passes that are resumed, in documents and tables."""

from typing import Any

from rich.text import Text

from attnviz.models.checkpoint import Checkpoint
from attnviz.present.documents import verification_entry
from attnviz.present.tables import verification_line
from attnviz.run.passes import SampleVerification
from attnviz.wording import counted, error


def sample_entry(sample: SampleVerification) -> dict[str, Any]:
    """What was verified, for a JSON document."""
    errors = {"values_error": sample.values_error, "resumed_error": sample.resumed_error}
    return verification_entry(sample.attention) | {"rows_verified": sample.n_inputs} | errors


def first_lines(source: str, what: str, sample: SampleVerification, model: Checkpoint, noun: str | None) -> Text:
    """What was measured on which ``source``, and how closely the heads reproduce the model; a ``noun`` asks for all."""
    more = ""
    if noun:
        more = (
            f", replaced values by at most {error(sample.values_error)}, final states of resumed passes by at most "
            f"{error(sample.resumed_error)}, on {counted(sample.n_inputs, noun)}"
        )
    return Text.assemble((source, "bold"), f"\n{what}\n", verification_line(sample.attention, model, more))
