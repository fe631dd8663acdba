"""The numbers of every head of a profile: axes of the page's scatter, columns of the table by KV head."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from attnviz.commands.profile.measure import Profile
from attnviz.measures.chats import LOOKBACK
from attnviz.measures.patterns import ROLES_ON_REPEATS
from attnviz.measures.tallies import OFFSETS
from attnviz.models.head_ids import HeadId, select_heads
from attnviz.page.page import statistic_entry
from attnviz.present import statistics
from attnviz.wording import visible


def statistic_entries(profile: Profile) -> Iterator[dict[str, Any]]:
    """The axes of the scatter: statistics, and roles that a head has or that are measured on random repeats."""
    heads = select_heads((), profile.checkpoint.kinds)

    def column(key: str, title: str, reading: str, uniform: float | None, value: Callable[[HeadId], Any]) -> Any:
        numbers = (float(value(head)) for head in heads)
        known = [number if math.isfinite(number) else None for number in numbers]
        return statistic_entry(key, title, reading, "", [uniform], known)

    if profile.statistics is not None:
        baselines = profile.statistics.baselines()
        for name, values in profile.statistics.results().items():
            if name not in OFFSETS:
                title = name.replace("_", " ")
                yield column(name, title, "mean over the corpora", baselines.get(name), values.__getitem__)
    for pair in profile.chats:
        if pair.measure == LOOKBACK:
            uniform, ratios = float(pair.scores.baseline.mean()), pair.scores.scores[0]
            yield column("lookback", "lookback ratio", statistics.LOOKBACK, uniform, ratios.__getitem__)
    for name in dict.fromkeys(role.role for role in profile.roles if role.holds or role.role in ROLES_ON_REPEATS):
        of_role = {role.id: role for role in profile.roles if role.role == name}
        threshold = next(iter(of_role.values())).threshold
        scores = dict.fromkeys(heads, math.nan) | {head: role.score for head, role in of_role.items()}
        yield column(f"role {name}", f"role {visible(name)}", threshold, None, scores.__getitem__)
