"""How long published captions of LLaVA-1.5-7B are and how many objects they name, sentence by sentence.

    python benchmarks/scale/captions.py shared/data/chair/captions/llava-1.5_greedy.jsonl

Writes `captions.json` beside this script: of each caption, for each sentence, its words and the objects (lexicon
`open`) that it names first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from seewhen.benchmarks.records import read_answers
from seewhen.verdicts.lexicon import open_lexicon
from seewhen.verdicts.reader import read_mentions
from seewhen.verdicts.sentences import sentence_ends

RESULT = Path(__file__).with_name("captions.json")


def sentences(caption: str) -> list[tuple[int, int]]:
    """(words, objects named first) of each sentence."""
    ends = sentence_ends(caption)
    if not ends or caption[ends[-1] :].strip():
        ends.append(len(caption))
    mentions, seen, found, start = read_mentions(caption, open_lexicon()), set[str](), [], 0
    for end in ends:
        named = {each.object for each in mentions if start <= each.start < end} - seen
        found.append((len(caption[start:end].split()), len(named)))
        seen |= named
        start = end
    return found


def main() -> None:
    captions = read_answers(Path(sys.argv[1]), ("image_id",)).values()
    RESULT.write_text(json.dumps([sentences(caption) for caption in captions]) + "\n")


if __name__ == "__main__":
    main()
