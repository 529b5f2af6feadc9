"""Reading a page back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def payload_of(path: Path) -> dict[str, Any]:
    """The data inside a page."""
    return json.loads(embedded(path.read_text(encoding="utf-8")))


def embedded(html: str) -> str:
    """The data as it is written."""
    (data,) = re.findall(r'<script id="payload" type="application/json">(.*?)</script>', html, re.DOTALL)
    return data
