"""Prometheus metrics: vLLM's names, which dashboards and load tests read, and what is ours.

A registry of its own, so that two servers in one process count for themselves. vLLM counts one gap
between tokens for each step, however many tokens the step wrote; the time per output token of a
request is the one to compare. Below its buckets there are some of 1, 2 and 5 ms.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from draftproof.llm import LLM
from draftproof.request import Request
from draftproof.server.admission import Admission

FIRST: tuple[float, ...] = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
FIRST += (1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
GAP: tuple[float, ...] = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
)
GAP += (1, 2.5, 5, 7.5, 10, 20, 40, 80)
WHOLE: tuple[float, ...] = (
    0.001,
    0.002,
    0.005,
    0.3,
    0.5,
    0.8,
    1,
    1.5,
    2,
    2.5,
    5,
    10,
    15,
    20,
    30,
    40,
    50,
    60,
)
WHOLE += (120, 240, 480, 960, 1920, 7680)
TOKENS = tuple(one * 10**power for power in range(6) for one in (1, 2, 5))
ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
FEW = (1, 2, 5, 10, 20)
REASONS = ("stop", "length", "abort", "error", "repetition")
LIMITS = ("max_num_queued_reqs", "max_num_queued_tokens")


class Metrics:
    """Of one server with one model."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._of = {"model_name": model, "engine": "0"}
        self._llm: LLM | None = None
        self._steps: list[tuple[int, float, float]] = []  # that are not counted yet
        self._wrote: list[tuple[float | None, float, float, int]] = []
        seconds = {
            "time_to_first_token_seconds": ("From arrival to the first token.", FIRST),
            "inter_token_latency_seconds": ("Between two steps that wrote.", GAP),
            "request_time_per_output_token_seconds": ("Of a request, behind its first.", GAP),
            "e2e_request_latency_seconds": ("From arrival to the end.", WHOLE),
            "request_queue_time_seconds": ("Until it had a place.", WHOLE),
            "request_inference_time_seconds": ("In its place.", WHOLE),
            "request_prefill_time_seconds": ("From its place to the first token.", WHOLE),
            "request_decode_time_seconds": ("From the first token to the end.", WHOLE),
            "iteration_tokens_total": ("Tokens that a pass ran.", ROWS),
            "request_prompt_tokens": ("Of a prompt.", TOKENS),
            "request_generation_tokens": ("Of an output.", TOKENS),
            "request_max_num_generation_tokens": ("Of the longest output of a prompt.", TOKENS),
            "request_params_n": ("Completions asked for.", FEW),
            "request_params_max_tokens": ("Tokens asked for.", TOKENS),
            "request_num_preemptions": ("None ever is.", FEW),
            "request_prefill_kv_computed_tokens": ("Tokens of a prompt that were read.", TOKENS),
        }
        self._spread = {
            name: self._labelled(Histogram, f"vllm:{name}", help, buckets=buckets)
            for name, (help, buckets) in seconds.items()
        }
        counters = {
            "prompt_tokens": "Of prompts.",
            "prompt_tokens_cached": "Of prompts, taken from the cache.",
            "generation_tokens": "Written.",
            "num_preemptions": "None ever is.",
            "prefix_cache_queries": "Tokens of prompts looked for in the cache.",
            "prefix_cache_hits": "Of them, found.",
            "corrupted_requests": "Ended because a row was not finite.",
            "spec_decode_num_drafts": "Steps that drafted.",
            "spec_decode_num_draft_tokens": "Tokens drafted.",
            "spec_decode_num_accepted_tokens": "Of them, accepted.",
        }
        self._count = {
            name: self._labelled(Counter, f"vllm:{name}", help) for name, help in counters.items()
        }
        self._ends = self._several(
            "vllm:request_success", "Ended, by the reason.", "finished_reason"
        )
        self._refused = self._several("vllm:admission_rejections", "Refused, by limit.", "reason")
        self._sources = self._several("vllm:prompt_tokens_by_source", "Of prompts.", "source")
        self._depths = self._several(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted at a depth.", "position"
        )
        for reason in REASONS:
            self._ends.labels(**self._of, finished_reason=reason)
        for limit in LIMITS:
            self._refused.labels(**self._of, reason=limit)
        self._nodes = self._several(
            "draftproof:draft_nodes", "Drafted, by what became of them.", "source", "fate"
        )
        self._drafting = self._several("draftproof:draft_seconds", "Of drafting.", "source")
        self._plain = self._several("draftproof:plain_steps", "Steps without drafts.", "reason")
        self._passes = self._labelled(Counter, "draftproof:pass_seconds", "Of passes.")
        self._foretold = self._labelled(
            Counter, "draftproof:pass_predicted_seconds", "Of passes, as foretold."
        )
        self._saved = self._labelled(
            Gauge, "draftproof:saved_seconds", "Beside plain decoding, by the table of costs."
        )

    def watch(self, admission: Admission) -> None:
        """Gauges that are read when somebody asks."""

        def gauge(name: str, help: str, read: Any, **labels: str) -> None:
            made = Gauge(name, help, [*self._of, *labels], registry=self.registry)
            made.labels(**self._of, **labels).set_function(read)

        gauge(
            "vllm:num_requests_running",
            "In a place.",
            lambda: admission.load - len(admission.waiting),
        )
        gauge("vllm:num_requests_waiting", "For a place.", lambda: len(admission.waiting))
        by_reason = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "For a place.",
            [*self._of, "reason"],
            registry=self.registry,
        )
        by_reason.labels(**self._of, reason="capacity").set_function(lambda: len(admission.waiting))
        by_reason.labels(**self._of, reason="deferred").set(0)
        gauge("vllm:engine_sleep_state", "It never sleeps.", lambda: 0, sleep_state="awake")
        gauge(
            "vllm:kv_cache_usage_perc",
            "Of the bytes for keys and values.",
            lambda: self._used(admission),
        )
        gauge(
            "draftproof:price", "Tokens that a plain pass is worth.", lambda: self._figure("price")
        )
        gauge(
            "draftproof:debt_passes",
            "Passes that drafting lost; below 0, won.",
            lambda: self._figure("debt"),
        )

    def of(self, llm: LLM) -> None:
        """The model is loaded."""
        self._llm = llm

    def step(self, rows: int, seconds: float, foretold: float) -> None:
        """A step ran so many tokens in so long."""
        self._steps.append((rows, seconds, foretold))

    def wrote(self, since: float | None, now: float, began: float, tokens: int) -> None:
        """A text got tokens, the ones before at `since`."""
        self._wrote.append((since, now, began, tokens))

    def rejected(self, limit: str) -> None:
        """A call found the queue full."""
        self._refused.labels(**self._of, reason=limit).inc()

    def ended(self, request: Request) -> None:
        """A text has ended."""
        self._settle()
        stats, params = request.stats, request.params
        reason = request.finish_reason if request.finish_reason in REASONS else "abort"
        self._ends.labels(**self._of, finished_reason=reason).inc()
        end = stats.ended
        spans = {"e2e_request_latency_seconds": (stats.began, end)}
        if stats.placed:
            spans["request_queue_time_seconds"] = stats.began, stats.placed
            spans["request_inference_time_seconds"] = stats.placed, end
        if stats.placed and stats.first_token:
            spans["request_prefill_time_seconds"] = stats.placed, stats.first_token
            spans["request_decode_time_seconds"] = stats.first_token, end
        for name, (since, until) in spans.items():
            self._spread[name].observe(max(until - since, 0.0))
        if stats.tokens > 1:
            each = (end - stats.first_token) / (stats.tokens - 1)
            self._spread["request_time_per_output_token_seconds"].observe(each)
        read = request.read - stats.cached
        sizes = {
            "request_prompt_tokens": request.read,
            "request_generation_tokens": stats.tokens,
            "request_max_num_generation_tokens": stats.tokens,
            "request_params_n": params.n,
            "request_params_max_tokens": min(params.longest, request.max_length),
            "request_num_preemptions": 0,
            "request_prefill_kv_computed_tokens": read,
        }
        for name, size in sizes.items():
            self._spread[name].observe(size)
        counts = {
            "spec_decode_num_drafts": stats.drafting_steps,
            "spec_decode_num_draft_tokens": stats.drafted,
            "spec_decode_num_accepted_tokens": stats.accepted,
        }
        if request.index == 0:
            counts |= {
                "prompt_tokens": request.read,
                "prompt_tokens_cached": stats.cached,
                "prefix_cache_queries": len(request.prompt),
                "prefix_cache_hits": stats.cached,
            }
            self._sources.labels(**self._of, source="local_compute").inc(read)
            self._sources.labels(**self._of, source="local_cache_hit").inc(stats.cached)
        for name, count in counts.items():
            self._count[name].inc(count)
        for depth, count in enumerate(stats.accepted_per_position):
            self._depths.labels(**self._of, position=str(depth)).inc(count)
        self._decided(request)

    def text(self) -> bytes:
        """As Prometheus reads it."""
        self._settle()
        return generate_latest(self.registry)

    def _settle(self) -> None:
        """Count what steps have left: not between two passes, whose next one waits."""
        for rows, seconds, foretold in self._steps:
            self._spread["iteration_tokens_total"].observe(rows)
            self._passes.inc(seconds)
            self._foretold.inc(foretold)
        for since, now, began, tokens in self._wrote:
            self._count["generation_tokens"].inc(tokens)
            if since is None:
                self._spread["time_to_first_token_seconds"].observe(now - began)
            else:
                self._spread["inter_token_latency_seconds"].observe(now - since)
        self._steps.clear()
        self._wrote.clear()

    def _decided(self, request: Request) -> None:
        decisions = request.stats.decisions
        for source, share in decisions.sources.items():
            fates = {"offered": share.offered, "used": share.used, "accepted": share.accepted}
            for fate, count in fates.items():
                self._nodes.labels(**self._of, source=source, fate=fate).inc(count)
            self._drafting.labels(**self._of, source=source).inc(share.seconds)
        for reason, steps in decisions.plain_steps.items():
            self._plain.labels(**self._of, reason=reason).inc(steps)
        self._saved.inc(decisions.saved)

    def _used(self, admission: Admission) -> float:
        memory = self._llm.memory if self._llm is not None else None
        if memory is not None and memory.total:
            return memory.taken / memory.total
        return (admission.load - len(admission.waiting)) / max(admission.places, 1)

    def _figure(self, name: str) -> float:
        proposer = self._llm.engine.proposer if self._llm is not None else None
        figures = getattr(proposer, "figures", None)
        return float(figures.get(name, 0.0)) if isinstance(figures, dict) else 0.0

    def _labelled(self, kind: Any, name: str, help: str, **options: Any) -> Any:
        made = kind(name, help, list(self._of), registry=self.registry, **options)
        return made.labels(**self._of)

    def _several(self, name: str, help: str, *labels: str) -> Any:
        names: Iterable[str] = [*self._of, *labels]
        return Counter(name, help, list(names), registry=self.registry)
