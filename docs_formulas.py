"""A hook of the documentation site: formulas between dollars become MathML, which browsers typeset."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.S)
DISPLAY = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.S)


def on_page_content(content: str, **kwargs: Any) -> str:
    """The page with its formulas typeset."""
    content = DISPLAY.sub(lambda found: convert(html.unescape(found[1]), display="block"), content)
    return INLINE.sub(lambda found: convert(html.unescape(found[1])), content)
