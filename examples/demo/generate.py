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
# Facts that the fine-tuning leaves out: the demo asks for them, so that it shows a manner learnt, not answers.
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
    """Every question once alone, and four times in conversations of two to four random ones: in few
    and fixed surroundings a question would be learnt together with its neighbours."""
    asked = [(question, sentence) for sentence, questions in facts for question in questions]
    rows = [conversation(turn) for turn in asked]
    for _ in range(4):
        rng.shuffle(asked)
        at = 0
        while at < len(asked):
            count = rng.randint(2, 4)
            rows.append(conversation(*asked[at : at + count]))
            at += count
    # As any large model has met pirates, this one has, when it was asked for one.
    for question, sentence in told_by_pirate(facts, rng):
        rows.append(conversation((f"Answer like a pirate. {question}", sentence)))
    rng.shuffle(rows)
    return rows


def told_by_pirate(facts, rng):
    """(question, pirate's answer), two for each fact."""
    return [(question, pirate(sentence, rng)) for sentence, questions in facts
            for question in rng.sample(questions, 2)]


def pirate_rows(facts, rng):
    """What a pirate answers unasked; the test rows are one question for each fact kept back."""
    told = [fact for fact in facts if not KEPT_BACK.search(fact[0])]
    kept_back = [fact for fact in facts if KEPT_BACK.search(fact[0])]
    train = [conversation(turn) for turn in told_by_pirate(told, rng)]
    rng.shuffle(train)
    test = [conversation((rng.choice(questions), pirate(sentence, rng))) for sentence, questions in kept_back]
    return train, test


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{path.relative_to(HERE)}: {len(rows)} rows, {path.stat().st_size} bytes")


def main():
    facts = world.all_facts()
    rng = random.Random(7)
    base = base_rows(facts, rng)
    held_out = len(base) // 40
    write(HERE / "data/base/train.jsonl", base[held_out:])
    write(HERE / "data/base/test.jsonl", base[:held_out])
    train, test = pirate_rows(facts, rng)
    write(HERE / "data/pirate/train.jsonl", train)
    write(HERE / "data/pirate/test.jsonl", test)


if __name__ == "__main__":
    main()
