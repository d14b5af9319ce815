"""A robot's policy: chunks of actions from cameras and joints, through a Transformer with a latent."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from benchmarks.models.residual import Block


TITLE = "ACT: cameras and joints to chunks of actions, clipping, three numbers read each step"
STEPS = 40

JOINTS, LATENT = 14, 32


class ACT(nn.Module):
    """An encoder of what is to be done (for the latent), one of what is seen, and a decoder."""

    def __init__(self, width, depth, heads, chunk, channels):
        super().__init__()
        self.chunk = chunk
        layer = {"dim_feedforward": 4 * width, "dropout": 0.1, "batch_first": True}
        self.vae_in, self.vae_cls = nn.Linear(JOINTS, width), nn.Embedding(1, width)
        self.vae_encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, heads, **layer), depth, enable_nested_tensor=False
        )
        self.vae_out = nn.Linear(width, 2 * LATENT)
        blocks = [nn.Conv2d(3, channels, 7, 4, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        blocks += [Block(channels << i, channels << (i + 1), stride=2) for i in range(3)]
        self.backbone = nn.Sequential(*blocks)
        self.image_in = nn.Conv2d(channels << 3, width, 1)
        self.state_in, self.latent_in = nn.Linear(JOINTS, width), nn.Linear(LATENT, width)
        self.transformer = nn.Transformer(width, heads, depth, 1, **layer)
        self.transformer.encoder.enable_nested_tensor = False
        self.queries = nn.Parameter(torch.randn(1, chunk, width) * 0.02)
        self.action_head = nn.Linear(width, JOINTS)

    def forward(self, image, state, actions):
        """Return actions, [B, chunk, JOINTS], and mean and logarithmic variance of the latent."""
        size = len(image)
        cls = self.vae_cls.weight.unsqueeze(0).expand(size, -1, -1)
        encoded = self.vae_encoder(torch.cat([cls, self.vae_in(actions)], dim=1))[:, 0]
        mu, log_sigma_x2 = self.vae_out(encoded).chunk(2, dim=1)
        latent = mu + log_sigma_x2.div(2).exp() * torch.randn_like(mu)
        features = self.image_in(self.backbone(image)).flatten(2).transpose(1, 2)
        tokens = [self.latent_in(latent)[:, None], self.state_in(state)[:, None], features]
        out = self.transformer(torch.cat(tokens, dim=1), self.queries.expand(size, -1, -1))
        return self.action_head(out), mu, log_sigma_x2


class ACTPolicy(nn.Module):
    """The model with its loss."""

    def __init__(self, *sizes):
        super().__init__()
        self.model, self.kl_weight = ACT(*sizes), 10.0

    def forward(self, batch):
        """Return the loss and a dictionary of numbers."""
        actions = batch["action"]
        actions_hat, mu, log_sigma_x2 = self.model(batch["image"], batch["state"], actions)
        l1_loss = (F.l1_loss(actions_hat, actions, reduction="none") * batch["mask"]).mean()
        mean_kld = (-0.5 * (1 + log_sigma_x2 - mu.pow(2) - log_sigma_x2.exp())).sum(-1).mean()
        loss = l1_loss + mean_kld * self.kl_weight
        return loss, {"l1_loss": l1_loss.item(), "kld_loss": mean_kld.item()}


def make_episodes(count, side, chunk):
    """Return dictionaries of an image, joints, and what they do next."""
    draw = torch.Generator().manual_seed(0)
    episodes = []
    for _ in range(count):
        state = torch.randn(JOINTS, generator=draw)
        action = state + 0.1 * torch.randn(chunk, JOINTS, generator=draw).cumsum(dim=0)
        image = torch.rand(3, side, side, generator=draw)
        mask = torch.arange(chunk) < int(torch.randint(chunk // 2, chunk + 1, (), generator=draw))
        episodes.append({"image": image, "state": state, "action": action, "mask": mask[:, None]})
    return episodes


def train(args):
    """Train; return the policy."""
    device = args.device
    sizes = (16, 1, 2, 4, 4) if args.is_small else (512, 4, 8, 100, 32)
    batch_size, side = (2, 32) if args.is_small else (8, 128)
    loader_args = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    loader_args["pin_memory"] = device.type == "cuda"
    episodes = make_episodes(args.steps * batch_size, side, sizes[3])
    dataloader = DataLoader(episodes, batch_size, shuffle=True, **loader_args)
    policy = ACTPolicy(*sizes).to(device)
    backbone = [p for n, p in policy.named_parameters() if "backbone" in n]
    others = [p for n, p in policy.named_parameters() if "backbone" not in n]
    groups = [{"params": others}, {"params": backbone, "lr": 1e-5}]
    optimizer = torch.optim.AdamW(groups, lr=1e-5, weight_decay=1e-4)
    policy.train()
    for _ in args.epochs:
        for batch in args.progress(dataloader):
            batch = {name: part.to(device, non_blocking=True) for name, part in batch.items()}
            loss, output_dict = policy(batch)
            loss.backward()
            grad_norm = nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
            optimizer.step()
            optimizer.zero_grad()
            args.log(loss=loss.item(), grad_norm=grad_norm.item(), **output_dict)
    return policy
