"""JSON, CSV and the table of steps of training."""

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.profile.training.measure import EARLY, LATE, Training, TrainingStep
from attnviz.present.fields import Field, NamedTable, entry, plain
from attnviz.present.report import CommandSpec
from attnviz.present.tables import RowTable, notes
from attnviz.present.view import ViewOptions
from attnviz.wording import counted, signed, span, visible

_SHOWN: tuple[Field[TrainingStep], ...] = (
    Field("Step", name="step", write=visible),
    Field("Best head", name="head"),
    Field("Prefix matching", name="prefix_matching", unit="0–1"),
    Field("Interval", name="interval", csv={"low": (0,), "high": (1,)}, write=span, detail=True),
    Field("Induction heads", name="induction"),
    Field("Copying", name="copying", unit="−1 to 1", write=signed),
    Field("In-context", name="in_context", unit="nats", write=signed),
    Field(
        "In-context interval",
        name="in_context_interval",
        csv={"in_context_low": (0,), "in_context_high": (1,)},
        write=span,
        detail=True,
    ),
)
_FIELDS = (*_SHOWN, *plain("loss_early", "loss_late"))


def headline(result: Training) -> str:
    """Where induction heads appear."""
    if result.first is None:
        return f"No induction head at any of {counted(len(result.steps), 'step')}"
    first = result.first
    return f"First induction heads at {visible(first.step)}: {first.induction}, {first.head} the clearest"


def source_line(result: Training) -> str:
    """Model, and what it was measured on."""
    read = [f"{counted(result.contexts, 'context')} of {LATE} tokens"] if result.contexts else []
    names = [visible(corpus.path.name) for corpus in result.corpora] if result.contexts else []
    return " · ".join([result.name, "random tokens, repeated", *read, *names])


def _content(result: Training, _: ViewOptions) -> dict[str, Any]:
    steps = [*result.steps, *([result.untrained] if result.untrained else [])]
    return {
        "models": [step.model for step in steps],
        "verification": [step.verification for step in steps],
        "corpora": [corpus.entry for corpus in result.corpora],
        "contexts": result.contexts,
        "why_no_loss": result.why_no_loss,
        "seed": result.seed,
        "untrained": result.untrained and entry(_FIELDS, result.untrained),
    }


def _tables(result: Training, _: ViewOptions) -> Iterator[RenderableType]:
    yield Text(source_line(result), style="bold")
    yield Text(f"{headline(result)}.", style="bold")
    shown = _SHOWN if result.contexts else [field for field in _SHOWN if not field.name.startswith("in_context")]
    last = [field.write(field.value_for(result.untrained)) for field in shown] if result.untrained else []
    yield RowTable("Steps of training", shown, result.steps, last=last)
    yield notes(
        "Prefix matching and copying are of the head of the highest prefix matching (Olsson et al. 2022).",
        f"In-context: loss of the {LATE}th token less that of the {EARLY}th: below 0, the context helps."
        if result.contexts
        else f"No in-context learning score: {result.why_no_loss}.",
    )


SPEC = CommandSpec[Training](
    content=_content, tables=_tables, table=lambda result, _: NamedTable("steps", _FIELDS, result.steps)
)
"""The command's presentation."""
