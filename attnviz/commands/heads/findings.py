"""Earlier names, until the last command has left them."""

from attnviz.commands.heads.drawn import without_special as without_sinks
from attnviz.commands.heads.measure import Analysis as Findings
from attnviz.commands.heads.measure import HeadFindings, Options

__all__ = ["Findings", "HeadFindings", "Options", "without_sinks"]
