"""Reinforcement learning: soft actor-critic on a pendulum, one environment step for each update."""

import math

import numpy as np
import torch
from torch import nn, optim
from torch.distributions import Normal
from torch.nn import functional as F


TITLE = "SAC: actions to the host each step, replay buffer in numpy, alpha read, Polyak targets"
STEPS = 100

GAMMA, TAU, POLICY_FREQUENCY, TARGET_NETWORK_FREQUENCY = 0.99, 0.005, 2, 1
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class Pendulum:
    """A pendulum on the host that is to be held upright."""

    def reset(self):
        """Return the observation, [3]."""
        self.angle, self.speed, self.time = math.pi, 0.0, 0
        return self._seen()

    def step(self, action):
        """Return the observation, the reward and whether the episode ended."""
        push = 2.0 * float(np.clip(action[0], -1.0, 1.0))
        self.speed += 0.05 * (15.0 * math.sin(self.angle) + 3.0 * push)
        self.angle += 0.05 * self.speed
        self.time += 1
        turned = (self.angle + math.pi) % (2.0 * math.pi) - math.pi
        reward = -(turned**2 + 0.1 * self.speed**2 + 0.001 * push**2)
        return self._seen(), reward, self.time == 200

    def _seen(self):
        seen = [math.cos(self.angle), math.sin(self.angle), self.speed]
        return np.array(seen, dtype=np.float32)


class ReplayBuffer:
    """What has been seen, on the host."""

    def __init__(self, size, device):
        self.device, self.size, self.count = device, size, 0
        shapes = {"obs": 3, "next_obs": 3, "actions": 1, "rewards": 1, "dones": 1}
        self.parts = {name: np.zeros((size, n), dtype=np.float32) for name, n in shapes.items()}

    def add(self, **values):
        """Take a step."""
        for name, value in values.items():
            self.parts[name][self.count % self.size] = value
        self.count += 1

    def sample(self, batch_size):
        """Return tensors on the device, by name."""
        chosen = np.random.randint(0, min(self.count, self.size), batch_size)
        return {n: torch.from_numpy(p[chosen]).to(self.device) for n, p in self.parts.items()}


class SoftQNetwork(nn.Module):
    """The value of an action."""

    def __init__(self, width):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = (
            nn.Linear(4, width),
            nn.Linear(width, width),
            nn.Linear(width, 1),
        )

    def forward(self, x, a):
        """Return values, [B, 1]."""
        x = F.relu(self.fc1(torch.cat([x, a], 1)))
        return self.fc3(F.relu(self.fc2(x)))


class Actor(nn.Module):
    """Draws actions."""

    def __init__(self, width):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(3, width), nn.Linear(width, width)
        self.fc_mean, self.fc_logstd = nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, x):
        """Return mean and logarithmic deviation, [B, 1] each."""
        x = F.relu(self.fc2(F.relu(self.fc1(x))))
        log_std = torch.tanh(self.fc_logstd(x))
        return self.fc_mean(x), LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1)

    def get_action(self, x):
        """Return actions and their log probabilities, [B, 1] each."""
        mean, log_std = self(x)
        normal = Normal(mean, log_std.exp())
        x_t = normal.rsample()
        action = torch.tanh(x_t)
        log_prob = normal.log_prob(x_t) - torch.log(1.0 - action.pow(2) + 1e-6)
        return action, log_prob.sum(1, keepdim=True)


def train(args):
    """Train; return the actor and the critics."""
    device = args.device
    width, batch_size, learning_starts = (8, 4, 8) if args.is_small else (256, 256, 300)
    envs = Pendulum()
    actor = Actor(width).to(device)
    qf1, qf2, qf1_target, qf2_target = (SoftQNetwork(width).to(device) for _ in range(4))
    qf1_target.load_state_dict(qf1.state_dict())
    qf2_target.load_state_dict(qf2.state_dict())
    q_optimizer = optim.Adam([*qf1.parameters(), *qf2.parameters()], lr=1e-3)
    actor_optimizer = optim.Adam(actor.parameters(), lr=3e-4)
    target_entropy = -1.0
    log_alpha = torch.zeros(1, requires_grad=True, device=device)
    alpha = log_alpha.exp().item()
    a_optimizer = optim.Adam([log_alpha], lr=1e-3)
    rb = ReplayBuffer(10_000, device)
    obs = envs.reset()
    np.random.seed(1)
    for _ in range(learning_starts):
        action = np.random.uniform(-1.0, 1.0, 1)
        next_obs, reward, done = envs.step(action)
        rb.add(obs=obs, next_obs=next_obs, actions=action, rewards=reward, dones=0.0)
        obs = envs.reset() if done else next_obs
    for global_step in args.iterations:
        actions, _ = actor.get_action(torch.Tensor(obs[None]).to(device))
        actions = actions.detach().cpu().numpy()[0]
        next_obs, reward, done = envs.step(actions)
        rb.add(obs=obs, next_obs=next_obs, actions=actions, rewards=reward, dones=0.0)
        obs = envs.reset() if done else next_obs
        data = rb.sample(batch_size)
        with torch.no_grad():
            next_state_actions, next_state_log_pi = actor.get_action(data["next_obs"])
            qf1_next_target = qf1_target(data["next_obs"], next_state_actions)
            qf2_next_target = qf2_target(data["next_obs"], next_state_actions)
            min_qf_next_target = torch.min(qf1_next_target, qf2_next_target)
            min_qf_next_target = min_qf_next_target - alpha * next_state_log_pi
            next_q_value = data["rewards"] + (1 - data["dones"]) * GAMMA * min_qf_next_target
        qf1_loss = F.mse_loss(qf1(data["obs"], data["actions"]), next_q_value)
        qf2_loss = F.mse_loss(qf2(data["obs"], data["actions"]), next_q_value)
        qf_loss = qf1_loss + qf2_loss
        q_optimizer.zero_grad()
        qf_loss.backward()
        q_optimizer.step()
        if global_step % POLICY_FREQUENCY == 0:
            for _ in range(POLICY_FREQUENCY):
                pi, log_pi = actor.get_action(data["obs"])
                min_qf_pi = torch.min(qf1(data["obs"], pi), qf2(data["obs"], pi))
                actor_loss = (alpha * log_pi - min_qf_pi).mean()
                actor_optimizer.zero_grad()
                actor_loss.backward()
                actor_optimizer.step()
                with torch.no_grad():
                    _, log_pi = actor.get_action(data["obs"])
                alpha_loss = (-log_alpha.exp() * (log_pi + target_entropy)).mean()
                a_optimizer.zero_grad()
                alpha_loss.backward()
                a_optimizer.step()
                alpha = log_alpha.exp().item()
        if global_step % TARGET_NETWORK_FREQUENCY == 0:
            for param, target_param in zip(qf1.parameters(), qf1_target.parameters(), strict=True):
                target_param.data.copy_(TAU * param.data + (1 - TAU) * target_param.data)
            for param, target_param in zip(qf2.parameters(), qf2_target.parameters(), strict=True):
                target_param.data.copy_(TAU * param.data + (1 - TAU) * target_param.data)
        if global_step % 100 == 0:
            args.log(qf_loss=qf_loss.item() / 2.0, actor_loss=actor_loss.item(), alpha=alpha)
    return actor, qf1, qf2
