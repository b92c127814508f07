"""JSON of a run: what was found, on which machine, and when."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from draftproof import clock


def write(out: Path, found: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {"machine": clock.machine(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
    out.write_text(json.dumps(about | found, indent=1) + "\n")
