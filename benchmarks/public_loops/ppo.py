"""Reinforcement learning: PPO on many small environments at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import gapless
from benchmarks.public_loops.script import Loop


GAMMA, GAE_LAMBDA = 0.99, 0.95
CLIP, VALUE_SHARE, ENTROPY_SHARE = 0.2, 0.5, 0.01
EPOCHS, MINIBATCHES = 4, 8


class Poles:
    """Poles that fall over unless they are pushed left or right; 4 numbers each."""

    def __init__(self, count):
        self.draw = np.random.default_rng(0)
        self.count = count
        self.state = self._start(count)

    def reset(self):
        """Return the observations, [count, 4]."""
        self.state = self._start(self.count)
        return self.state.astype(np.float32)

    def step(self, actions):
        """Return observations, rewards and whether each episode ended."""
        _, speed, angle, turn = self.state.T
        push = 10.0 * (2.0 * actions - 1.0)
        sine, cosine = np.sin(angle), np.cos(angle)
        part = (push + 0.05 * turn**2 * sine) / 1.1
        bend = (9.8 * sine - cosine * part) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        pull = part - 0.05 * bend * cosine / 1.1
        change = np.stack([speed, pull, turn, bend], axis=1)
        self.state = self.state + 0.02 * change
        ended = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.21)
        self.state[ended] = self._start(int(ended.sum()))
        rewards = np.where(ended, -1.0, 1.0).astype(np.float32)
        return self.state.astype(np.float32), rewards, ended.astype(np.float32)

    def _start(self, count):
        return self.draw.uniform(-0.05, 0.05, (count, 4))


class Agent(nn.Module):
    """A critic and an actor."""

    def __init__(self, width):
        super().__init__()
        self.critic = self._net(width, 1)
        self.actor = self._net(width, 2)

    @staticmethod
    def _net(width, num_out):
        return nn.Sequential(
            nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, num_out),
        )  # fmt: skip

    def forward(self, obs, action=None):
        """Return actions, their log probabilities, the entropy and the values."""
        choices = Categorical(logits=self.actor(obs), validate_args=False)
        if action is None:
            action = choices.sample()
        return action, choices.log_prob(action), choices.entropy(), self.critic(obs).squeeze(-1)


class Rollout:
    """Steps of all environments under the agent, with their advantages."""

    def __init__(self, run):
        self.device = run.device
        self.num_envs, self.num_steps = (2, 8) if run.is_tiny else (32, 64)
        self.envs = Poles(self.num_envs)
        self.obs = torch.from_numpy(self.envs.reset())

    @torch.no_grad()
    def collect(self, agent):
        """Return the fields of a rollout, each flat over steps and environments."""
        fields = [[] for _ in range(6)]
        for _ in range(self.num_steps):
            obs = self.obs.to(self.device)
            action, logprob, _, value = agent(obs)
            found, reward, ended = self.envs.step(action.cpu().numpy())
            self.obs = torch.from_numpy(found)
            reward, ended = (torch.from_numpy(x).to(self.device) for x in (reward, ended))
            for kept, new in zip(
                fields, (obs, action, logprob, value, reward, ended), strict=True
            ):
                kept.append(new)
        obs, action, logprob, value, reward, ended = (torch.stack(kept) for kept in fields)
        last = agent(self.obs.to(self.device))[3]
        advantage = self._advantages(value, reward, ended, last)
        found = (obs, action, logprob, advantage, advantage + value)
        return [tensor.flatten(0, 1) for tensor in found]

    def _advantages(self, value, reward, ended, last):
        advantages, behind = [], torch.zeros_like(last)
        for step in reversed(range(self.num_steps)):
            goes_on = 1.0 - ended[step]
            error = reward[step] + GAMMA * last * goes_on - value[step]
            behind = error + GAMMA * GAE_LAMBDA * goes_on * behind
            advantages.append(behind)
            last = value[step]
        return torch.stack(advantages[::-1])


def losses_of(agent, obs, action, old_logprob, advantage, returns):
    """Return the losses of policy, value and entropy, and the share of ratios that were clipped."""
    _, logprob, entropy, value = agent(obs, action)
    ratio = (logprob - old_logprob).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = torch.clamp(ratio, 1.0 - CLIP, 1.0 + CLIP)
    policy_loss = -torch.min(advantage * ratio, advantage * clipped).mean()
    value_loss = 0.5 * (value - returns).square().mean()
    clip_fraction = ((ratio - 1.0).abs() > CLIP).float().mean()
    return policy_loss, value_loss, entropy.mean(), clip_fraction


def as_written(run):
    """Read four numbers of every minibatch."""
    device = run.device
    agent = Agent(8 if run.is_tiny else 64).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    rollout = Rollout(run)
    while True:
        pg_losses, value_losses, entropies, clip_fractions = [], [], [], []
        for iteration in range(run.steps):
            data = rollout.collect(agent)
            num_samples = len(data[0])
            for _ in range(EPOCHS):
                indices = torch.randperm(num_samples).split(num_samples // MINIBATCHES)
                for mb_inds in indices:
                    mb_inds = mb_inds.to(device)
                    parts = [field[mb_inds] for field in data]
                    pg_loss, value_loss, entropy, clip_fraction = losses_of(agent, *parts)
                    loss = pg_loss + VALUE_SHARE * value_loss - ENTROPY_SHARE * entropy
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                    optimizer.step()
                    pg_losses.append(pg_loss.item())
                    value_losses.append(value_loss.item())
                    entropies.append(entropy.item())
                    clip_fractions.append(clip_fraction.item())
            run.progress(f"{iteration}: policy {pg_losses[-1]:.4f}, value {value_losses[-1]:.4f}")
        yield (
            agent,
            {
                "policy": pg_losses,
                "value": value_losses,
                "entropy": entropies,
                "clipped": clip_fractions,
            },
        )


def with_gapless(run):
    """Keep four numbers of every minibatch, and read them later."""
    device = run.device
    agent = Agent(8 if run.is_tiny else 64).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    rollout = Rollout(run)
    metrics = gapless.DeferredLoss(device)
    while True:
        for iteration in range(run.steps):
            data = rollout.collect(agent)
            num_samples = len(data[0])
            for _ in range(EPOCHS):
                indices = torch.randperm(num_samples).split(num_samples // MINIBATCHES)
                for mb_inds in gapless.prefetch(indices, device):
                    parts = [field[mb_inds] for field in data]
                    pg_loss, value_loss, entropy, clip_fraction = losses_of(agent, *parts)
                    loss = pg_loss + VALUE_SHARE * value_loss - ENTROPY_SHARE * entropy
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                    optimizer.step()
                    metrics.add(
                        policy=pg_loss, value=value_loss, entropy=entropy, clipped=clip_fraction
                    )
            if newest := metrics.latest():
                run.progress(
                    "{}: policy {policy:.4f}, value {value:.4f}".format(iteration, **newest.values)
                )
        metrics.mean()
        yield agent, metrics.history
        metrics.reset()


LOOP = Loop(
    name="ppo",
    title="PPO (rollouts on the host, 4 numbers read each minibatch)",
    as_written=as_written,
    with_gapless=with_gapless,
    steps=2,
)
