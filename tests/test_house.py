"""The rules of the house, kept by reading the sources: who imports whom, sizes, public names.

Each check is a function from (module, source) to complaints, so that the checks are themselves
tested on planted sources. Knows nothing of what the modules do.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator

import pytest

import draftproof
from sources import MODULES, REPOSITORY, SOURCE, matches

# Modules are named without the leading "draftproof."; the package itself is "draftproof".
# Every module is ruled by the first row that names it; "!" excludes. After the bar: what may come
# from outside besides the standard library (no bar: anything).
RUN = "runners.base runners.costs runners.curves"
STEP = "scheduler drafts scoring turns"
ASKED = "asked request sampling verify writing runners.base"
KEPT = "runners.kept runners.measuring"
HEARD = "encoder_intake intake generation runners.hearing"
OFFER = "drafting.base drafting.adopting drafting.lawful"
SAMPLED = "counts templates text sampling sampling.*"
READ = "conversations training.data.*"
SERVED = "!server !server.* !ray !ray.*"
FOLDERS = "out_folders runners.* heads.files drafting.beside export.* | torch transformers"
OUTLINED, FETCHED = "configurations runners.outline", "torch transformers huggingface_hub"
WEB = "| fastapi starlette uvicorn msgspec prometheus_client pydantic pydantic_core"
TABLE = f"""
tree                    <-  | torch
configurations          <-  | huggingface_hub transformers
foreign_names kinds allocator conversations <-
sampling sampling.*     <- native foreign_names sampling.* | torch numpy
hub                     <-  | huggingface_hub
gguf gguf.*             <- configurations gguf.* | numpy tokenizers gguf {FETCHED}
runners.claims          <-  |
runners.outline         <- configurations | torch transformers
runners.loading         <- hub {OUTLINED} runners.claims runners.kv | {FETCHED}
runners.checkpoint      <- hub runners.* | torch transformers safetensors
runners.gguf_checkpoint <- configurations native gguf.* runners.* | torch transformers
runners.four_bits       <- native runners.weights | torch
runners.quantised_checkpoint <- hub runners.* | torch transformers
runners.choice          <- native gguf.* runners runners.* | torch
runners.slices          <- runners.curves
runners.curves          <-  | numpy
runners.costs           <- tree clock runners.base runners.* | torch numpy
runners.kept            <- clock | torch platformdirs
runners.packed_files    <-  | numpy platformdirs
runners.packing         <- native native.* runners.* | torch transformers numpy
runners.encoders        <- hub configurations gguf.reader runners.* | torch transformers
runners runners.*       <- tree clock native native.* runners runners.* | torch transformers
turns                   <-
counts                  <- tree
verify                  <- tree sampling | torch
writing                 <- tree sampling counts verify runners.base | torch
rules                   <- tree sampling verify writing runners.base | torch
request         <- foreign_names tree sampling counts verify writing rules runners.base | torch
drafting.automaton drafting.ngrams drafting.script drafting.together <-
drafting.own            <- writing
drafting.place          <-  | numpy
drafting.following      <- drafting.automaton
drafting.handle         <- native
drafting.structures     <- drafting.handle
drafting.looks          <- native writing drafting.base drafting.handle drafting.structures
drafting.compiled <- native drafting.following drafting.handle drafting.ngrams drafting.structures
drafting.base           <- tree writing runners.base foreign_names kinds | torch
drafting.stage          <- tree sampling writing verify rules | torch
drafting drafting.*     <- tree sampling writing rules {RUN} drafting.* shapes | torch
proposers proposers.*   <- tree sampling writing {RUN} drafting.* heads.* shapes | torch
methods                 <- proposers.* drafting.adopting drafting.base heads.*
memory                  <- request writing runners.base runners.kv runners.rows | torch
prefixes                <- request runners.rows
scheduler               <- request memory prefixes runners.costs
scoring                 <- tree request scheduler drafts runners.base
drafts                  <- tree counts request writing rules sampling {RUN} scheduler {OFFER}
engine                  <- tree verify writing request rules {RUN} drafting.base {STEP}
profiles                <- tree {RUN} {KEPT} drafting.base proposers.auto methods | torch
tuning tuning.*         <- * {SERVED} !cli !cli.* !bench !bench.* !training.* !demo.*
models                  <- hub native places bundled runners runners.* | torch
generation              <-  | torch transformers
encoder_intake          <- {ASKED} intake generation | torch
audio_intake            <- {ASKED} {HEARD} | torch transformers
convert       <- hub native places bundled out_folders gguf.* runners.* vocabularies | torch numpy
export export.*         <- hub places bundled profiles methods convert gguf.* vocabularies {FOLDERS}
chunks                  <- engine request text
llm                     <- * {SERVED} !cli !bench !bench.* !training !training.*
hf  <- llm profiles rules counts kinds sampling hf_bound hf_inputs hf_options hf_rows foreign_names
hf_bound                <- grammars.store intake sampling | torch
hf_inputs               <- runners.base | torch
hf_options              <-  | transformers
hf_rows                 <- hf_bound request | torch transformers
certify certify.*       <- llm rules counts tree sampling request runners.* analysis certify*
quality quality.*   <- llm runners.* tree sampling pictures tables out_folders quality quality.*
pictures out_folders    <-  |
tables                  <-  | rich
bench bench.*           <- * {SERVED} !cli !demo !demo.* !training !training.* !certify.*
demo demo.*             <- llm models analysis methods text bundled bundled.* demo demo.* draftproof
bundled bundled.*       <- bundled bundled.*
prompts                 <- conversations bundled bundled.* templates
traffic traffic.*       <- prompts pictures out_folders traffic.* | httpx2 rich matplotlib
training.data training.data.files training.data.sources <- {READ}
training.data.entries training.data.rows <- {READ}
training.jobs training.jobs.* <- * {SERVED} !cli !cli.* !demo.* !bench.* !certify.*
training training.* <- allocator out_folders runners runners.* heads.* analysis bundled training.*
fingerprints            <- tree runners.base sampling | torch
resuming                <- request
batch batch.*           <- batch.* llm request sampling server.* | msgspec pydantic_core
server server.*         <- llm request asked intake fingerprints {SAMPLED} server.* {WEB}
ray.affinity            <- asked templates
ray.gathered ray.scaling <-  |
ray.options             <- cli cli.*
ray.deployments         <- ray.* cli.* server.*
ray.batch               <- bundled batch.* cli.* | ray
ray ray.*               <- llm request ray.* server.* {WEB}
cli.batch               <- cli.* batch.* interrupts llm ray.batch |
cli cli.* draftproof __main__ <- * !ray !ray.*
native native.*         <- native native.*
text                    <- detokenizer
templates               <-
vocabularies            <- allocator configurations hub gguf.* | transformers
detokenizer             <-
heads.placed            <- heads.module tree runners.base runners.reduced | torch
heads heads.*           <- heads.module bundled | torch safetensors
asked                   <- sampling
intake                  <- {ASKED} resuming templates text grammars.store
grammars.store          <- grammars.* request sampling.grammars | llguidance
grammars grammars.*     <- grammars.* sampling sampling.grammars | llguidance torch numpy
places                  <- bundled gguf.reader hub
analysis                <- tree
shapes                  <- analysis | numpy
clock                   <-  | torch
interrupts              <-  |
"""


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


def test_who_may_import_whom() -> None:
    complaints = []
    for name, (path, source) in MODULES.items():
        complaints += forbidden_imports(name, source, is_package=path.name == "__init__.py")
    assert complaints == []


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


def test_files_of_tests_are_short() -> None:
    """Support and stress included."""
    sizes = {
        str(path.relative_to(REPOSITORY)): len(path.read_text(encoding="utf-8").splitlines())
        for path in (REPOSITORY / "tests").rglob("*.py")
    }
    assert len(sizes) > 100
    assert {name: lines for name, lines in sizes.items() if lines > 300} == {}


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
        ("server.app", "import fastapi\nfrom draftproof.llm import LLM", False),
        ("server.app", "from draftproof import verify", True),
        ("server.app", "import torch", True),
        ("novelty", "import math", True),  # no row of the table
    ],
)
def test_a_planted_import_is_found(module: str, source: str, guilty: bool) -> None:
    is_package = module == "proposers"
    assert bool(forbidden_imports(module, source, is_package, KNOWN)) is guilty
