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
    here the loop waits for it, or some more steps would run as written, more or fewer of them by the
    work of others on the GPU.
    """
    device = find_device("cuda")
    set_numerics(device, "fp32", deterministic=True)
    plain = train(kind, device, captured=False)

    ahead = train(kind, device, captured=True)
    found = train(kind, device, captured=True, step_ended=torch.cuda.synchronize)

    assert plain.seen == ahead.seen == found.seen
    assert plain.weights == ahead.weights == found.weights
    refusal = found.report.refusal and found.report.refusal.kind
    num_graphs, num_replays, expected = CASES.get(kind, (1, 9, None))
    assert num_graphs <= found.report.num_graphs <= num_graphs + 1, found.report
    assert refusal == expected
    assert num_replays - 2 * num_graphs <= found.report.num_replays <= num_replays, found.report
