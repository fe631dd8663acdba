"""The tables of papers that ``check --published`` measures, a file a paper."""

from attnviz.commands.check.papers.clark_2019 import CLARK_2019
from attnviz.commands.check.papers.gould_2023 import GOULD_2023
from attnviz.commands.check.papers.gu_2024 import GU_2024
from attnviz.commands.check.papers.mcdougall_2023 import MCDOUGALL_2023
from attnviz.commands.check.papers.table import PaperTable
from attnviz.commands.check.papers.voita_2019 import VOITA_2019
from attnviz.commands.check.papers.wang_2022 import WANG_2022
from attnviz.commands.check.papers.wu_2024 import WU_2024

# By name; a paper whose heads are claims (data/published_heads.json) may have a table, too.
PAPER_TABLES: dict[str, PaperTable] = {
    table.name: table for table in (CLARK_2019, GOULD_2023, GU_2024, MCDOUGALL_2023, VOITA_2019, WANG_2022, WU_2024)
}
