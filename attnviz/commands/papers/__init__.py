"""The tables of papers that ``check --published`` measures, a file a paper."""

from attnviz.commands.papers import (
    clark_2019,
    gould_2023,
    gu_2024,
    mcdougall_2023,
    voita_2019,
    wang_2022,
    wu_2024,
)

_PAPERS = clark_2019, gould_2023, gu_2024, mcdougall_2023, voita_2019, wang_2022, wu_2024

# By name; a paper whose heads are claims (data/published_heads.json) may have a table, too.
PAPER_TABLES = {paper.TABLE.name: paper.TABLE for paper in _PAPERS}
