"""Segmentation: a U-Net that finds shapes, with a Dice loss, in half precision."""

from itertools import pairwise

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader


TITLE = "segmentation: U-Net, fp16 and GradScaler, clipping, plateau, loss read each step"
STEPS = 60


def double_conv(num_in, num_out):
    """Return two convolutions with norms."""
    layers = []
    for number in (num_in, num_out):
        layers += [
            nn.Conv2d(number, num_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_out),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Three steps down, three steps up, with connections across."""

    def __init__(self, width):
        super().__init__()
        widths = [width << stage for stage in range(4)]
        self.start = double_conv(3, width)
        pairs = list(pairwise(widths))
        self.downs = nn.ModuleList(double_conv(*pair) for pair in pairs)
        self.grows = nn.ModuleList(
            nn.ConvTranspose2d(wide, narrow, 2, stride=2) for narrow, wide in reversed(pairs)
        )
        self.ups = nn.ModuleList(double_conv(wide, narrow) for narrow, wide in reversed(pairs))
        self.end = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        """Return logits, [B, 1, H, W], of images, [B, 3, H, W]."""
        x = self.start(x)
        across = []
        for down in self.downs:
            across.append(x)
            x = down(F.max_pool2d(x, 2))
        for grow, up, other in zip(self.grows, self.ups, reversed(across), strict=True):
            x = up(torch.cat([other, grow(x)], dim=1))
        return self.end(x)


def dice_loss(shares, masks):
    """Return one minus twice the overlap over the sum, of [B, H, W]."""
    overlap = 2.0 * (shares * masks).sum(dim=(1, 2))
    sums = shares.sum(dim=(1, 2)) + masks.sum(dim=(1, 2))
    return 1.0 - ((overlap + 1e-6) / (sums + 1e-6)).mean()


def make_shapes(count, side, seed):
    """Return dictionaries of noisy images and the rectangles in them."""
    draw = torch.Generator().manual_seed(seed)
    samples = []
    corners = torch.randint(side // 2, (count, 2), generator=draw).tolist()
    for top, left in corners:
        mask = torch.zeros(side, side)
        mask[top : top + side // 2, left : left + side // 3] = 1.0
        image = torch.randn(3, side, side, generator=draw) * 0.5 + mask
        samples.append({"image": image, "mask": mask})
    return samples


@torch.inference_mode()
def evaluate(net, dataloader, device):
    """Return the mean Dice score."""
    net.eval()
    dice_score = torch.zeros((), device=device)
    for batch in dataloader:
        image, mask_true = batch["image"].to(device), batch["mask"].to(device)
        mask_pred = (torch.sigmoid(net(image)) > 0.5).float().squeeze(1)
        dice_score += 1.0 - dice_loss(mask_pred, mask_true)
    net.train()
    return dice_score / len(dataloader)


def train(args):
    """Train; return the model."""
    device = args.device
    width, side, batch_size = (4, 16, 2) if args.is_small else (32, 128, 8)
    half = torch.float16 if device.type == "cuda" else torch.bfloat16
    loader_args = {"batch_size": batch_size, "num_workers": args.workers}
    loader_args |= {"persistent_workers": args.workers > 0, "pin_memory": device.type == "cuda"}
    train_set = make_shapes(args.steps * batch_size, side, 1)
    train_loader = DataLoader(train_set, shuffle=True, **loader_args)
    val_loader = DataLoader(make_shapes(2 * batch_size, side, 2), **loader_args)
    model = UNet(width).to(device)
    optimizer = optim.Adam(model.parameters(), lr=1e-4, weight_decay=1e-8)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
    grad_scaler = torch.amp.GradScaler(device.type)
    criterion = nn.BCEWithLogitsLoss()
    for _ in args.epochs:
        model.train()
        epoch_loss = 0.0
        for batch in args.progress(train_loader):
            images, true_masks = batch["image"].to(device), batch["mask"].to(device)
            with torch.autocast(device.type, dtype=half):
                masks_pred = model(images).squeeze(1)
                loss = criterion(masks_pred, true_masks)
                loss += dice_loss(torch.sigmoid(masks_pred), true_masks)
            optimizer.zero_grad(set_to_none=True)
            grad_scaler.scale(loss).backward()
            grad_scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            grad_scaler.step(optimizer)
            grad_scaler.update()
            epoch_loss += loss.item()
            args.log(loss=loss.item())
        val_score = evaluate(model, val_loader, device)
        scheduler.step(val_score)
        args.log(epoch_loss=epoch_loss, dice=val_score.item())
    return model
