"""OpenVINO and its GenAI pipelines as a worker of `cpu_peers.py`; runs in the peers' environment.

Passes go through the stateful model itself; everything written goes through `LLMPipeline`, which
for speculation is what OpenVINO offers.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy
import openvino
import openvino_genai

from worker_loop import NotOffered, Options, serve, some_ids, timed, written

MAX_NGRAM = 3  # tokens that must match in prompt lookup; 3 is also what its samples take


class OpenVINO:
    """One compiled model for passes, and a pipeline per method, each made when first asked for."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.config: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": "bf16",
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": options.threads,
        }
        if options.precision == "bf16":  # by default keys and values would be rounded to int8
            self.config["KV_CACHE_PRECISION"] = "bf16"
        self.versions = {
            "openvino": openvino.get_version(),
            "openvino-genai": openvino_genai.get_version(),
        }
        self.pipelines: dict[str, Any] = {}
        self.request: Any = None
        self.saved: dict[int, list[openvino.Tensor]] = {}  # keys and values behind a context

    def passes(self, tokens: int, context: int, rounds: int) -> list[float]:
        """See `worker_loop.Worker`.

        Between the rounds the state of all but the last context token is put back and that token
        is read again, so that what a new state costs the next pass is outside of the clock.
        """
        if self.request is None:
            path = Path(self.options.target) / "openvino_model.xml"
            compiled = openvino.Core().compile_model(str(path), "CPU", self.config)
            self.request = compiled.create_infer_request()
            self.inputs = {name for port in compiled.inputs for name in port.names}
        ids = some_ids(context)
        if context not in self.saved:
            self.request.reset_state()
            self._infer(ids[:-1], 0)
            self.saved[context] = [_copy(state.state) for state in self.request.query_state()]

        def back() -> None:
            for state, saved in zip(self.request.query_state(), self.saved[context], strict=True):
                state.state = saved
            self._infer(ids[-1:], context - 1)

        return timed(lambda: self._infer([1] * tokens, context), rounds, back)

    def _infer(self, ids: list[int], start: int) -> None:
        end = start + len(ids)
        feed = {
            "input_ids": numpy.array([ids], dtype=numpy.int64),
            "attention_mask": numpy.ones((1, end), dtype=numpy.int64),
            "position_ids": numpy.arange(start, end, dtype=numpy.int64)[None],
            "beam_idx": numpy.zeros(1, dtype=numpy.int32),
        }
        known = {name: value for name, value in feed.items() if name in self.inputs}
        self.request.infer(known, share_inputs=True, share_outputs=True)  # copies no logits

    def prompt(self, tokens: int) -> float:
        """See `worker_loop.Worker`."""
        return float(self._write("plain", some_ids(tokens), 1)["seconds"])

    def generate(self, ids: list[int], text: str, max_tokens: int) -> dict[str, Any]:
        """See `worker_loop.Worker`."""
        return self._write("plain", ids, max_tokens)

    def speculate(
        self, ids: list[int], text: str, max_tokens: int, method: str, length: int
    ) -> dict[str, Any]:
        """See `worker_loop.Worker`."""
        if method not in ("draft", "lookup"):
            raise NotOffered(f"OpenVINO has no method {method}")
        more = {"max_ngram_size": MAX_NGRAM} if method == "lookup" else {}
        return self._write(method, ids, max_tokens, num_assistant_tokens=length, **more)

    def _pipeline(self, method: str) -> Any:
        if method not in self.pipelines:
            scheduler = openvino_genai.SchedulerConfig()
            scheduler.enable_prefix_caching = False  # a prompt that comes again is read again
            scheduler.max_num_batched_tokens = self.options.context
            more: dict[str, Any] = {"scheduler_config": scheduler}
            if method == "draft":
                more["draft_model"] = openvino_genai.draft_model(
                    self.options.draft, "CPU", **self.config
                )
            elif method == "lookup":
                more["prompt_lookup"] = True
            self.pipelines[method] = openvino_genai.LLMPipeline(
                self.options.target, "CPU", **more, **self.config
            )
        return self.pipelines[method]

    def _write(self, method: str, ids: list[int], max_tokens: int, **more: int) -> dict[str, Any]:
        pipeline = self._pipeline(method)
        config = openvino_genai.GenerationConfig(
            max_new_tokens=max_tokens, ignore_eos=True, do_sample=False, **more
        )
        if self.options.temperature:
            config.do_sample, config.temperature = True, self.options.temperature
            config.top_p, config.rng_seed = 1.0, 0
        rows = openvino.Tensor(numpy.array([ids], dtype=numpy.int64))
        began = time.perf_counter()
        done = pipeline.generate(rows, config)
        seconds = time.perf_counter() - began
        return written(done.tokens[0], seconds)


def _copy(tensor: openvino.Tensor) -> openvino.Tensor:
    made = openvino.Tensor(tensor.element_type, tensor.shape)
    tensor.copy_to(made)
    return made


if __name__ == "__main__":
    serve(OpenVINO)
