"""llama.cpp as a worker of `cpu_peers.py`; runs in the peers' environment.

Passes and plain decoding go through the C API by llama-cpp-python's ctypes declarations.
Speculation is llama.cpp's own program, llama-speculative-simple, run once per prompt; its seconds
are those that it reports for prompt and decoding, without loading and warming up.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy

from worker_loop import NotOffered, Options, serve, some_ids, timed, written

MATCH = 3  # tokens that must match in prompt lookup; the program's own 12 would find nothing here
TYPES = {"draft": "draft-simple", "lookup": "ngram-simple", "merged": "ngram-simple,draft-simple"}
REPORTED = re.compile(r"(encoded|decoded) +(\d+) tokens in +([\d.]+) seconds")


class LlamaCpp:
    """One context with default settings, two threads or so, and room for what is asked."""

    def __init__(self, options: Options) -> None:
        self.options = options
        tools = Path(options.tools)
        self.programs = tools / "vendor" / "llama.cpp" / "build" / "bin"
        self.api: Any = _bindings(tools, self.programs)
        self.versions = {"llama.cpp": _version(self.programs)}
        self.api.llama_backend_init()
        params = self.api.llama_model_default_params()
        self.model = self.api.llama_model_load_from_file(options.target.encode(), params)
        if not self.model:
            raise ValueError(f"llama.cpp cannot load {options.target}")
        settings = self.api.llama_context_default_params()
        settings.n_ctx = settings.n_batch = options.context
        settings.n_threads = settings.n_threads_batch = options.threads
        self.context = self.api.llama_init_from_model(self.model, settings)
        if not self.context:
            raise ValueError("llama.cpp makes no context")
        self.memory = self.api.llama_get_memory(self.context)
        self.vocabulary = self.api.llama_vocab_n_tokens(self.api.llama_model_get_vocab(self.model))
        self.batch = self.api.llama_batch_init(options.context, 0, 1)
        self.cached = 0  # tokens of `some_ids` that lie in the context

    def passes(self, tokens: int, context: int, rounds: int) -> list[float]:
        """See `worker_loop.Worker`; what a pass adds is removed between the rounds."""
        if self.cached != context:
            self._read(some_ids(context))
            self.cached = context
        rows = [1] * tokens
        return timed(
            lambda: self._decode(rows, context, every=True), rounds, lambda: self._cut(context)
        )

    def prompt(self, tokens: int) -> float:
        """See `worker_loop.Worker`."""
        return float(self.generate(some_ids(tokens), "", 1)["seconds"])

    def generate(self, ids: list[int], text: str, max_tokens: int) -> dict[str, Any]:
        """See `worker_loop.Worker`."""
        self._refuse_to_sample()
        self.cached, done = 0, list[int]()
        began = time.perf_counter()
        self._read(ids)
        done.append(self._best())
        while len(done) < max_tokens:
            self._decode(done[-1:], len(ids) + len(done) - 1)
            done.append(self._best())
        return written(done, time.perf_counter() - began)

    def logits(self, ids: Sequence[int]) -> Any:
        """(T, V) in float32, behind every token of a text that begins with these."""
        self.cached = 0
        self.api.llama_memory_clear(self.memory, False)
        self._decode(ids, 0, every=True)
        rows = self.api.llama_get_logits(self.context)
        return numpy.ctypeslib.as_array(rows, (len(ids), self.vocabulary)).copy()

    def look_up(self, ids: list[int], max_tokens: int, propose: Any) -> list[int]:
        """Plain greedy text past end-of-text, drafts verified in one batch each.

        propose: token ids (numpy, int32) that may follow those that it is given.
        """
        self.cached, text = 0, list(ids)
        self._read(ids)
        text.append(self._best())
        while len(text) - len(ids) < max_tokens:
            room = max_tokens - (len(text) - len(ids)) - 1
            drafted = [int(token) for token in propose(numpy.array(text, numpy.intc))][:room]
            begin = len(text) - 1
            self._decode([text[-1], *drafted], begin, every=True)
            rows = self.api.llama_get_logits(self.context)
            logits = numpy.ctypeslib.as_array(rows, (len(drafted) + 1, self.vocabulary))
            best = [int(token) for token in logits.argmax(1)]
            accepted = 0
            while accepted < len(drafted) and drafted[accepted] == best[accepted]:
                accepted += 1
            text += best[: accepted + 1]
            self._cut(len(text) - 1)
        return text[len(ids) :]

    def close(self) -> None:
        """Let go of the model."""
        self.api.llama_batch_free(self.batch)
        self.api.llama_free(self.context)
        self.api.llama_model_free(self.model)

    def _refuse_to_sample(self) -> None:
        if self.options.temperature:
            raise NotOffered("llama.cpp is measured greedily only")

    def _read(self, ids: Sequence[int]) -> None:
        self.api.llama_memory_clear(self.memory, False)
        self._decode(ids, 0)

    def _cut(self, length: int) -> None:
        self.api.llama_memory_seq_rm(self.memory, 0, length, -1)

    def _decode(self, ids: Sequence[int], start: int, every: bool = False) -> None:
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, start + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = every or i == len(ids) - 1
        if code := self.api.llama_decode(self.context, batch):
            raise ValueError(f"llama_decode over {len(ids)} tokens returned {code}")
        self.api.llama_synchronize(self.context)

    def _best(self) -> int:
        logits = self.api.llama_get_logits_ith(self.context, -1)
        return int(numpy.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

    def speculate(
        self, ids: list[int], text: str, max_tokens: int, method: str, length: int
    ) -> dict[str, Any]:
        """See `worker_loop.Worker`; its text, because the program prints no token ids.

        It writes a token or a draft more than it was asked for; `tokens` says how many there are.
        """
        self._refuse_to_sample()
        own = self.options
        with tempfile.NamedTemporaryFile("w", suffix=".txt", newline="") as file:
            file.write(text)
            file.flush()
            arguments = [
                *(str(self.programs / "llama-speculative-simple"), "-m", own.target),
                *("-bf", file.name, "--no-escape", "-n", str(max_tokens), "-c", str(own.context)),
                *("-b", str(own.context), "-t", str(own.threads), "-s", "0", "--ignore-eos"),
                *("--temp", "0", "--sampling-seq", "k", "--top-k", "1"),
                *("--spec-type", TYPES[method]),
            ]
            if method != "lookup":
                arguments += ["-md", str(own.draft), "--spec-draft-n-max", str(length)]
            if method != "draft":
                size = str(length) if method == "lookup" else "8"  # draftproof's default in merged
                arguments += ["--spec-ngram-simple-size-n", str(MATCH)]
                arguments += ["--spec-ngram-simple-size-m", size]
            done = subprocess.run(arguments, capture_output=True, timeout=600)
        output, log = (part.decode(errors="replace") for part in (done.stdout, done.stderr))
        print(log, file=sys.stderr)
        found = {what: (int(n), float(s)) for what, n, s in REPORTED.findall(log + output)}
        if done.returncode or len(found) < 2:
            lines = [line for line in log.splitlines() if " E " in line] or log.splitlines()
            raise ValueError(f"llama-speculative-simple: {lines[-1] if lines else 'no output'}")
        read, (tokens, seconds) = found["encoded"], found["decoded"]
        if read[0] != len(ids):
            raise ValueError(f"llama.cpp reads {read[0]} tokens where the prompt has {len(ids)}")
        answer = output.partition(text)[2].removesuffix("\n\n").removesuffix("\n\n")
        return {"text": answer, "tokens": tokens, "seconds": read[1] + seconds}


def _bindings(tools: Path, programs: Path) -> ModuleType:
    """llama-cpp-python's declarations, without the rest of the package and what that needs."""
    os.environ["LLAMA_CPP_LIB_PATH"] = str(programs)
    package = ModuleType("llama_cpp")
    package.__path__ = [str(tools / "llama_cpp")]
    sys.modules["llama_cpp"] = package
    return importlib.import_module("llama_cpp.llama_cpp")


def _version(programs: Path) -> str:
    program = programs / "llama-completion"
    if not program.exists():  # only the library was built
        return "unknown"
    done = subprocess.run([str(program), "--version"], capture_output=True, text=True)
    found = re.search(r"version: (.+)", done.stdout + done.stderr)
    return found[1] if found else "unknown"


if __name__ == "__main__":
    serve(LlamaCpp)
