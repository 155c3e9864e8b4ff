"""The sentences that the word count reads: seeded, as JSON lines in files of one batch's part each, and an independent count."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections import Counter
from pathlib import Path

LINES, FILES, WORDS_A_LINE = 2_000_000, 20, 8
VOCABULARY, USERS = 5_000, 10_000
# A minute of 2023; only the order of the files' times matters.
FIRST_FILE_TIME = 1_700_000_000


def generate(folder: Path, lines: int = LINES, files: int = FILES) -> None:
    """Write `lines` records in `files` files: words and users by Zipf's law, as texts and visitors have them."""
    choose = random.Random(42)
    folder.mkdir(parents=True)
    words = _vocabulary(choose)
    word_weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(VOCABULARY)))
    user_weights = list(itertools.accumulate(1 / (rank + 1) ** 0.8 for rank in range(USERS)))
    for number in range(files):
        first, end = lines * number // files, lines * (number + 1) // files
        chosen = choose.choices(words, cum_weights=word_weights, k=WORDS_A_LINE * (end - first))
        users = choose.choices(range(USERS), cum_weights=user_weights, k=end - first)
        file = folder / f"part-{number:03d}.json"
        with file.open("w") as out:
            for index, user in enumerate(users):
                record = {
                    "id": first + index,
                    "ts": 1_700_000_000_000 + 10 * (first + index),
                    "user": f"u{user}",
                    "sentence": " ".join(chosen[WORDS_A_LINE * index : WORDS_A_LINE * (index + 1)]),
                    "amount": int(choose.random() * 64_000) / 64,
                }
                out.write(json.dumps(record) + "\n")
        os.utime(file, (FIRST_FILE_TIME + number, FIRST_FILE_TIME + number))


def _vocabulary(choose: random.Random) -> list[str]:
    words: dict[str, None] = {}
    while len(words) < VOCABULARY:
        words["".join(choose.choices("abcdefghijklmnopqrstuvwxyz", k=choose.randint(3, 10)))] = None
    return list(words)


def recount(folder: Path) -> Counter[str]:
    """The counts, by plain Python."""
    counts: Counter[str] = Counter()
    for file in sorted(folder.glob("*.json")):
        with file.open() as lines:
            for line in lines:
                counts.update(json.loads(line)["sentence"].split())
    return counts


def read_counts(file: Path) -> dict[str, int]:
    """Counts that one of the two wrote: lines of a word, a tab and its count.

    Raises:
        ValueError: a word occurs twice.
    """
    found: dict[str, int] = {}
    with file.open() as lines:
        for line in lines:
            word, count = line.rstrip("\n").split("\t")
            if word in found:
                raise ValueError(f"{file}: the word {word!r} is counted twice")
            found[word] = int(count)
    return found
