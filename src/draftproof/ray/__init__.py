"""Replicas on Ray Serve: `serve run draftproof.ray:app model=...`, docs/replicas.md.

`Engine` (a replica that holds a model) writes, `Front` (the server's endpoints without a model)
answers clients, and lets a stream go on at another replica when its own is lost. Only `deployments`
knows Ray, and `batch`: actors for `draftproof batch --ray`, which alone of all else in the package
imports anything here, and late: its libraries are an extra.
"""

from __future__ import annotations

from typing import Any

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    """`app`, as late as that: all else here needs no Ray."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from draftproof.ray.deployments import app

    return app
