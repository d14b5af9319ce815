"""No damaged checkpoint is ever loaded: the one before it is, and the damaged one is named."""

from __future__ import annotations

import json
import os
import re
import shutil
from hashlib import blake2b

import pytest

from checkpoint.damage import (
    REPLACEMENTS,
    Damage,
    cuts_of,
    damages_of,
    files_in,
    flip,
    flips_of,
    remove,
    replacements_of,
    swaps_in,
)
from checkpoint.stores import (
    CheckpointStore,
    check_is,
    check_one_line_names,
    list_problems,
    load_newest,
    name_of,
    save_steps,
)


FILES = ["manifest.json", "meta.json", "tensors.safetensors"]
OLD, NEW = 10, 20


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store of two checkpoints; copy it before you damage it."""
    folder = tmp_path_factory.mktemp("whole") / "store"
    save_steps(folder, OLD, NEW)
    return folder


@pytest.fixture
def store(whole, tmp_path):
    """A copy of a store of two checkpoints."""
    return shutil.copytree(whole, tmp_path / "store")


def check_falls_back(store, *, step=OLD):
    """Check that the newest is named in one line and not used, and that the one before is."""
    loaded = load_newest(store)

    check_is(loaded.checkpoint, step)
    assert len(loaded.said) == 1
    check_one_line_names(loaded.said[0], name_of(NEW))
    problems = list_problems(store)
    assert problems[name_of(step)] is None
    check_one_line_names(problems[name_of(NEW)])
    assert problems[name_of(NEW)].strip()


def go_through(whole, tmp_path, damages):
    """Do each damage to a copy of the newest checkpoint, and check what is loaded then."""
    failed = []
    for number, damage in enumerate(damages):
        store = shutil.copytree(whole, tmp_path / str(number))
        damage.apply(store / name_of(NEW))
        try:
            check_falls_back(store)
        except Exception as error:  # every one is told, not the first alone
            failed.append(f"{damage}: {type(error).__name__}: {str(error)[:200]}")
        shutil.rmtree(store)
    assert failed == []


@pytest.mark.parametrize("name", FILES)
def test_flipped_bits(whole, tmp_path, name):
    """One bit of any file, at its start, its end or between, makes a checkpoint unusable."""
    go_through(whole, tmp_path, flips_of(whole / name_of(NEW), name, count=40))


@pytest.mark.parametrize("name", FILES)
def test_lost_ends(whole, tmp_path, name):
    """A file that is empty, half, too short by one or too long is no file of a checkpoint."""
    go_through(whole, tmp_path, cuts_of(whole / name_of(NEW), name))


@pytest.mark.parametrize("name", FILES)
def test_lost_and_replaced_files(whole, tmp_path, name):
    """A file that is gone, or where something else stands, is named."""
    go_through(whole, tmp_path, replacements_of(whole / name_of(NEW), name))


def test_swapped_files(whole, tmp_path):
    """Two files in each other's place are both wrong."""
    go_through(whole, tmp_path, swaps_in(whole / name_of(NEW)))


@pytest.mark.slow
def test_bits_of_every_byte(whole, tmp_path):
    """A bit of every byte of the small files, and two hundred places of the tensors."""
    folder = whole / name_of(NEW)

    def bits_of(name):
        for at in range((folder / name).stat().st_size):
            yield Damage(
                f"{name}: bit {at % 8} of byte {at}",
                name,
                lambda root, at=at: flip(root / name, at, at % 8),
            )

    go_through(whole, tmp_path, bits_of("meta.json"))
    go_through(whole, tmp_path, bits_of("manifest.json"))
    go_through(whole, tmp_path, flips_of(folder, "tensors.safetensors", count=200))


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_checkpoint(store, name):
    """A whole file that belongs to another step is not this step's."""
    shutil.copy(store / name_of(OLD) / name, store / name_of(NEW) / name)

    check_falls_back(store)


@pytest.mark.parametrize("name", FILES)
def test_all_files_but_one_of_another_checkpoint(store, name):
    """Nor are two of the three files."""
    for other in set(FILES) - {name}:
        shutil.copy(store / name_of(OLD) / other, store / name_of(NEW) / other)

    check_falls_back(store)


def test_a_checkpoint_under_another_name(store):
    """A folder that was renamed is not the step that its name says."""
    (store / name_of(NEW)).rename(store / name_of(400))

    loaded = load_newest(store)

    check_is(loaded.checkpoint, OLD)
    assert len(loaded.said) == 1
    check_one_line_names(loaded.said[0], name_of(400), f"it is {name_of(NEW)} under another name")


def test_a_copy_of_an_older_checkpoint(store):
    """All files of another step do not make this step."""
    shutil.rmtree(store / name_of(NEW))
    shutil.copytree(store / name_of(OLD), store / name_of(NEW))

    check_falls_back(store)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_something_more_in_the_folder(store, what):
    """What a checkpoint does not list is never part of what is loaded."""
    extra = store / name_of(NEW) / "extra"
    extra.write_text("?") if what == "file" else extra.mkdir()

    loaded = load_newest(store)

    if loaded.said:
        check_falls_back(store)
    else:
        check_is(loaded.checkpoint, NEW)


def test_an_empty_folder(store):
    """A folder that lost all of its files is named."""
    for name in FILES:
        (store / name_of(NEW) / name).unlink()

    check_falls_back(store)


@pytest.mark.parametrize("what", ["replaced by a link to nothing", "replaced by a link to itself"])
def test_a_link_where_the_folder_was(store, what):
    """Something that is no folder is not loaded, and stops nothing."""
    shutil.rmtree(store / name_of(NEW))
    (store / name_of(NEW)).write_text("")
    REPLACEMENTS[what](store / name_of(NEW))

    check_is(load_newest(store).checkpoint, OLD)


MANIFESTS = {
    "nothing": b"",
    "null": b"null",
    "true": b"true",
    "a number": b"3",
    "a large number": b"1" * 5000,
    "text": b'"manifest"',
    "an empty list": b"[]",
    "an empty object": b"{}",
    "not a number": b"NaN",
    "lists in lists": b"[" * 100_000 + b"]" * 100_000,
    "objects in objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "an open object": b'{"files": {',
    "no UTF-8": b'{"files": "\xff\xfe"}',
    "UTF-16": '{"files": {}}'.encode("utf-16"),
    "bytes of zero": bytes(400),
    "two objects": b"{}{}",
    "a name twice": b'{"files": {}, "files": []}',
    "half a character": b'{"files": "\\ud800"}',
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_of_another_shape(store, name):
    """A manifest that is other JSON, or none, makes a checkpoint unusable and nothing worse."""
    (store / name_of(NEW) / "manifest.json").write_bytes(MANIFESTS[name])

    check_falls_back(store)


@pytest.mark.parametrize("name", MANIFESTS)
def test_meta_of_another_shape(store, name):
    """So does meta data of another shape."""
    (store / name_of(NEW) / "meta.json").write_bytes(MANIFESTS[name])

    check_falls_back(store)


WRONG = [None, True, -1, 0, 1e308, 10**400, "", "../../etc", "x" * 64, [], {}, [[]], {"a": None}]


def places_in(value, path=()):
    """Yield the path of every value in a JSON document."""
    yield path
    inside = value.items() if isinstance(value, dict) else []
    inside = enumerate(value) if isinstance(value, list) else inside
    for key, one in inside:
        yield from places_in(one, (*path, key))


def with_value(document, path, value):
    """Return a document with another value in one place; `...` takes it out."""
    if not path:
        return value
    document = json.loads(json.dumps(document))
    at = document
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return document


def test_every_value_of_the_manifest_replaced(whole, tmp_path):
    """Whatever stands where a size, a hash, a name or a list stood: it is not used."""
    raw = (whole / name_of(NEW) / "manifest.json").read_text(encoding="utf-8")
    document = json.loads(raw)
    changed = [
        (f"{'.'.join(map(str, path))} = {str(value)[:20]}", with_value(document, path, value))
        for path in places_in(document)
        if path
        for value in [*WRONG, ...]
    ]
    changed += [("one more", {**document, "more": 1})]

    def write(root, value):
        (root / "manifest.json").write_text(json.dumps(value), encoding="utf-8")

    go_through(
        whole,
        tmp_path,
        [
            Damage(name, "manifest.json", lambda root, value=value: write(root, value))
            for name, value in changed
            if value != document or "1" in name
        ],
    )


@pytest.mark.parametrize("value", WRONG, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize("place", ["step", "name", "size", "blake2b", "file"])
def test_a_manifest_changed_on_purpose(store, place, value):
    """One whose own hash was made anew for impossible values is damaged too, and stops nobody."""
    file = store / name_of(NEW) / "manifest.json"
    body = json.loads(file.read_text(encoding="utf-8"))
    del body["blake2b"]
    if place in ("step", "name"):
        body[place] = value
    elif place == "file":
        body["files"][str(value)] = body["files"]["meta.json"]
    else:
        body["files"]["meta.json"][place] = value
    own = blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=32).hexdigest()
    text = json.dumps({**body, "blake2b": own}, sort_keys=True, indent=1)
    file.write_text(f"{text}\n", encoding="utf-8")

    if place == "step" and type(value) is int and value >= 0:
        assert load_newest(store).checkpoint.step == value
    else:
        check_falls_back(store)


@pytest.mark.parametrize("name", FILES)
def test_a_named_pipe_in_the_place_of_a_file(store, name):
    """Nobody waits for its writer."""
    (store / name_of(NEW) / name).unlink()
    os.mkfifo(store / name_of(NEW) / name)

    check_falls_back(store)


def test_several_damaged_ones(tmp_path):
    """Each damaged one is named once, newest first, and the first whole one is used."""
    save_steps(tmp_path, 10, 20, 30, 40, keep=4)
    for step in (20, 30, 40):
        flip(tmp_path / name_of(step) / "tensors.safetensors", -1, 3)

    loaded = load_newest(tmp_path)

    check_is(loaded.checkpoint, 10)
    first_named = [re.search(r"step-0*(\d+)", text)[1] for text in loaded.said]
    assert first_named == ["40", "30", "20"]


def test_an_older_damaged_one_is_nobodys_business(store):
    """What is not needed is not read, so a load takes as long as one checkpoint."""
    flip(store / name_of(OLD) / "tensors.safetensors", 0, 0)

    loaded = load_newest(store)

    assert loaded.said == []
    check_is(loaded.checkpoint, NEW)
    assert [name for name, problem in list_problems(store).items() if problem] == [name_of(OLD)]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("what", ["flipped", "deleted"])
def test_none_is_whole(store, name, what):
    """Where every checkpoint is damaged, one error says so, and names the folder."""
    for step in (OLD, NEW):
        path = store / name_of(step) / name
        remove(path) if what == "deleted" else flip(path, 3, 1)

    loaded = load_newest(store)

    assert loaded.checkpoint is None
    assert loaded.error is not None
    check_one_line_names(loaded.error, "store", name_of(OLD), name_of(NEW))
    assert all(list_problems(store).values())


@pytest.mark.slow
def test_pairs_of_damages(whole, tmp_path):
    """Two damages at once to the newest: they never cancel each other."""
    folder = whole / name_of(NEW)
    single = [damage for damage in damages_of(folder, flips=2) if ": swapped" not in damage.name]

    def both(one, other):
        def apply(root):
            one.apply(root)
            if (root / other.file).is_file():
                other.apply(root)

        return apply

    pairs = [
        Damage(f"{one} and {other}", one.file, both(one, other))
        for number, one in enumerate(single)
        for other in single[number + 1 :]
        if one.file != other.file
    ]

    go_through(whole, tmp_path, pairs[::3])


def test_a_damaged_store_goes_on(store):
    """After a fall back, saving goes on, and the new one is loaded."""
    flip(store / name_of(NEW) / "meta.json", 0, 0)
    assert CheckpointStore(store) is not None
    check_falls_back(store)

    save_steps(store, 30)

    loaded = load_newest(store)
    assert loaded.said == []
    check_is(loaded.checkpoint, 30)
    assert files_in(store / name_of(30)) == FILES
