"""What docs/scaling.md says of GPUs that were not measured: its formula gives the figures of its tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"

# Bytes a second of each GPU between hosts, by the columns of the page.
NETWORKS = (50e9, 6.25e9)
HOP_MS, NETWORK_HOP_MS = 0.005, 0.010


def table(heading):
    """Return the rows of figures in a part of the page, by their names."""
    part = PAGE.read_text(encoding="utf-8").partition(f"## {heading}")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")]
    return {
        row[0]: [float(number.replace(",", "")) for cell in row[1:] for number in figures(cell)]
        for row in rows[2:]
    }


def figures(cell):
    """Return the numbers in a cell."""
    return re.findall(r"[\d.,]*\d", cell)


MEASURED = table("Two GPUs (measured)")


def all_reduce_ms(name, *, gpus, hosts=1, network=1.0):
    """Return the time of summing all gradients, as the page's formula says."""
    megabytes, _, _, bandwidth, *_ = MEASURED[name]
    sent = megabytes * 1e6
    inside = 2 * (gpus - 1) / gpus * sent / (bandwidth * 1e9) * 1e3 + 2 * (gpus - 1) * HOP_MS
    between = 2 * (hosts - 1) / hosts * sent / gpus / network * 1e3
    return inside + between + 2 * (hosts - 1) * NETWORK_HOP_MS


def exposed_ms(name, **machine):
    """Return by how much a step is longer than that of one GPU."""
    return MEASURED[name][4] + all_reduce_ms(name, **machine)


def efficiency(name, **machine):
    """Return the speed over that of as many GPUs alone, in percent."""
    alone_ms = MEASURED[name][1]
    return 100 * alone_ms / (alone_ms + exposed_ms(name, **machine))


@pytest.mark.parametrize("name", MEASURED)
def test_the_tables_are_what_the_formula_gives(name):
    """Within what the figures of the first table are rounded by."""
    many = [{"gpus": 8, "hosts": 8, "network": network} for network in NETWORKS]
    machines = [{"gpus": 2}, {"gpus": 8}, *many]
    times = [all_reduce_ms(name, **machine) for machine in machines]
    shares = [efficiency(name, **machine) for machine in machines]

    assert [MEASURED[name][2], MEASURED[name][5]] == pytest.approx([times[0], shares[0]], rel=0.01)
    computed = table("One host with 8 GPUs (computed)")[name]
    assert computed == pytest.approx([times[1], shares[1]], rel=0.02)
    computed = table("8 hosts with 8 GPUs each (computed)")[name]
    assert computed == pytest.approx([times[2], shares[2], times[3], shares[3]], rel=0.02)
    tokens = table("How large an update must be (computed)")[name]
    exposed = [exposed_ms(name, **machine) for machine in machines]
    assert [one / tokens[0] for one in tokens] == pytest.approx(
        [one / exposed[0] for one in exposed], rel=0.03
    )
