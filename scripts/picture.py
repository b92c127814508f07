"""The README's picture: `python scripts/picture.py docs/demo.svg`.

What `draftproof demo` shows at the end of one prompt, on a terminal of 110 columns.
"""

from __future__ import annotations

import io
import sys

from rich.console import Console

from draftproof import SamplingParams
from draftproof.bundled.prompts import PROMPTS
from draftproof.demo import precision, show
from draftproof.demo.race import Race, Writer, runners


def main() -> None:
    """Write one prompt plainly and with the draft, and save the last screen as an SVG."""
    options = show.Options(prompts=1, max_tokens=72, temperature=0.7, seed=3, dtype=precision(None))
    params = SamplingParams(
        temperature=options.temperature, max_tokens=options.max_tokens, seed=options.seed
    )
    console = Console(record=True, width=110, file=io.StringIO(), force_terminal=True)
    with runners(options.methods, params, PROMPTS[0], dtype=options.dtype) as llms:
        writers = [Writer(method, llm, PROMPTS[0], params) for method, llm in llms.items()]
        race = Race(PROMPTS[0], writers)
        race.run(together=False, order=0, each_step=lambda: None)
    console.print(show.panels(race, "temperature 0.7", console.width))
    show.account([race], options, console)
    console.save_svg(sys.argv[1], title="draftproof demo --temperature 0.7")


if __name__ == "__main__":
    main()
