"""What a loop changes between two captured steps, on one GPU: the plain loop's bits."""

from __future__ import annotations

import pytest
import torch

from gapless.device.find import find_device
from gapless.device.numerics import set_numerics
from toy_steps import CASES, Training, train


pytestmark = [
    pytest.mark.gpu,
    # Torch says where a backward pass finds a graph of gradients that another stream has made.
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream"),
]


class TrainsByAdamW(Training):
    """A count of steps lies on the device."""

    def __init__(self, device):
        super().__init__(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, capturable=True)


@pytest.mark.parametrize("kind", [*CASES, TrainsByAdamW])
def test_what_a_loop_changes_between_steps_counts(kind):
    """Losses, weights and what is read between steps are the plain loop's.

    The graphs are as many as on the simulated device. There a verdict on a graph arrives at once;
    here some more steps may run as written until then, which may ask for one more graph.
    """
    device = find_device("cuda")
    set_numerics(device, "fp32", deterministic=True)
    plain = train(kind, device, captured=False)

    found = train(kind, device, captured=True)

    assert plain.seen == found.seen
    assert plain.weights == found.weights
    refusal = found.report.refusal and found.report.refusal.kind
    num_graphs, num_replays, expected = CASES.get(kind, (1, 9, None))
    assert num_graphs <= found.report.num_graphs <= num_graphs + 1, found.report
    assert refusal == expected
    assert num_replays - 2 * num_graphs <= found.report.num_replays <= num_replays, found.report
