"""Molecules: a graph network on mini-batches of small graphs, which foretells a number of each."""

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader


TITLE = "molecules: GIN with edges, index_add, mini-batches of graphs, loss read each step"
STEPS = 60

NUM_ATOMS, NUM_BONDS = 28, 4


class GINEConv(nn.Module):
    """Sums what the neighbours say over their bonds."""

    def __init__(self, width):
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.bond = nn.Embedding(NUM_BONDS, width)
        self.nn = nn.Sequential(
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width)
        )

    def forward(self, x, edge_index, edge_attr):
        """Return features, [N, width]; edges, [2, E], go from the first row to the second."""
        messages = F.relu(x[edge_index[0]] + self.bond(edge_attr))
        summed = torch.zeros_like(x).index_add(0, edge_index[1], messages)
        return self.nn((1.0 + self.eps) * x + summed)


class Net(nn.Module):
    """Convolutions, a sum over the atoms of each molecule, and a head."""

    def __init__(self, width, depth):
        super().__init__()
        self.atom = nn.Embedding(NUM_ATOMS, width)
        self.convs = nn.ModuleList(GINEConv(width) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x, edge_index, edge_attr, batch, size=None):
        """Return a number for each molecule; `batch` says of each atom which is its own, [N]."""
        x = self.atom(x)
        for conv in self.convs:
            x = x + F.relu(conv(x, edge_index, edge_attr))
        if size is None:
            size = int(batch.max()) + 1
        pooled = torch.zeros(size, x.shape[1], device=x.device).index_add(0, batch, x)
        return self.head(pooled).squeeze(1)


def make_molecules(count, *, is_changing):
    """Return atoms, bonds in both directions, their kinds, and a number, for each molecule."""
    draw = torch.Generator().manual_seed(0)
    sizes = torch.randint(9, 38, (count,), generator=draw) if is_changing else [23] * count
    molecules = []
    for size in map(int, sizes):
        atoms = torch.randint(NUM_ATOMS, (size,), generator=draw)
        far = torch.arange(1, size)
        near = (torch.rand(size - 1, generator=draw) * far).long()
        bonds = torch.stack([torch.cat([near, far]), torch.cat([far, near])])
        kinds = torch.randint(NUM_BONDS, (size - 1,), generator=draw).repeat(2)
        molecules.append((atoms, bonds, kinds, atoms.float().mean() / NUM_ATOMS))
    return molecules


def collate(molecules):
    """Return one graph of several molecules."""
    atoms, bonds, kinds, targets = zip(*molecules, strict=True)
    counts = torch.tensor([len(part) for part in atoms])
    starts = counts.cumsum(0) - counts
    edge_index = torch.cat([part + start for part, start in zip(bonds, starts, strict=True)], 1)
    batch = torch.arange(len(atoms)).repeat_interleave(counts)
    return torch.cat(atoms), edge_index, torch.cat(kinds), batch, torch.stack(targets)


def train(args):
    """Train; return the model."""
    device = args.device
    width, depth, batch_size = (8, 1, 4) if args.is_small else (64, 5, 128)
    molecules = make_molecules(args.steps * batch_size, is_changing=args.is_changing)
    loader_args = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    loader = DataLoader(molecules, batch_size, shuffle=True, collate_fn=collate, **loader_args)
    model = Net(width, depth).to(device)
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    for _ in args.epochs:
        model.train()
        total_error = 0.0
        for parts in args.progress(loader):
            x, edge_index, edge_attr, batch, y = (part.to(device) for part in parts)
            optimizer.zero_grad()
            out = model(x, edge_index, edge_attr, batch)
            loss = F.l1_loss(out, y)
            loss.backward()
            optimizer.step()
            total_error += loss.item() * len(y)
            args.log(loss=loss.item())
        args.log(epoch_error=total_error / len(molecules))
    return model
