"""Options of all commands: one name, one meaning, one type, in one order, from one table."""

from __future__ import annotations

from itertools import combinations
from typing import Any, get_args

import pytest

from draftproof import cli, methods
from draftproof.cli import commands, options

EVERY = commands.every(cli.group())
SEVERAL = {
    "--temperature",
    "--rule",
    "--dtype",
    "--draft",
    "--heads",
    "--api-key",
}  # of which a comparison takes a list


TABLE = {  # the options that the module names
    name: args[1]
    for name, each in vars(options).items()
    if len(args := get_args(each)) > 1 and hasattr(args[1], "param_decls")
}


def listed(command: Any) -> dict[str, Any]:
    """The options of a command by name, in the order of its help."""
    params = [param for param in command.params if param.param_type_name == "option"]
    found = {param.opts[0]: param for param in params if param.opts[0] != "--help"}
    panels = list(dict.fromkeys(param.rich_help_panel for param in found.values()))
    return dict(sorted(found.items(), key=lambda pair: panels.index(pair[1].rich_help_panel)))


def about(param: Any, several: bool) -> tuple[Any, ...]:
    """What must be the same wherever the name stands."""
    value = param.type_descriptor.annotation
    kind = (get_args(value) or (value,))[0], param.is_flag, several or param.multiple
    text = param.help.replace("; repeatable", "") if several else param.help
    return param.opts, kind, text, param.metavar


@pytest.mark.parametrize(("first", "second"), list(combinations(EVERY, 2)))
def test_one_name_one_meaning(first: str, second: str) -> None:
    ours, theirs = listed(EVERY[first]), listed(EVERY[second])
    for name in ours.keys() & theirs.keys():
        wanted = about(ours[name], name in SEVERAL)
        assert about(theirs[name], name in SEVERAL) == wanted, name
    in_ours = [name for name in ours if name in theirs]
    assert [name for name in theirs if name in ours] == in_ours


@pytest.mark.parametrize("name", EVERY)
def test_what_several_commands_have_is_in_the_table(name: str) -> None:
    others = {
        option for other, command in EVERY.items() if other != name for option in listed(command)
    }
    helps = {info.help for info in TABLE.values()}
    for option, param in listed(EVERY[name]).items():
        if option in others:
            assert param.help in helps or option in SEVERAL, option


@pytest.mark.parametrize(
    "name", [name for name in EVERY if name not in ("info", "demo", "load", "batch", "export")]
)
def test_the_argument_is_a_model(name: str) -> None:
    first = next(param for param in EVERY[name].params if param.param_type_name == "argument")
    assert (first.metavar, first.required) == ("MODEL", True)
    assert first.help == "Hub id, folder, GGUF file, or `bundled`."


@pytest.mark.parametrize("name", EVERY)
def test_options_of_methods(name: str) -> None:
    """A command that takes methods takes them under both spellings, any number of times."""
    for param in EVERY[name].params:
        if "--method" in param.opts or "--methods" in param.opts:
            assert param.opts == ["--method", "--methods"] and param.multiple
            assert all(method in param.help for method in [*methods.METHODS, methods.ALL])


def test_every_line_of_help_says_something_of_its_own() -> None:
    lines = [info.help for alias, info in TABLE.items() if not alias.endswith("Penalty")]
    assert len(lines) == len({*lines}) and all(line.endswith(".") for line in lines)
