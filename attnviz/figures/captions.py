"""Earlier names, until the last command has left them."""

from attnviz.results.captions import CAPTIONS, captions_text, read_captions

__all__ = ["CAPTIONS", "captions_text", "read_captions"]
