# An agent whose methods are called, in a little world of its own.
import random
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 1


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class World:
    def reset(self):
        self.state = np.random.randn(4, 6).astype(np.float32)
        return self.state

    def step(self, action):
        reward = (self.state[:, 0] > 0) == (action == 1)
        self.state = 0.9 * self.state + 0.1 * np.random.randn(4, 6).astype(np.float32)
        return self.state, reward.astype(np.float32)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(layer_init(nn.Linear(6, 16)), nn.Tanh(), layer_init(nn.Linear(16, 1), 1.0))
        self.actor = nn.Sequential(layer_init(nn.Linear(6, 16)), nn.Tanh(), layer_init(nn.Linear(16, 2), 0.01))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
agent = Agent().to(device)
optimizer = optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
world = World()
next_obs = torch.tensor(world.reset()).to(device)
for update in range(12):
    optimizer.param_groups[0]["lr"] = (1.0 - update / 12) * 2.5e-3
    obs, actions, logprobs, rewards, values = [], [], [], [], []
    for _ in range(8):
        obs.append(next_obs)
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
        state, reward = world.step(action.cpu().numpy())
        next_obs = torch.tensor(state).to(device)
        actions.append(action)
        logprobs.append(logprob)
        values.append(value.flatten())
        rewards.append(torch.tensor(reward).to(device))
    with torch.no_grad():
        last = agent.get_value(next_obs).flatten()
    returns = torch.stack(rewards) + 0.9 * torch.stack([*values[1:], last])
    b_obs, b_actions, b_old = torch.cat(obs), torch.cat(actions), torch.cat(logprobs)
    b_returns, b_values = returns.flatten(), torch.cat(values)
    inds = np.arange(32)
    for _ in range(2):
        np.random.shuffle(inds)
        for start in range(0, 32, 16):
            mb = inds[start : start + 16]
            _, new, entropy, value = agent.get_action_and_value(b_obs[mb], b_actions[mb])
            ratio = (new - b_old[mb]).exp()
            adv = b_returns[mb] - b_values[mb]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            pg = torch.max(-adv * ratio, -adv * torch.clamp(ratio, 0.8, 1.2)).mean()
            loss = pg - 0.01 * entropy.mean() + 0.5 * ((value.view(-1) - b_returns[mb]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    print(f"update={update}, reward={torch.stack(rewards).mean().item():.6f}, loss={loss.item():.8f}")
torch.save(agent.state_dict(), "agent.pth")
