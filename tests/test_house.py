"""The rules of the house, kept by reading the sources: who imports whom, sizes, names, randomness.

Each check is a function from (module, source) to complaints, so that the checks are themselves
tested on planted sources. Knows nothing of what the modules do.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import draftproof

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCE = REPOSITORY / "src" / "draftproof"

# Modules are named without the leading "draftproof."; the package itself is "draftproof".
# Every module is ruled by the first row that names it; "!" excludes. After the bar: what may come
# from outside besides the standard library (no bar: anything).
SERVES = "runners.base"
RUN = "runners.base runners.costs"
STEP = "scheduler drafts turns"
TABLE = f"""
tree                    <-  | torch
foreign_names           <-
sampling sampling.*     <- native foreign_names sampling.* | torch numpy
runners runners.*       <- tree clock native native.* runners runners.* | torch transformers
turns                   <-
counts                  <- tree
verify                  <- tree sampling | torch
writing                 <- tree sampling runners.base | torch
rules                   <- tree sampling verify writing runners.base | torch
request                 <- foreign_names tree sampling counts verify writing rules | torch
drafting.automaton drafting.script drafting.together <-
drafting.stage          <- tree sampling writing verify rules | torch
drafting drafting.*     <- tree sampling writing rules {RUN} drafting.* shapes | torch
proposers proposers.*   <- tree sampling writing {SERVES} drafting.* heads.* shapes | torch
methods                 <- proposers.* drafting.base heads.*
scheduler               <- request
drafts                  <- tree request writing rules runners.base scheduler drafting.base
engine                  <- tree verify writing request rules runners.base drafting.base {STEP}
llm                     <- * !server !server.* !cli !bench !bench.* !training !training.*
hf                      <- llm methods counts request sampling hf_options
hf_options              <-  | transformers
certify certify.*       <- llm rules counts tree sampling request runners.* analysis certify*
bench bench.*           <- * !server !server.* !cli !demo !demo.* !training !training.* !certify.*
demo demo.*             <- llm analysis methods text bundled bundled.* demo demo.* draftproof
bundled bundled.*       <- bundled bundled.*
prompts                 <- bundled bundled.* text
training.data training.data.sources training.data.entries training.data.rows <- training.data.*
training.jobs training.jobs.* <- * !server !server.* !cli !cli.* !demo.* !bench.* !certify.*
training training.*     <- runners runners.* heads.* analysis bundled training.*
server server.* cli cli.* draftproof __main__ <- *
native native.*         <- native native.*
text                    <- detokenizer
detokenizer             <-
heads.placed            <- heads.module tree runners.base | torch
heads heads.*           <- heads.module bundled | torch safetensors
intake                  <- request sampling text verify writing
places                  <-
analysis                <- tree
shapes                  <- analysis | numpy
clock                   <-  | torch
"""

METHODS = re.compile(
    r"n_?gram|suffix_?automaton|draft_?model|early[-_ ]?exit|medusa|look-?ahead|spec_?infer"
    r"|\bstaged\b",
    re.IGNORECASE,
)
MAY_TOUCH_GLOBALS = (  # scripts, which own their process, and what gives the generator back
    "bench bench.* training.trainer training.recipes.student training.recipes.joint"
)
ENVIRONMENT = "os.environ os.environb os.getenv os.getenvb os.putenv os.unsetenv"
GLOBAL_GENERATORS = (
    "random.* !random.Random !random.SystemRandom "
    "numpy.random.* !numpy.random.Generator !numpy.random.default_rng !numpy.random.SeedSequence "
    "torch.manual_seed torch.seed torch.initial_seed torch.default_generator torch.random.* "
    "torch.set_rng_state torch.get_rng_state torch.*.manual_seed torch.*.manual_seed_all"
)
TAKES_GENERATOR = "torch.rand* torch.normal torch.bernoulli torch.poisson torch.multinomial"
DRAWING_METHODS = (
    "multinomial bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_"
)


def modules() -> dict[str, tuple[Path, str]]:
    """Module name -> (path, source), for every file of the package."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "draftproof"
        found[name] = (path, path.read_text(encoding="utf-8"))
    return found


MODULES = modules()


def matches(name: str, patterns: str) -> bool:
    """Whether a pattern of the list fits and none with "!" does."""
    wanted = [p for p in patterns.split() if not p.startswith("!")]
    unwanted = [p[1:] for p in patterns.split() if p.startswith("!")]
    return any(fnmatchcase(name, p) for p in wanted) and not any(
        fnmatchcase(name, p) for p in unwanted
    )


def imports(module: str, source: str, is_package: bool, known: set[str]) -> Iterator[str]:
    """Full dotted names of all modules imported anywhere in the file, for type checking too."""
    here = ["draftproof"] if module == "draftproof" else ["draftproof", *module.split(".")]
    package = here if is_package else here[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield name if name.removeprefix("draftproof.") in known else base


def forbidden_imports(
    module: str, source: str, is_package: bool = False, known: set[str] | None = None
) -> list[str]:
    rows = (line.split("<-") for line in TABLE.strip().splitlines())
    allowed_here = next((right for left, right in rows if matches(module, left)), None)
    if allowed_here is None:
        return [f"{module}: no row of the table says what it may import; add it"]
    house, bar, outside = allowed_here.partition("|")
    complaints = []
    for name in imports(module, source, is_package, set(MODULES) if known is None else known):
        top = name.split(".")[0]
        if top == "draftproof":
            allowed = matches(name.removeprefix("draftproof."), house)
        else:
            allowed = not bar or top in outside.split() or top in sys.stdlib_module_names
        if not allowed:
            complaints.append(f"{module} must not import {name}")
    return complaints


def imported_names(tree: ast.AST) -> dict[str, str]:
    """Local name -> the dotted name that it was imported as."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    """`np.random.seed` -> "numpy.random.seed"; "" for what does not start at an import."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def draws_unasked(node: ast.AST, names: dict[str, str]) -> bool:
    """A call that takes random numbers from torch's global generator."""
    if not isinstance(node, ast.Call) or any(k.arg == "generator" for k in node.keywords):
        return False
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    return matches(dotted(node.func, names), TAKES_GENERATOR) or matches(method, DRAWING_METHODS)


def forbidden_globals(module: str, source: str) -> list[str]:
    """Uses of environment variables and of generators that were not passed in."""
    if matches(module, MAY_TOUCH_GLOBALS):
        return []
    tree = ast.parse(source)
    names = imported_names(tree)
    complaints = []
    for node in ast.walk(tree):
        name = dotted(node, names)
        if matches(name, ENVIRONMENT):
            complaints.append(f"{module}:{node.lineno} reads the environment: {name}")
        if matches(name, GLOBAL_GENERATORS):
            complaints.append(f"{module}:{node.lineno} uses a global generator: {name}")
        if draws_unasked(node, names):
            complaints.append(f"{module}:{node.lineno} draws without generator=")
    return complaints


def named_methods(module: str, source: str) -> list[str]:
    """Where the engine names a drafting method, or asks a proposer what it is."""
    complaints = [f"{module} names a method: {found.group()}" for found in METHODS.finditer(source)]
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"isinstance", "issubclass", "type"}
            and any("propos" in ast.unparse(argument).lower() for argument in node.args)
        ):
            complaints.append(f"{module}:{node.lineno} asks a proposer for its type")
    return complaints


def test_who_may_import_whom() -> None:
    complaints = []
    for name, (path, source) in MODULES.items():
        complaints += forbidden_imports(name, source, is_package=path.name == "__init__.py")
    assert complaints == []


def test_nothing_global() -> None:
    assert [c for name, (_, text) in MODULES.items() for c in forbidden_globals(name, text)] == []


def test_the_engine_names_no_method() -> None:
    for name in MODULES.keys() & {"engine", "scheduler"}:
        assert named_methods(name, MODULES[name][1]) == []


def test_no_drawer_for_odds_and_ends() -> None:
    vague = {"utils", "util", "core", "common", "helpers"}
    paths = [path.relative_to(SOURCE) for path in SOURCE.rglob("*")]
    assert [p for p in paths if p.name.split(".")[0] in vague] == []


def test_files_are_short_and_say_what_they_are() -> None:
    complaints = []
    for name, (_, source) in MODULES.items():
        limit = 150 if matches(name, "proposers.* drafting.*") else 300
        if (lines := len(source.splitlines())) >= limit:
            complaints.append(f"{name}: {lines} lines, the limit is {limit - 1}")
        if not ast.get_docstring(ast.parse(source)):
            complaints.append(f"{name}: no docstring")
    assert complaints == []


def test_tests_import_nothing_from_one_another() -> None:
    """What they share lies in tests/support."""
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        found = imports("draftproof.x", path.read_text(encoding="utf-8"), False, set())
        assert not [name for name in found if name.startswith("test_")], path


def test_public_names() -> None:
    public = draftproof.__all__
    assert list(public) == sorted(set(public))
    assert [name for name in public if not hasattr(draftproof, name)] == []
    own = {n for n, v in vars(draftproof).items() if not isinstance(v, types.ModuleType)}
    leaked = {n for n in own if not n.startswith("_")} - {*public, "annotations"}
    assert leaked == set()


def test_documents_speak_to_readers() -> None:
    documents = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md"]
    documents += sorted((REPOSITORY / "docs").rglob("*.md"))
    for path in documents:
        for line in path.read_text(encoding="utf-8").splitlines():
            assert "/work/" not in line and "session" not in line.lower(), (path.name, line)


def test_the_former_name_is_gone() -> None:
    """Only the reader of old files, its test, this line, and history still know it."""
    former = "fore" + "token"
    may = {"CHANGELOG.md", "docs/log.md", "src/draftproof/heads/files.py", "tests/test_medusa.py"}
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
    )
    paths = [Path(name) for name in listed.stdout.decode().split("\0") if name]
    if listed.returncode:  # a source distribution
        folders = ("src", "tests", "docs", "examples")
        paths = [p.relative_to(REPOSITORY) for f in folders for p in (REPOSITORY / f).rglob("*")]
    assert len(paths) > 200
    found = []
    for path in paths:
        file = REPOSITORY / path
        text = file.read_bytes().decode(errors="ignore") if file.is_file() else ""
        if former in f"{path} {text}".lower():
            found.append(str(path))
    assert [path for path in found if path not in may and "__pycache__" not in path] == []


KNOWN = {"tree", "engine", "llm", "hf", "verify", "cli", "bundled.corpus"}
KNOWN |= {"demo.show", "proposers.medusa", "drafting.base", "runners.base", "training.heads"}


@pytest.mark.parametrize(
    ("module", "source", "guilty"),
    [
        ("tree", "import torch, math\nfrom torch.nn import functional", False),
        ("tree", "import numpy", True),
        ("sampling", "from .tree import TokenTree", True),
        ("verify", "from draftproof.tree import A\nfrom . import tree", False),
        ("verify", "def late():\n    import draftproof.engine", True),
        ("runners.torch", "import transformers\nfrom . import base\nfrom ..tree import A", False),
        ("runners.torch", "from .. import verify", True),
        (
            "proposers.ngram",
            "from ..drafting.base import Proposer\nfrom ..runners import base",
            False,
        ),
        ("proposers.ngram", "from . import medusa", True),
        ("proposers.ngram", "from draftproof.runners.torch import TorchRunner", True),
        ("proposers.ngram", "if TYPE_CHECKING:\n    from ..engine import Engine", True),
        ("proposers", "from ..engine import Engine", True),
        ("engine", "from .verify import verify\nimport numpy", False),
        ("engine", "from draftproof.training import heads", True),
        ("llm", "from draftproof import engine\nfrom .hf import generate", False),
        ("llm", "from . import cli", True),
        ("training.recipes.draft", "from draftproof.engine import Engine", True),
        ("training.jobs.draft", "from draftproof.demo import show", True),
        ("cli", "import draftproof.training.heads, draftproof", False),
        ("novelty", "import math", True),  # no row of the table
    ],
)
def test_a_planted_import_is_found(module: str, source: str, guilty: bool) -> None:
    is_package = module == "proposers"
    assert bool(forbidden_imports(module, source, is_package, KNOWN)) is guilty


@pytest.mark.parametrize(
    ("source", "guilty"),
    [
        ("import torch\ntorch.manual_seed(1)", True),
        ("import torch as t\nt.cuda.manual_seed_all(1)", True),
        ("import torch\ng = torch.Generator().manual_seed(1)\ntorch.rand(2, generator=g)", False),
        ("import torch\ntorch.rand(2)", True),
        ("def draw(p):\n    return p.multinomial(1)", True),
        ("from random import shuffle\nshuffle([])", True),
        ("import random\nr = random.Random(1)\nr.shuffle([])", False),
        ("import numpy as np\nnp.random.seed(1)", True),
        ("import numpy as np\nnp.random.default_rng(1).normal()", False),
        ("from os import environ as e\ne.get('A')", True),
    ],
)
def test_a_planted_global_is_found(source: str, guilty: bool) -> None:
    assert bool(forbidden_globals("sampling", source)) is guilty
    assert forbidden_globals("training.trainer", source) == []


@pytest.mark.parametrize(
    ("source", "guilty"),
    [
        ("drafted = proposer.propose(requests)", False),
        ("isinstance(params, SamplingParams)", False),
        ("isinstance(self.proposer, Fancy) or isinstance(it, Proposer)", True),
        ("def is_early_exit(): ...", True),
    ],
)
def test_a_planted_method_name_is_found(source: str, guilty: bool) -> None:
    assert bool(named_methods("engine", source)) is guilty
