"""Formats as people give them in Python: a list, not one name."""

from collections.abc import Collection

from attnviz.errors import UsageError

__all__ = ["check_format_list"]


def check_format_list(formats: object) -> None:
    """Refuse formats that are not in a list, such as a single name, whose letters would be taken for names.

    Raises:
        UsageError: with what was found.
    """
    if isinstance(formats, str) or not isinstance(formats, Collection):
        example = f"; write [{formats!r}]" if isinstance(formats, str) else ""
        raise UsageError(f"expected a list of formats such as ['png', 'pdf'], found {formats!r}{example}.")
