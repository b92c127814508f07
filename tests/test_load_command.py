"""`draftproof load` as a command, against a fake server and against ours."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draftproof.server.settings import digest
from fake_server import FakeServer, Reply
from serving import NAME, Server

SMALL = ("--max-tokens", "12")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(keys=(digest("sesame"),)) as made:
        yield made


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.txt"
    path.write_text("one two\n\nthree four\n\nfive six seven\n\neight\n")
    return str(path)


def test_the_same_text_with_speculation_on_and_off_under_load(
    server: Server, prompts: str, run: Any, tmp_path: Path
) -> None:
    """And one changed text of the reference is found."""
    common = (server.url, "--api-key", "sesame", "--prompts", prompts, *SMALL, "--calls", "8")
    common += ("--temperature", "0.8", "--seed", "3", "--ignore-eos")
    path = tmp_path / "plain.json"
    plain = run("load", *common, "--body", '{"speculative": false}', "--out", str(path))
    assert plain.code == 0, plain.err
    drafted = run("load", *common, "--clients", "1,4", "--reference", str(path), "--cold")
    assert drafted.code == 0, drafted.out + drafted.err
    assert "16 texts equal the reference's, 0 differ" in drafted.out
    assert "1 client" in drafted.out and "4 clients" in drafted.out

    found = json.loads(path.read_text())
    (level,) = found["levels"]
    assert found["model"] == NAME and found["options"]["body"] == {"speculative": False}
    assert level["tokens"] == 8 * 12 and level["failures"] == {}
    assert all(each["usage"]["completion_tokens"] == 12 for each in level["answers"])
    drafts = [each["usage"]["completion_tokens_details"] for each in level["answers"]]
    assert all(each["accepted_prediction_tokens"] == 0 for each in drafts)

    for each in level["answers"]:
        if each["prompt"].endswith(":2"):
            each["text"] = each["text"][:-1] + "?!"
    path.write_text(json.dumps(found))
    changed = run("load", *common, "--reference", str(path))
    assert changed.code == 1 and "6 texts equal the reference's, 2 differ" in changed.out
    assert "prompts.txt:2, turn 1, character" in changed.out and "'?!'" in changed.out

    other = run("load", *common, "--reference", str(path), "--seed", "4")
    assert other.code == 2 and "the reference has none of these answers" in other.err


def test_chats_arrivals_json_and_picture(
    server: Server, prompts: str, run: Any, tmp_path: Path
) -> None:
    picture = tmp_path / "sweep.png"
    words = (server.url + "/v1/", "--api-key", "sesame", "--prompts", prompts, *SMALL, "--chat")
    words += ("--arrivals", "poisson", "--request-rate", "50,100", "--system", "brief", "--json")
    words += ("--ttft-limit", "0", "--tpot-limit", "60000", "--picture", str(picture))
    result = run("load", *words)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert [level["level"] for level in found["levels"]] == ["50/s poisson", "100/s poisson"]
    assert all(level["calls"] == 4 and level["tokens"] for level in found["levels"])
    assert all(level["good"] == 0 for level in found["levels"])  # no first token takes no time
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_wrong_key_and_a_prompt_that_is_too_long(
    server: Server, prompts: str, run: Any, tmp_path: Path
) -> None:
    wrong = run("load", server.url, "--api-key", "x")
    assert wrong.code == 2 and wrong.out == "" and wrong.err.count("\n") == 1
    assert "says 401, the API key is wrong or missing" in wrong.err and "--api-key" in wrong.err
    assert run("load", server.url, "--api-key", "é").code == 2
    named = run("load", server.url, "--model", NAME)
    assert named.code == 2 and "the first calls failed: 401" in named.err
    long = (server.url, "--api-key", "sesame", "--prompts", prompts, "--max-tokens", "9999")
    refused = run("load", *long, "--warm", "0", "--out", str(tmp_path / "x"))
    assert refused.code == 2 and "4 of 4 calls failed: 400" in refused.err
    assert json.loads((tmp_path / "x" / "load.json").read_text())["levels"][0]["tokens"] == 0


def test_no_server(run: Any) -> None:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))  # and listens for nothing
        result = run("load", f"http://127.0.0.1:{made.getsockname()[1]}")
    assert result.code == 2 and result.err.count("\n") == 1
    assert "no server answers at http://127.0.0.1" in result.err


def test_a_server_that_refuses_some(run: Any, prompts: str) -> None:
    answered = iter([200, 429, 200, 200, 429])
    with FakeServer(lambda body: Reply(status=next(answered))) as server:
        result = run("load", server.url, "--prompts", prompts, "--warm", "1")
    assert result.code == 2 and "1 client: 2 of 4 failed, 429" in result.out
    assert "2 of 4 calls failed: 429, status 429 it is" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--clients", "1,x"), "--clients is '1,x'"),
        (("--clients", "1,1"), "name each number once"),
        (("--clients", "1.5"), "whole numbers"),
        (("--clients", "0"), "above 0"),
        (("--clients", "9", "--num-prompts", "3"), "9 clients have 3 calls in all: add --calls"),
        (("--request-rate", "2"), "--request-rate needs --arrivals"),
        (("--arrivals", "poisson"), "needs --request-rate"),
        (("--arrivals", "poisson", "--request-rate", "inf"), "above 0"),
        (("--arrivals", "fixed", "--request-rate", "1", "--clients", "2"), "drop --clients"),
        (("--arrivals", "no-such"), "cannot read the arrivals no-such"),
        (("--body", "{"), "--body is not JSON"),
        (("--body", "[]"), "--body must be an object"),
        (("--body", '{"x": NaN}'), "cannot be sent as JSON"),
        (("--body", '{"x": "\udc80"}'), "--body is not UTF-8 text (byte 7)"),
        (("--temperature", "nan"), "--temperature is nan"),
        (("--temperature", "inf"), "--temperature is inf: give a finite number"),
        (("--ttft-limit", "inf"), "--ttft-limit is inf: give a finite number"),
        (("--system", "\udc80"), "--system is not UTF-8 text (byte 0)"),
        (("--body", '{"seed": 1}'), "--body may not have seed"),
        (("--prompts", "held-out"), "held-out prompts are cut by a tokenizer"),
        (("--prompts", "no-such"), "no such file"),
        (("--num-prompts", "0"), "--num-prompts must be 1 or more"),
        (("--max-tokens", "0"), "--max-tokens must be 1 or more"),
        (("--reference", "no-such"), "cannot read the reference no-such"),
        (("--out", "/dev/null"), "results to /dev/null: /dev/null is a file; give another folder"),
        (("--out", "/dev/null/x"), "; give another folder as --out, or a name that ends in .json"),
        (("--picture", "sweep"), "--picture sweep is no file that ends in ."),
        (("--picture", "sweep.foo"), "--picture sweep.foo is no file that ends in ."),
        (("--picture", "/dev/null/x.png"), "--picture /dev/null/x.png: /dev/null is a file; give"),
        (("--rate", "1"), "write --arrivals poisson --request-rate X"),
    ],
)
def test_refusals(run: Any, words: tuple[str, ...], said: str) -> None:
    result = run("load", "http://127.0.0.1:9", *words)
    assert result.code == 2 and said in " ".join(result.err.split()), result.err
    assert result.err.count("\n") == 1 and result.out == ""


def test_an_address_that_is_none(run: Any) -> None:
    assert "is no address: write http://" in run("load", "127.0.0.1:8000").err


def test_a_password_in_an_address_is_sent_and_shown_nowhere(
    run: Any, prompts: str, tmp_path: Path
) -> None:
    with FakeServer() as server:
        words = (server.url.replace("//", "//user:sesame@"), "--prompts", prompts)
        done = run("load", *words, "--out", str(tmp_path))
        assert done.code == 0 and "Authorization: Basic" in server.heads[-1]
    failed = run("load", *words)  # the server has gone
    said = (tmp_path / "load.json").read_text() + "".join(map(str, [*done, *failed]))
    said += run("load", "http://user:sesame@localhost:0").err
    assert said.count(server.url) == 3 and "localhost:0' is no address" in said
    assert "sesame" not in said and "user:" not in said


PROGRAM = "import sys; from draftproof import cli\ntry: cli.main()\nfinally: print(*sys.modules)"


def test_an_interrupt_shows_what_is_finished_and_no_torch_is_loaded(
    prompts: str, tmp_path: Path
) -> None:
    """The third of four calls never ends."""
    replies = iter([Reply(), Reply(), Reply(end="hang")])
    out = tmp_path / "load.json"
    with FakeServer(lambda body: next(replies)) as server:
        words = ["load", server.url, "--prompts", prompts, "--warm", "0", "--out", str(out)]
        command = [sys.executable, "-c", PROGRAM, *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
            assert server.called(3)
            process.send_signal(signal.SIGINT)
            shown, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said, said
    assert "incomplete: interrupted" in shown and "written" in said
    *_, modules = shown.splitlines()
    assert not {"torch", "transformers", "numpy", "matplotlib"} & {*modules.split()}
    found = json.loads(out.read_text())
    assert found["incomplete"] and len(found["levels"][0]["answers"]) == 2


def test_a_reference_is_not_written_over(run: Any, tmp_path: Path) -> None:
    (path := tmp_path / "load.json").write_text("{}")
    for out in (tmp_path, path):
        result = run("load", "http://127.0.0.1:9", "--reference", str(path), "--out", str(out))
        assert result.code == 2 and path.read_text() == "{}"
    path.write_text(json.dumps({"levels": []}))
    result = run("load", "http://127.0.0.1:9", "--reference", str(path), "--out", str(tmp_path))
    assert result.code == 2 and "would replace the reference" in " ".join(result.err.split())
