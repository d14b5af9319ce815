"""Q-learning from a replay buffer that grows."""

import argparse
import copy
import random

import torch
from torch.nn import functional as F


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--steps", type=int, default=400)
args = parser.parse_args()
device = torch.device(args.device)


def moved(state, action):
    """Push a cart to the left or to the right; it should stay near 0."""
    position, speed = state
    speed = 0.9 * speed + (0.1 if action else -0.1)
    position = max(-2.0, min(2.0, position + speed))
    return [position, speed], -abs(position)


torch.manual_seed(0)
random.seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)).to(
    device
)
target = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
# A row is a state, an action, a reward and the next state.
buffer = torch.zeros(1000, 6, device=device)
num_moves = 0
state, rewards = [1.0, 0.0], []


def act():
    global state, num_moves
    if num_moves < 32 or random.random() < 0.2:
        action = random.randrange(2)
    else:
        with torch.no_grad():
            action = model(torch.tensor(state, device=device)).argmax().item()
    after, reward = moved(state, action)
    buffer[num_moves % 1000] = torch.tensor([*state, action, reward, *after], device=device)
    state, num_moves = after, num_moves + 1
    rewards.append(reward)


def train_step():
    rows = torch.randint(min(num_moves, 1000), (32,), device=device)
    before, action, reward, after = buffer[rows].split([2, 1, 1, 2], dim=1)
    best = reward + 0.9 * target(after).amax(1, keepdim=True)
    loss = F.smooth_l1_loss(model(before).gather(1, action.long()), best)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


for _ in range(32):
    act()
for epoch in range(args.steps // 20):
    losses = []
    for _ in range(20):
        act()
        losses.append(train_step().item())
    target.load_state_dict(model.state_dict())
    print(f"epoch {epoch}: loss {sum(losses) / len(losses):.12f}")
print(f"mean reward of the last 20 moves {sum(rewards[-20:]) / 20:.6f}")
