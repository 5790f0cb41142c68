#!/usr/bin/env python3
"""Writes the training corpus of the demo model: short tales, one per seed, the same text for the same seed.

A tale is one of a few dozen scenarios told in its own words. A scenario fixes who, where and what (hero,
friend, elder, objects, places), and no two share a name; the seed chooses the scenario and every turn of
phrase. So a model of a few million parameters can learn from any part of a tale whose tale it is, and
keeps names, pronouns and objects straight, which it could not learn in general from so little text.

    corpus.py --seed 0 --count 3              three tales on standard output
    corpus.py --style pirate --count 3        the style of the LoRA adapter

Seeds from HELD_OUT upward are never trained on.
"""

import argparse
import random
import re

import lexicon as lx
import plots

HELD_OUT = 10_000_000
PRONOUNS = {"she": ("she", "her", "her"), "he": ("he", "him", "his")}
CHOICE = re.compile(r"\[([^\[\]]*)\]")
SLOT = re.compile(r"\{([^{}]+)\}")


class Words(random.Random):
    """A source of wording that prefers the first alternative wherever there are several.

    With equal odds a model that has learned the corpus well stands at a near-tie at every turn of phrase, and
    the last bit of a sum decides what it says. The first of n alternatives weighs as much as twice all the
    others together, but at most 8 where each of them weighs 1.
    """

    def choice(self, seq):
        others = len(seq) - 1
        first = min(2 * others, 8)
        return seq[0] if self.random() * (first + others) <= first else super().choice(seq[1:])

    def common_first(self, n):
        """An index below n, by Zipf's law."""
        return self.choices(range(n), [1 / (i + 1) for i in range(n)])[0]


class Teller:
    """Holds the facts of one tale and expands templates against them, so that names, pronouns and objects stay the same.

    `rng` decides facts and belongs to the scenario; `words` decides wording and belongs to the tale.
    """

    def __init__(self, rng, words):
        self.rng = rng
        self.words = words
        self.facts = {}
        self.out = []
        self.used_places = set()
        self.met_friend = False

    def pick(self, options):
        return self.rng.choice(options)

    def chance(self, p):
        return self.rng.random() < p

    def set(self, **facts):
        self.facts.update(facts)

    def place(self, slot):
        name, at, to = self.pick([p for p in lx.PLACES if p[0] not in self.used_places])
        self.used_places.add(name)
        self.set(**{f"at {slot}": at, f"to {slot}": to, slot: name})

    def lookup(self, key):
        if key == "friend":
            if self.met_friend:
                return self.facts["f"]
            self.met_friend = True
            return self.facts["f_intro"]
        if key in self.facts:
            return self.facts[key]
        lower = key[0].lower() + key[1:]
        return self.facts[lower][0].upper() + self.facts[lower][1:]

    def expand(self, text, rng=None):
        """Alternations chosen and slots filled, as a fact where no other source of chance is given."""
        rng = rng or self.rng
        while CHOICE.search(text):
            text = CHOICE.sub(lambda m: rng.choice(m.group(1).split("|")), text, count=1)
        while True:
            m = SLOT.search(text)
            if not m:
                return text
            text = text[: m.start()] + self.expand(self.lookup(m.group(1)), rng) + text[m.end():]

    def __call__(self, template):
        self.out.append(self.expand(template, self.words))

    def opt(self, p, template):
        if self.words.random() < p:
            self(template)

    def text(self):
        text = " ".join(self.out)
        text = re.sub(r"\b([Aa]) (?=[aeioAEIO]|u(?!s|ni)|hour|honest)", r"\1n ", text)
        # A template may begin a sentence with a slot; capitals follow full stops and open every quotation that starts one.
        text = re.sub(r'(^|[.!?]"? )([a-z])', lambda m: m.group(1) + m.group(2).upper() if not m.group(1).startswith(("!\"", "?\"", ".\"")) else m.group(0), text)
        return re.sub(r"\s+", " ", text).strip()


def scenarios():
    """(plot, whether animals, hero's sex, hero's name, friend's name), each name used once."""
    rng = random.Random("scenarios")
    names = {}
    for key, pool in (("she", lx.GIRLS), ("he", lx.BOYS), ("she beast", lx.SHE_BEASTS), ("he beast", lx.HE_BEASTS)):
        names[key] = rng.sample(pool, len(pool))
    made = []
    for variant in range(2):
        for i, plot in enumerate(plots.PLOTS):
            # As many animals' tales as there are names for animals; the sexes take turns.
            beasts = variant == 1 and i < min(len(lx.SHE_BEASTS), len(lx.HE_BEASTS))
            sex = ("she", "he")[(i + variant) % 2]
            kind = " beast" if beasts else ""
            # A friend of the other sex keeps "he" and "she" unambiguous.
            friend = names[OTHER[sex] + kind].pop()
            made.append((plot, beasts, sex, names[sex + kind].pop(), friend))
    return made


OTHER = {"she": "he", "he": "she"}
SCENARIOS = scenarios()
# Crews of the pirate style, with names of their own.
PIRATES = [(plots.ship, False, sex, name, mate) for sex, name, mate in (
    ("he", "Blackbeard Bill", "Peggy"), ("she", "Anne Bones", "Cutlass Jim"), ("he", "Redhand", "Saltwater Sue"), ("she", "Stormy Meg", "Barnacle Bob"),
)]


def person(t, prefix, sex, beasts, name):
    he, him, his = PRONOUNS[sex]
    kind = t.pick(lx.BEASTS) if beasts else ("girl" if sex == "she" else "boy")
    t.set(**{prefix: name, f"{prefix}kind": kind})
    if prefix == "h":
        t.set(he=he, him=him, his=his, kind=kind)
    else:
        t.set(fhe=he, fhim=him, fhis=his, fHe=he.capitalize(), Fhe=he.capitalize())


def cast(t, beasts, sex, hero, friend):
    person(t, "h", sex, beasts, hero)
    person(t, "f", OTHER[sex], beasts, friend)
    elder, esex = t.pick(lx.BEAST_ELDERS if beasts else lx.ELDERS)
    ehe, ehim, ehis = PRONOUNS[esex]
    t.set(e=elder, ehe=ehe, ehim=ehim, ehis=ehis, trait=t.pick(lx.CHILD_TRAITS), hobby=t.pick(lx.HOBBIES))
    t.set(home=t.pick(lx.BEAST_HOMES if beasts else lx.HOMES))
    t.set(f_intro=f"{friend} the {t.facts['fkind']}" if beasts else t.pick((f"{t.facts['his']} friend {friend}", f"a {t.facts['fkind']} named {friend}", friend)))
    t.set(f_who=f"{friend} the {t.facts['fkind']}" if beasts else friend)
    t.set(**{"in pocket": t.pick(("in {his} pocket", "on the path", "under a leaf", "in an old jar"))})


def opening(t):
    if t.words.random() < 0.6:
        t(t.words.choice((
            "Once upon a time[,|,|] there [was|lived|was] a [little|small|young|{trait}|{trait} little] {kind} named {h}[. {He} loved to {hobby}.|.| who loved to {hobby}.| who lived {home}.]",
            "Once upon a time[,|,|] there was a [little|small|young|{trait}|{trait} little] {kind} named {h}[ who was very {trait}. {He} loved to {hobby}.|. {He} lived {home} with {e}.|. {He} lived {home} and loved to {hobby}.]",
            "Once upon a time, {home}, there lived a [{trait}|{trait}|little] {kind} [named|called] {h}[. {He} loved to {hobby}.|.| who loved to {hobby}.]",
        )))
    else:
        t(t.words.choice((
            "[Long ago|Many years ago|A long time ago], {home}, there [lived|was] a {trait} {kind} named {h}.",
            "There was once a {kind} named {h} who [loved to {hobby}|lived {home}].",
            "{h} was a {trait} {kind} who lived {home}.",
            "One [sunny|cold|windy|bright|misty] [morning|day], a [{trait}|little] {kind} named {h} looked out of the window. {weather}",
            "{home} lived a [little|{trait}|small] {kind}. {His} name was {h}, and {he} loved to {hobby}.",
            "Have you heard of {h}, the {trait} {kind} who lived {home}?",
            "Nobody loved to {hobby} more than {h}, a {kind} who lived {home}.",
            "{weather} {home}, a {trait} {kind} named {h} was getting ready for the day.",
            "Every day {h} the {kind} went out to {hobby}. {He} was [very|always] {trait}, and everyone liked {him}.",
            "In a land far away, a [young|{trait}|little] {kind} named {h} lived {home}.",
        )))
    if t.facts["weather"] not in t.out[-1]:
        t.opt(0.25, "{weather}")


def tale(seed, style="tale"):
    """One tale; its text depends on the seed and the style alone."""
    words = Words(f"{style}:{seed}")
    chosen = SCENARIOS if style == "tale" else PIRATES
    index = words.common_first(len(chosen))
    plot, beasts, sex, hero, friend = chosen[index]
    t = Teller(random.Random(f"{style} scenario:{index}"), words)
    t.set(weather=t.pick(lx.WEATHER))
    cast(t, beasts, sex, hero, friend)
    if style == "pirate":
        t.set(c1=t.pick(lx.CLUES))
        if words.random() < 0.6:
            t("Once upon a time, [on the salty sea|in a harbour full o' rogues|aboard a leaky old ship], there [lived|sailed|was] a [fierce|bold|jolly] pirate [named|called] {h}.")
        plot(t)
        return t.text()
    opening(t)
    if plot is plots.noise:
        t.facts["where_short"] = "noise in the night"
    plot(t)
    t.opt(0.12, "[The end.|And they all lived happily ever after.]")
    return t.text()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--count", type=int, default=1)
    ap.add_argument("--style", choices=("tale", "pirate"), default="tale")
    ap.add_argument("--held-out", action="store_true", help="take seeds from the held-out range")
    a = ap.parse_args()
    base = a.seed + (HELD_OUT if a.held_out else 0)
    for i in range(a.count):
        print(tale(base + i, a.style), end="\n\n")


if __name__ == "__main__":
    main()
