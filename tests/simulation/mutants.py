"""Remove every ordering operation of the loop, one at a time, and see that it is noticed.

`make mutants` prints for each who noticed, what it is about, and where it was and is. An
operation that nobody misses is a missing test or a needless guard. `mutations.py` says what is
looked for in the source, and `concepts.toml` says in words what each operation is for.

    python -m simulation.mutants [TEXT]    judge all, or those whose description contains a text
    python -m simulation.mutants --list    print what is found, "?" where the list has no words
    python -m simulation.mutants --remap   after a move: find the new places of known operations
    python -m simulation.mutants --search  find scenarios that notice what is not noticed yet
    python -m simulation.mutants --table   print old and new places as a Markdown table
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import Counter
from dataclasses import replace

import torch

from simulation import concepts
from simulation.judging import find_witnesses, judge, scenario_of
from simulation.mutations import find_mutants


def describe(mutant, known):
    """Return a mutant's concepts, their old places and its present one; "?" if it has none."""
    owners = known.get(mutant.place, [])
    words = [f"{concept.name}\n        was {concept.was}\n" for concept in owners]
    return "".join([*(words or ["?\n"]), f"        is  {mutant}"])


def judge_all(chosen=""):
    """Judge all mutants, or those whose description contains a text; return the exit code.

    Each by the scenario that is known to miss it.
    """
    known = concepts.by_place(concepts.read())
    mutants = [mutant for mutant in find_mutants() if chosen in describe(mutant, known)]
    num_killed = 0
    for mutant, verdict in _verdicts((mutant, scenarios_of(mutant, known)) for mutant in mutants):
        num_killed += bool(verdict)
        print(f"{verdict or 'SURVIVED':70}  {describe(mutant, known)}", flush=True)
    print(f"{num_killed}/{len(mutants)} killed")
    return 0 if mutants and num_killed == len(mutants) else 1


def scenarios_of(mutant, known):
    """Return the scenario that is known to miss an operation, in a list; empty if none is."""
    owners = known.get(mutant.place, [])
    return [concept.noticed_in for concept in owners if concept.noticed_in is not None]


def _verdicts(work):
    """Yield each mutant of some pairs with its scenarios, and the verdict on it, in their order."""
    torch.set_num_threads(1)
    work = list(work)
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for (mutant, _), verdict in zip(work, pool.imap(_judge_pair, work), strict=True):
            yield mutant, verdict


def _judge_pair(pair):
    return judge(*pair)


def search_all(path=concepts.FILE):
    """Find a scenario for each operation that none misses yet, and write it; return the exit code.

    Of all scenarios that come to it, the cheapest that fails without it.
    """
    before = concepts.read(path)
    known = concepts.by_place(before)
    judged = _verdicts((mutant, scenarios_of(mutant, known)) for mutant in find_mutants())
    missed = [mutant for mutant, verdict in judged if not verdict]
    witnesses = find_witnesses() if missed else {}
    found = {}
    for mutant, verdict in _verdicts((mutant, witnesses[str(mutant.place)]) for mutant in missed):
        found[mutant.place] = scenario_of(verdict) if verdict else None
        print(f"{verdict or 'SURVIVED':70}  {describe(mutant, known)}", flush=True)
    after = [
        replace(concept, noticed_in=found[concept.place]) if concept.place in found else concept
        for concept in before
    ]
    concepts.write(after, path)
    return 1 if None in found.values() else 0


def list_all():
    """Print every mutant that is found and every concept that is not; return the exit code."""
    known = concepts.by_place(concepts.read())
    mutants = find_mutants()
    for mutant in mutants:
        print(describe(mutant, known))
    places = {mutant.place for mutant in mutants}
    lost = [owners[0] for place, owners in known.items() if place not in places]
    for concept in lost:
        print(f"LOST {concept.name}\n        was {concept.was}\n        not {concept.place}")
    num_unknown = len(places - set(known))
    print(f"{len(mutants)} mutants, {num_unknown} without a concept, {len(lost)} concepts lost")
    return 1 if num_unknown or lost else 0


def remap_all(path=concepts.FILE):
    """Rewrite the places of operations that moved, print what is in doubt; return the exit code."""
    before = concepts.read(path)
    places = {mutant.place for mutant in find_mutants()}
    after, lost = concepts.remap(before, places)
    for old, new in zip(before, after, strict=True):
        if old != new:
            print(f"MOVED {new.name}\n        from {old.place}\n        to   {new.place}")
    free = places - set(concepts.by_place(after))
    for concept in lost:
        print(f"LOST {concept.name}\n        from {concept.place}")
        for place in concepts.likely(concept, free):
            print(f"        like {place}")
    for place in sorted(free):
        print(f"? {place}")
    if after != before:
        concepts.write(after, path)
    return 1 if lost or free else 0


def print_table():
    """Print every concept with its old place and its present one, as a Markdown table."""
    found = concepts.read()
    places = {concept.name: concept.place for concept in found}
    print("| concept | was | is |\n|---|---|---|")
    for concept in sorted(found, key=lambda concept: (concept.was == "new", concept.was)):
        now = f"`{concept.place or places[concept.joined]}`"
        if concept.joined is not None:
            now += f", one with: {concept.joined}"
        was = "new" if concept.was == "new" else f"`{concept.was}`"
        print(f"| {concept.name} | {was} | {now} |")
    kinds = Counter(
        "new" if concept.was == "new" else "joined" if concept.joined else "moved"
        for concept in found
    )
    print(f"\n{kinds['moved']} with a place of their own, {kinds['joined']} joined", end="")
    print(f", {kinds['new']} new")
    return 0


_OPTIONS = {
    "--list": list_all,
    "--remap": remap_all,
    "--search": search_all,
    "--table": print_table,
}


def main(*arguments):
    """Do what the command line says; return the exit code."""
    if len(arguments) == 1 and arguments[0] in _OPTIONS:
        return _OPTIONS[arguments[0]]()
    return judge_all(*arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
