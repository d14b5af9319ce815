"""An image classifier: a residual network in half precision, with an average of its weights."""

from copy import deepcopy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.models.residual import Block


TITLE = "ResNet: fp16 autocast, GradScaler, EMA, loss and accuracy read each step"
STEPS = 60


class ModelEma:
    """An average of a model's weights and buffers."""

    def __init__(self, model, decay):
        self.module, self.decay = deepcopy(model).eval(), decay

    @torch.no_grad()
    def update(self, model):
        """Take a step towards the model."""
        pairs = zip(self.module.state_dict().values(), model.state_dict().values(), strict=True)
        for mean, value in pairs:
            mean.copy_(self.decay * mean + (1.0 - self.decay) * value)


def make_model(width, depth):
    """Return a residual network of three stages."""
    layers = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    num_in = width
    for stage in range(3):
        num_out = width << stage
        for number in range(depth):
            layers.append(Block(num_in, num_out, stride=2 if stage and not number else 1))
            num_in = num_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(num_in, 10))


def make_images(count, seed):
    """Return noise with a bright stripe that tells the label."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=draw)
    images = torch.randn(count, 3, 32, 32, generator=draw)
    images[torch.arange(count), :, 3 * labels] += 1.0
    return TensorDataset(images, labels)


def accuracy(output, target):
    """Return the percentage of hits."""
    return output.argmax(dim=1).eq(target).sum() * (100.0 / target.shape[0])


def evaluate(model, device, loader, args):
    """Log the accuracy of a model."""
    hits = 0
    model.eval()
    with torch.inference_mode():
        for image, target in loader:
            image, target = image.to(device), target.to(device)
            hits += model(image).argmax(dim=1).eq(target).sum().item()
    args.log(acc=hits / len(loader.dataset))


def train(args):
    """Train; return the model and the average."""
    device = args.device
    width, depth, batch_size = (8, 1, 4) if args.is_small else (64, 2, 128)
    half = torch.float16 if device.type == "cuda" else torch.bfloat16
    loader_args = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    loader_args["pin_memory"] = device.type == "cuda"
    data_loader = DataLoader(
        make_images(args.steps * batch_size, 1), batch_size, shuffle=True, **loader_args
    )
    data_loader_test = DataLoader(make_images(2 * batch_size, 2), batch_size, **loader_args)
    model = make_model(width, depth).to(device)
    model_ema = ModelEma(model, decay=0.999)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device.type)
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=90)
    for _ in args.epochs:
        model.train()
        for image, target in args.progress(data_loader):
            image, target = image.to(device), target.to(device)
            with torch.autocast(device.type, dtype=half):
                output = model(image)
                loss = criterion(output, target)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            model_ema.update(model)
            args.log(loss=loss.item(), acc1=accuracy(output, target).item())
        lr_scheduler.step()
        evaluate(model, device, data_loader_test, args)
        evaluate(model_ema.module, device, data_loader_test, args)
    return model, model_ema.module
