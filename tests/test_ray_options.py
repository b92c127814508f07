"""What an application on Ray is started with, and how many engines it has; without Ray."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from draftproof.ray import affinity, options
from draftproof.ray.scaling import ByQueuedTokens


def test_options_are_those_of_serve() -> None:
    chosen, own = options.read(
        {
            "model": "bundled",
            "draft": "bundled",
            "threads": "1",
            "max_batch": 4,
            "ignore_eos": "true",
            "share": False,
            "stop": ["a", "b"],
            "api_key": "k",
            "seed": None,
            "replicas": "2",
            "affinity_header": "x-chat",
        }
    )
    assert (chosen.model, chosen.draft, chosen.threads, chosen.max_batch) == (
        "bundled",
        "bundled",
        1,
        4,
    )
    assert chosen.ignore_eos is True and chosen.share is False and list(chosen.stop) == ["a", "b"]
    assert list(chosen.keys) == ["k"] and chosen.seed is None and chosen.max_queue == 256
    assert (own.replicas, own.most, own.affinity_header) == (2, 2, "x-chat")


@pytest.mark.parametrize(
    ("replicas", "threads"),
    [({}, 8), ({"replicas": 2}, 4), ({"max_replicas": 3}, 2), ({"replicas": 20}, 1)],
)
def test_engines_share_no_cores(
    replicas: dict[str, int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options.os, "cpu_count", lambda: 8)
    assert options.read({"model": "bundled", **replicas})[0].threads == threads


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "MODEL"),
        ({"modle": "bundled"}, "modle cannot be followed here: it is unknown"),
        ({"port": 8000}, "port cannot be followed here: give http_options"),
        ({"context": 1}, "context cannot be followed here"),
        ({"threads": "two"}, "--threads"),
        ({"share": "perhaps"}, "share is 'perhaps', but must be true or false"),
        ({"replicas": 0}, "replicas is 0: give 1 or more"),
        ({"replicas": 2.7}, "replicas is 2.7, but must be a whole number"),
        ({"replicas": True}, "replicas is True, but must be a whole number"),
        ({"queued_tokens": "many"}, "queued_tokens is 'many', but must be a whole number"),
        ({"upscale_delay": -1}, "upscale_delay is -1: give 0 or more"),
        ({"upscale_delay": "inf"}, "upscale_delay is 'inf', but must be a number"),
        ({"replicas": float("inf")}, "replicas is inf, but must be a whole number"),
        ({"threads": 0}, "threads=0 computes nothing: use 1 or more"),
        ({"queued_tokens": 9}, "queued_tokens is about engines that come and go: give max_"),
        ({"replicas": 2, "downscale_delay": 9}, "downscale_delay is about engines that come"),
        ({"replicas": 2, "max_replicas": 4}, "drop min_ and max_replicas"),
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas is 3 and max_replicas 2"),
    ],
)
def test_what_is_wrong_is_told(given: dict[str, Any], said: str) -> None:
    model = {} if not given else {"model": "bundled"}
    with pytest.raises(ValueError) as told:
        options.read({**model, **given})
    assert said in str(told.value) and "\n" not in str(told.value)


def context(*engines: dict[str, float], outside: float = 0, target: int = 1) -> Any:
    names = ("queued_tokens", "waiting", "running", "places")
    told = {name: {number: each[name] for number, each in enumerate(engines)} for name in names}
    return SimpleNamespace(
        aggregated_metrics=told if engines else {},
        total_queued_requests=outside,
        target_num_replicas=target,
    )


def load(running: float, waiting: float = 0, tokens: float = 0) -> dict[str, float]:
    return {"queued_tokens": tokens, "waiting": waiting, "running": running, "places": 4}


@pytest.mark.parametrize(
    ("engines", "outside", "wanted"),
    [
        ([load(0)], 0, 1),
        ([load(0), load(0)], 0, 1),
        ([load(4, 2, 900)], 0, 1),  # what waits is less than another engine is for
        ([load(4, 2, 1000)], 0, 2),
        ([load(4, 4, 3500)], 0, 4),
        ([load(4, 2, 600)], 2, 2),  # two more wait at a front, as long ones as these
        ([load(4)], 3, 4),  # of whose length nothing is known
        ([load(4), load(4)], 0, 2),
        ([load(2), load(2)], 0, 1),
        ([load(2.4), load(2)], 0, 2),
    ],
)
def test_engines_are_as_many_as_run_and_wait(
    engines: list[dict[str, float]], outside: float, wanted: int
) -> None:
    assert ByQueuedTokens(1000)(context(*engines, outside=outside)) == (wanted, {})


def test_where_nobody_has_told_anything_it_stays() -> None:
    assert ByQueuedTokens(1000)(context(target=3)) == (3, {})


def test_keys() -> None:
    ids = list(range(400))
    one = affinity.key("", "", ids)
    assert one == affinity.key("", "", ids[:256]) == affinity.key("", "", [*ids[:256], 7])
    assert len({one, affinity.key("", "", [7, *ids]), affinity.key("salt", "", ids)}) == 3
    assert affinity.key("", "s", ids) == affinity.key("", "s", []) != one


def test_the_beginning_of_what_cannot_be_encoded_is_nothing() -> None:
    assert affinity.beginning(None, "text") == [] == affinity.beginning(None, [{"role": "x"}])
    assert affinity.beginning(None, [5, 6, *range(300)]) == [5, 6, *range(254)]


def test_without_ray_it_is_one_sentence() -> None:
    program = "import sys; sys.modules['ray'] = None\nfrom draftproof.ray import app"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert "needs ray, which is not installed: pip install 'draftproof[ray]'" in last


@pytest.mark.ray  # without it, whatever imports it fails every other test
def test_nothing_else_imports_it() -> None:
    """Nor Ray: the package has both as an extra."""
    program = (
        "import sys, draftproof, draftproof.cli.serve, draftproof.server.app\n"
        "assert not [name for name in sys.modules if name == 'ray' or 'draftproof.ray' in name]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
