"""SAC of stable-baselines3 on Pendulum."""

import torch
from stable_baselines3 import SAC

import gapless
from benchmarks.recipes.clock import clock


model = SAC(
    "MlpPolicy", "Pendulum-v1", learning_starts=30, gradient_steps=1, device=clock.device, seed=1
)
actor, critic, target = model.actor, model.critic, model.critic_target
optimizers = [actor.optimizer, critic.optimizer, model.ent_coef_optimizer]
torch.distributions.Distribution.set_default_validate_args(False)  # gapless
gapless.capture(actor, critic, target, *optimizers, device=clock.device)  # gapless
clock.length = 20 if clock.tiny else 60
model.train = clock.timed(model.train, num=1)
model.learn(total_timesteps=10**9)
