"""The simulation of replicas: what can be reckoned by hand comes out, and it can be checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

import fleet
import scale
from draftproof.runners.costs import PassCosts
from machines import Machine, Own, read_costs
from simulated import Trace, fixed


@pytest.fixture(scope="module")
def costs() -> PassCosts:
    return read_costs(scale.COSTS)


def calls(count: int, **more: Any) -> list[fleet.Call]:
    asked = {"prompt": 1, "tokens": 40, "kind": "mixed"} | more
    return [fleet.Call(due=0.0, number=number, **asked) for number in range(count)]


@pytest.mark.parametrize("clients", [1, 4, 16])
def test_plain_decoding_takes_a_pass_a_token(costs: PassCosts, clients: int) -> None:
    """One pass reads the prompts and gives first tokens; each of the others a token of each."""
    made = fleet.Fleet(Machine(costs), 0, 1)
    found = made.clients(clients, calls(clients), apart=0)
    assert made.replicas[0].now == pytest.approx(40 * costs.seconds(clients), rel=1e-6)
    for each in found:
        assert each.first_s == pytest.approx(costs.seconds(clients), rel=1e-6)
        assert each.per_token_s == pytest.approx(costs.seconds(clients), rel=1e-6)


@pytest.mark.parametrize("clients", [1, 4])
def test_a_step_takes_what_its_texts_do(costs: PassCosts, clients: int) -> None:
    """Besides its pass: for itself, each text, each token behind which one is, and its prompts."""
    own = Own(step=0.003, text=0.002, token=1e-4, prompt=0.005, read=3e-4)
    made = fleet.Fleet(Machine(costs, own=own), 0, 1)
    made.clients(clients, calls(clients), apart=0)
    behind = sum(1 + written for written in range(1, 40))  # of a text, in the steps that write it
    more = 40 * (own.step + own.text * clients) + own.token * behind * clients
    more += clients * (own.prompt + own.read)  # a prompt of one token
    assert made.replicas[0].now == pytest.approx(40 * costs.seconds(clients) + more, rel=1e-6)


def test_the_table_is_that_of_the_file(tmp_path: Path) -> None:
    """And not on its way to the shipped curve, as one that another process goes on from."""
    taught = PassCosts()
    for _ in range(40):
        for rows in (1, 2, 4, 8, 16, 32, 64):
            taught.observe(rows, 0, 0.001 * (1 + rows / 100))
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({"costs": [{"costs": taught.learnt()["costs"]}]}))
    read = read_costs(file)
    for rows in (1, 4, 16, 64):
        assert read.seconds(rows) == pytest.approx(0.001 * (1 + rows / 100), rel=0.03)


@pytest.mark.parametrize("longest", [1, 4])
def test_a_fixed_length_takes_what_is_reckoned(costs: PassCosts, longest: int) -> None:
    made = fleet.Fleet(Machine(costs, price=0.1), longest, 1)
    made.clients(1, calls(1, tokens=300))
    trace = Trace.made("mixed", 301, 0)
    trace.right[0] = trace.right[1] = True  # the prompt and its first token
    curve = [(rows, costs.seconds(rows) / costs.one) for rows in range(1, 20)]
    wanted = (1 + fixed(trace, curve, 0.1, longest, free=False)) * costs.one
    # The end of a text is drafted for as far as there is room alone.
    assert made.replicas[0].now == pytest.approx(wanted, rel=0.02)


def test_the_controller_loses_nothing_where_nothing_can_be_won(costs: PassCosts) -> None:
    machine = Machine(costs, places=32)
    times = {}
    for policy in (0, 4, fleet.AUTO):
        made = fleet.Fleet(machine, policy, 1)
        made.clients(32, calls(64, kind="hopeless"))
        times[policy] = made.replicas[0].now
    assert times[fleet.AUTO] < 1.01 * times[0] < times[4] / 1.5


@pytest.mark.parametrize("policy", [0, 2, fleet.AUTO])
def test_every_call_is_served_in_time_and_once(costs: PassCosts, policy: Any) -> None:
    arriving = scale.poisson(2.0, 60, seed=4)
    found = fleet.Fleet(Machine(costs, places=4), policy, 3, seed=4).run(arriving)
    assert [each.call for each in found] == arriving
    for each in found:
        assert each.call.due < each.first < each.end


def test_a_group_finds_its_prefix_where_it_was(costs: PassCosts) -> None:
    machine = Machine(costs, shared=256)
    arriving = scale.poisson(3.0, 300, seed=5, prompt=320)
    read = {}
    for route in (fleet.anyone, fleet.prefix):
        found = fleet.Fleet(machine, 0, 8, route, seed=5).run(arriving)
        read[route] = sum(each.read for each in found)
    assert read[fleet.prefix] < 0.6 * read[fleet.anyone]


def answer(due: float, read: int, tokens: int, fault: str | None = None) -> dict[str, Any]:
    """As `draftproof load --out` has it; a sixth of the prompt was cached."""
    usage = {
        "prompt_tokens": read * 6 // 5,
        "completion_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": read // 5},
    }
    return {"due_ms": 1e3 * due, "sent_ms": 1e3 * due, "usage": usage, "fault": fault}


def summary(costs: PassCosts, clients: int) -> dict[str, Any]:
    """As `draftproof load --out` has it, of a server that is what is simulated."""
    found = fleet.Fleet(Machine(costs), 0, 1).clients(clients, calls(32, prompt=20))
    seconds = max(each.end for each in found)
    middle = sorted(found, key=lambda each: each.first_s)[16]
    return {
        "level": f"{clients} clients",
        "clients": clients,
        "rate": None,
        "tokens_per_s": 32 * 40 / seconds,
        "first_token_ms": {"p50": 1e3 * middle.first_s},
        "per_token_ms": {"p50": 1e3 * sorted(each.per_token_s for each in found)[16]},
        "answers": [answer(each.call.due, 20, 40) for each in found],
    }


def test_predicted_stands_beside_measured(costs: PassCosts, tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    levels = [summary(costs, clients) for clients in (1, 8)]
    levels[1]["tokens_per_s"] *= 2  # a server twice as fast as its costs say
    file.write_text(json.dumps({"levels": levels}))
    told = scale.checked(file, Machine(costs), 0, "mixed").splitlines()
    assert told[1].split()[5] == "1.00" and told[2].split()[5] == "0.50"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"costs": "none.json"}, "cannot read "),
        ({"costs": "EMPTY"}, "has no costs of passes"),
        ({"check": "EMPTY"}, "is no file of draftproof load"),
        ({"check": "FAILED"}, "no call was answered"),
        ({"check": "EMPTY", "policy": "much"}, "policy 'much' is unknown"),
        ({"kind": "dull"}, "kind 'dull' is unknown"),
        ({"price": -1.0}, "--price is -1"),
        ({"places": 0}, "--places is 0"),
        ({"own": "EMPTY"}, "is no JSON of own.py"),
    ],
)
def test_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: dict[str, Any], says: str
) -> None:
    (tmp_path / "EMPTY").write_text("{}")
    level = {"level": "1 client", "answers": [answer(0.0, 5, 5, fault="refused")]}
    (tmp_path / "FAILED").write_text(json.dumps({"levels": [level]}))
    given = {
        name: tmp_path / word if name in ("costs", "check", "own") else word
        for name, word in words.items()
    }
    with pytest.raises(typer.Exit) as end:
        scale.main(**given, out=tmp_path / "plan.json")
    assert end.value.exit_code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line and not (tmp_path / "plan.json").exists()
