"""PPO of rsl_rl, for robots: 64 environments that compute on the device and hold random observations."""

import torch
from benchmarks.recipes.absent import stand_in_for

stand_in_for("git", "wandb", "neptune")
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

import gapless
from benchmarks.recipes.clock import clock


class Robots(VecEnv):
    def __init__(self, num_envs, device):
        self.num_envs, self.num_actions, self.max_episode_length = num_envs, 12, 1000
        self.device, self.cfg = device, {}
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=device)
        self.mix = torch.randn(48, 12, device=device)

    def get_observations(self):
        seen = torch.randn(self.num_envs, 48, device=self.device)
        return TensorDict({"policy": seen}, batch_size=[self.num_envs], device=self.device)

    def step(self, actions):
        seen = self.get_observations()
        reward = -(seen["policy"] @ self.mix - actions).square().mean(1)
        done = torch.rand(self.num_envs, device=self.device) < 0.01
        return seen, reward, done.long(), {}


torch.manual_seed(1)
config = {
    "num_steps_per_env": 24,
    "save_interval": 1000,
    "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
    "algorithm": {"class_name": "PPO", "num_learning_epochs": 5, "num_mini_batches": 4},
    "actor": {
        "class_name": "MLPModel",
        "hidden_dims": [128, 128, 128],
        "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0},
    },
    "critic": {"class_name": "MLPModel", "hidden_dims": [128, 128, 128]},
}
runner = OnPolicyRunner(Robots(64, clock.device), config, device=str(clock.device))
actor, critic, optimizer = runner.alg.actor, runner.alg.critic, runner.alg.optimizer
# torch.normal, of which samples are drawn, looks at their deviation on the host; this draws the same.
torch.distributions.Normal.sample = lambda self, shape=(): self.rsample(shape).detach()  # gapless
gapless.capture(actor, critic, optimizer, device=clock.device)  # gapless
clock.length = 20 if clock.tiny else 40
runner.alg.update = clock.timed(runner.alg.update, num=20)
runner.learn(num_learning_iterations=10**9)
