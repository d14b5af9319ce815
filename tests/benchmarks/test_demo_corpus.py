"""The script that made the demo corpus makes it still."""

from __future__ import annotations

import gzip

from benchmarks.demo_corpus import FILE, table


def test_the_packages_file_is_what_the_script_makes():
    """Whoever changes the script changes the corpus with it, and sees that."""
    assert gzip.decompress(FILE.read_bytes()).decode() == table()
