"""Reinforcement learning: PPO on many poles at once, which fall on the device."""

import numpy as np
import torch
from torch import nn, optim
from torch.distributions.categorical import Categorical


TITLE = "PPO: environments on the device, clip fraction read each minibatch, logs each update"
STEPS = 8

GAMMA, GAE_LAMBDA, CLIP_COEF, ENT_COEF, VF_COEF = 0.99, 0.95, 0.2, 0.01, 0.5
UPDATE_EPOCHS, MINIBATCHES = 4, 4


class Poles:
    """Poles on carts that are pushed left or right; a step is a function of tensors."""

    def __init__(self, count, device):
        self.count, self.device = count, device

    def reset(self):
        """Return the observations, [count, 4]."""
        return torch.rand(self.count, 4, device=self.device) * 0.1 - 0.05

    def step(self, state, action):
        """Return observations, rewards and whether each episode ended."""
        _, speed, angle, turn = state.unbind(1)
        push = 20.0 * action - 10.0
        sine, cosine = angle.sin(), angle.cos()
        part = (push + 0.05 * turn.square() * sine) / 1.1
        bend = (9.8 * sine - cosine * part) / (0.5 * (4.0 / 3.0 - 0.1 * cosine.square() / 1.1))
        pull = part - 0.05 * bend * cosine / 1.1
        state = state + 0.02 * torch.stack([speed, pull, turn, bend], dim=1)
        ended = (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 0.21)
        state = torch.where(ended[:, None], self.reset(), state)
        return state, 1.0 - 2.0 * ended.float(), ended.float()


class Agent(nn.Module):
    """A critic and an actor."""

    def __init__(self, width):
        super().__init__()
        self.critic, self.actor = self._make(width, 1), self._make(width, 2)

    @staticmethod
    def _make(width, num_out):
        return nn.Sequential(
            nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, num_out),
        )  # fmt: skip

    def get_value(self, x):
        """Return the values, [B]."""
        return self.critic(x).flatten()

    def get_action_and_value(self, x, action=None):
        """Return actions, their log probabilities, the entropy and the values."""
        probs = Categorical(logits=self.actor(x), validate_args=False)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x).flatten()


def train(args):
    """Train; return the agent."""
    device = args.device
    num_envs, num_steps, width = (4, 8, 8) if args.is_small else (64, 64, 64)
    batch_size = num_envs * num_steps
    minibatch_size = batch_size // MINIBATCHES
    envs = Poles(num_envs, device)
    agent = Agent(width).to(device)
    optimizer = optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    obs = torch.zeros(num_steps, num_envs, 4, device=device)
    actions, logprobs, rewards, dones, values = torch.zeros(5, num_steps, num_envs, device=device)
    next_obs, next_done = envs.reset(), torch.zeros(num_envs, device=device)
    for update in args.iterations:
        optimizer.param_groups[0]["lr"] = 2.5e-4 * (1.0 - update / 10_000)
        for step in range(num_steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step], actions[step], logprobs[step] = value, action, logprob
            next_obs, rewards[step], next_done = envs.step(next_obs, action)
        with torch.no_grad():
            next_value, lastgaelam = agent.get_value(next_obs), 0.0
            advantages = torch.zeros_like(rewards)
            for t in reversed(range(num_steps)):
                alive = 1.0 - (next_done if t == num_steps - 1 else dones[t + 1])
                after = next_value if t == num_steps - 1 else values[t + 1]
                delta = rewards[t] + GAMMA * after * alive - values[t]
                advantages[t] = lastgaelam = delta + GAMMA * GAE_LAMBDA * alive * lastgaelam
            returns = advantages + values
        b_obs, b_actions, b_logprobs = obs.flatten(0, 1), actions.flatten(), logprobs.flatten()
        b_advantages, b_returns = advantages.flatten(), returns.flatten()
        b_inds, clipfracs = np.arange(batch_size), []
        for _ in range(UPDATE_EPOCHS):
            np.random.shuffle(b_inds)
            for start in range(0, batch_size, minibatch_size):
                mb = torch.from_numpy(b_inds[start : start + minibatch_size].copy()).to(device)
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                    b_obs[mb], b_actions[mb]
                )
                logratio = newlogprob - b_logprobs[mb]
                ratio = logratio.exp()
                with torch.no_grad():
                    approx_kl = ((ratio - 1) - logratio).mean()
                    clipfracs.append(((ratio - 1.0).abs() > CLIP_COEF).float().mean().item())
                advantage = b_advantages[mb]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = torch.clamp(ratio, 1 - CLIP_COEF, 1 + CLIP_COEF)
                pg_loss = torch.max(-advantage * ratio, -advantage * clipped).mean()
                v_loss = 0.5 * ((newvalue - b_returns[mb]) ** 2).mean()
                loss = pg_loss - ENT_COEF * entropy.mean() + v_loss * VF_COEF
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        args.log(value_loss=v_loss.item(), policy_loss=pg_loss.item(), kl=approx_kl.item())
        args.log(clipfrac=float(np.mean(clipfracs)), reward=rewards.mean().item())
    return agent
