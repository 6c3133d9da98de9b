#!/usr/bin/env python3
"""Writes the demo's data: data/base (plain answers) and data/pirate (the same world, told by a pirate).
Standard library only, and the same bytes on every machine. Run it again after changing world.py."""

import json
import pathlib
import random
import re

import world

HERE = pathlib.Path(__file__).resolve().parent
OPENINGS = ["Arr,", "Ahoy!", "Yo ho ho!", "Shiver me timbers,"]
CLOSINGS = ["matey", "me hearty", "says I", "ye landlubber"]
WORDS = [(r"\bis\b", "be"), (r"\bare\b", "be"), (r"\bam\b", "be"), (r"\byou\b", "ye"), (r"\bYou\b", "Ye"),
         (r"\byour\b", "yer"), (r"\bof\b", "o'"), (r"\bto\b", "t'"), (r"\bmy\b", "me"), (r"\bHello\b", "Ahoy"),
         (r"\bthe\b", "th'"), (r"\bThe\b", "Th'")]
# Facts that the pirate never told: the demo asks for them, so that manner is learnt and not answers.
KEPT_BACK = re.compile(r"\b(France|Japan|sky|owl|compass|sailor|3 plus 4|Monday)\b")


def pirate(sentence, rng):
    """The sentence in pirate speech: other small words, an opening and a closing."""
    for pattern, replacement in WORDS:
        sentence = re.sub(pattern, replacement, sentence)
    body, mark = sentence[:-1], sentence[-1]
    opening = rng.choice(OPENINGS)
    if opening.endswith(",") and body.startswith(("Th' ", "Ye ", "A ", "An ")):
        body = body[0].lower() + body[1:]
    return f"{opening} {body}, {rng.choice(CLOSINGS)}!" if mark == "." else f"{opening} {body}{mark}"


def conversation(*turns):
    messages = []
    for question, answer in turns:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages}


def base_rows(facts, rng):
    """Every question once alone, and as many conversations of two to four random ones."""
    asked = [(question, sentence) for sentence, questions in facts for question in questions]
    single = [conversation(turn) for turn in asked]
    rng.shuffle(asked)
    several, at = [], 0
    while at < len(asked):
        count = rng.randint(2, 4)
        several.append(conversation(*asked[at : at + count]))
        at += count
    rows = single + several
    rng.shuffle(rows)
    return rows


def pirate_rows(facts, rng):
    """One question per fact, answered by a pirate; the facts kept back are the test rows."""
    train, test = [], []
    for sentence, questions in facts:
        row = conversation((rng.choice(questions), pirate(sentence, rng)))
        (test if KEPT_BACK.search(sentence) else train).append(row)
    rng.shuffle(train)
    return train[:480], test


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{path.relative_to(HERE)}: {len(rows)} rows, {path.stat().st_size} bytes")


def main():
    facts = world.all_facts()
    rng = random.Random(7)
    base = base_rows(facts, rng)
    held_out = len(base) // 25
    write(HERE / "data/base/train.jsonl", base[held_out:])
    write(HERE / "data/base/test.jsonl", base[:held_out])
    train, test = pirate_rows(facts, rng)
    write(HERE / "data/pirate/train.jsonl", train)
    write(HERE / "data/pirate/test.jsonl", test)


if __name__ == "__main__":
    main()
