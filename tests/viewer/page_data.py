"""Reading a page back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def payload_of(path: Path) -> dict[str, Any]:
    """The data inside a page."""
    html = path.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script id="payload" type="application/json">(.*?)</script>', html, re.DOTALL)
    return json.loads(data)
