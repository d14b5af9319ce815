"""The pages of `gapless doctor`, as a user asks for them."""

from __future__ import annotations

import json

from gapless.report.json_reports import session_json
from made_up_session import made_up_session


SCRIPT = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    loss = model(torch.ones(2, 4)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def test_two_saved_sessions_become_a_trace(process, tmp_path):
    """The text is printed all the same; both timelines stand in one trace."""
    for name, mended in (("a", False), ("b", True)):
        session = made_up_session(num_steps=2, kernels=30, mended=mended)
        (tmp_path / name).write_text(session_json(session), encoding="utf-8")
    done = process("doctor", "--perfetto", "t.json", "--diff", "a", "b")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]

    assert done.returncode == 0, done.stderr
    assert "less time than before" in done.stdout
    assert [one["args"]["name"] for one in events if one["name"] == "process_name"] == [
        "before: host",
        "before: device",
        "after: host",
        "after: device",
    ]


def test_a_script_becomes_a_page(process, tmp_path):
    """On a CPU there is no timeline, and the page says so; the script prints what it prints."""
    (tmp_path / "s.py").write_text(SCRIPT)
    done = process("doctor", "--html", "page.html", "s.py")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 30
    assert "<h1>s.py</h1>" in page
    assert "needs a device" in page
