"""ACT of LeRobot: two cameras, chunks of actions, random weights."""

import torch
from transformers import AutoProcessor, AutoTokenizer  # noqa: F401  # before others are absent

from benchmarks.recipes.absent import stand_in_for, without_its_init

stand_in_for(
    "datasets",
    "av",
    "jsonlines",
    "wandb",
    "cv2",
    "pyarrow",
    "deepdiff",
    "imageio",
    "serial",
    "torchcodec",
    "termcolor",
    "pandas",
    "draccus",
)
without_its_init("lerobot.policies")
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy

import gapless
from benchmarks.recipes.clock import clock


torch.manual_seed(1)
num, side = (2, 32) if clock.tiny else (8, 96)
cameras = ["observation.images.top", "observation.images.wrist"]
config = ACTConfig(
    input_features={
        "observation.state": PolicyFeature(FeatureType.STATE, (14,)),
        **{name: PolicyFeature(FeatureType.VISUAL, (3, side, side)) for name in cameras},
    },
    output_features={"action": PolicyFeature(FeatureType.ACTION, (14,))},
    chunk_size=20,
    n_action_steps=20,
    pretrained_backbone_weights=None,
    dim_model=64 if clock.tiny else 512,
    dim_feedforward=128 if clock.tiny else 3200,
    device=clock.device.type,
)
policy = ACTPolicy(config).to(clock.device)
policy.train()
optimizer = torch.optim.AdamW(policy.get_optim_params(), lr=1e-5, weight_decay=1e-4)
episodes = [
    {
        "observation.state": torch.randn(num, 14),
        **{name: torch.rand(num, 3, side, side) for name in cameras},
        "action": torch.randn(num, 20, 14),
        "action_is_pad": torch.zeros(num, 20, dtype=torch.bool),
    }
    for _ in range(8)
]
gapless.capture(policy.model, optimizer, device=clock.device)  # gapless
clock.length = 10 if clock.tiny else 20
clock.start()
step = 0
while True:
    batch = {
        name: part.to(clock.device, non_blocking=True) for name, part in episodes[step % 8].items()
    }
    loss, logs = policy.forward(batch)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0, error_if_nonfinite=False)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    clock.count()
