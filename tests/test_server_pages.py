"""What `docs/serving.md` and the dashboard say is there, and no more than is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

import draftproof as dp
import serving
from draftproof.server.bodies import TextBody
from draftproof.server.metrics import FIRST, GAP
from serving import NAME, Server
from sources import REPOSITORY

PAGE = (REPOSITORY / "docs" / "serving.md").read_text(encoding="utf-8")
METRIC = re.compile(r"(?:vllm|draftproof):[a-z_]+[a-z]")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as made:
        made.completion("abc", max_tokens=9, ignore_eos=True)
        yield made


def test_every_metric_that_is_named_is_there(server: Server) -> None:
    text = server.client.get("/metrics").text
    there = {
        each
        for line in text.splitlines()
        if not line.startswith("#")
        for each in METRIC.findall(line)
    }
    there |= {each.split()[2] for each in text.splitlines() if each.startswith("# TYPE")}
    dashboard = json.loads((REPOSITORY / "docs" / "serving" / "grafana.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = {each for text in (*shown, PAGE) for each in METRIC.findall(text)}
    assert len(named) > 20
    assert {each for each in named if each not in there and each + "_total" not in there} == set()


def test_vllms_metrics_are_all_there(server: Server) -> None:
    text = server.client.get("/metrics").text
    names = "num_requests_running num_requests_waiting kv_cache_usage_perc prompt_tokens_total "
    names += "generation_tokens_total request_success_total num_preemptions_total "
    names += "prefix_cache_queries_total prefix_cache_hits_total spec_decode_num_drafts_total "
    names += "spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total "
    names += "spec_decode_num_accepted_tokens_per_pos_total time_to_first_token_seconds_bucket "
    names += "inter_token_latency_seconds_bucket e2e_request_latency_seconds_bucket "
    names += "request_time_per_output_token_seconds_bucket request_queue_time_seconds_bucket "
    names += "request_prefill_time_seconds_bucket request_decode_time_seconds_bucket "
    names += "admission_rejections_total iteration_tokens_total_bucket"
    assert [name for name in names.split() if f"vllm:{name}{{" not in text] == []
    assert {0.001, 0.002, 0.005} <= {*FIRST} & {*GAP}
    assert list(FIRST) == sorted(FIRST) and list(GAP) == sorted(GAP)


def test_endpoints(server: Server) -> None:
    described = server.client.get("/openapi.json").json()["paths"].keys()
    named = set(
        re.findall(r"`(/[a-z0-9_/.{}]+)`", PAGE.partition("## Endpoints")[2].partition("\n\n")[0])
    )
    table = PAGE.partition("## Endpoints")[2].partition("\n\nBesides")[0]
    named |= set(re.findall(r"`(/[a-z0-9_/.{}]+)`", table))
    told = server.client.get("/openapi.json").json()["info"]["version"]
    assert told == server.client.get("/version").json()["version"]
    hidden = {"/health", "/ready", "/docs", "/openapi.json"}
    assert named == {*described} | hidden
    for path in named - {each for each in described if "post" in paths(server)[each]}:
        assert server.client.get(path.replace("{id}", NAME)).status_code == 200, path


def paths(server: Server) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = server.client.get("/openapi.json").json()["paths"]
    return found


def test_every_sampling_parameter_has_a_field() -> None:
    ours = {each.name for each in fields(dp.SamplingParams)}
    assert ours - TextBody.model_fields.keys() == {"speculate", "max_draft_nodes"}  # "speculative"


def test_every_pass_is_counted_once() -> None:
    """Those that only read, and none for a step that only ended a text."""
    rows: list[int] = []

    def spied() -> dp.LLM:
        made = serving.llm(speculate=None)
        made.engine.scheduler.prompt_budget = 64
        forward = made.runner.forward

        def spy(work: Any, *given: Any) -> Any:
            rows.append(sum(item.rows() for item in work))
            return forward(work, *given)

        made.runner.forward = spy  # type: ignore[method-assign]
        return made

    with Server(spied) as server:
        rows.clear()
        server.completion("a" * 300, max_tokens=3, ignore_eos=True)
        stream = {"prompt": "b", "max_tokens": 300, "ignore_eos": True, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=stream) as answer:
            next(answer.iter_lines())
        assert server.idle()
        server.client.get("/health")
        told = server.client.get("/metrics").text
    (line,) = [at for at in told.splitlines() if at.startswith("vllm:iteration_tokens_total_sum")]
    assert float(line.split()[-1]) == sum(rows)
