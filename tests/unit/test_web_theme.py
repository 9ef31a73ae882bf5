"""Theme: all text is readable, in light and in dark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate.server import web

_CSS = (Path(web.__path__[0]) / "assets" / "pages.css").read_text()
_COLORS = {
    name: (light, dark)
    for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", _CSS)
}
_TONES = ("good", "warn", "bad", "busy", "taken")
_WRITTEN_ON = (
    *(
        (text, on)
        for text in ("ink", "soft", "faint", "accent", *_TONES)
        for on in ("ground", "sheet")
    ),
    *((tone, f"{tone}-soft") for tone in (*_TONES, "accent")),
    ("soft", "quiet-soft"),
    ("on-accent", "accent"),
)


@pytest.mark.parametrize(("text", "on"), _WRITTEN_ON)
def test_theme_text_has_the_contrast_that_readers_need(text: str, on: str) -> None:
    """Requires at least 4.5 to 1: level AA of the WCAG for text of any size."""
    for one, other in zip(_COLORS[text], _COLORS[on], strict=True):
        lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (one, other)


def _luminance(color: str) -> float:
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (s / 12.92 if s <= 0.04 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
