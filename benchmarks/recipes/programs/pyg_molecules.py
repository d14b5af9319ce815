"""PyTorch Geometric: mini-batches of small graphs, padded to one size each by its own transform."""

from benchmarks.recipes.absent import stand_in_for

stand_in_for("scipy", "sklearn", "pandas", "requests", "matplotlib", "xxhash")
from itertools import pairwise

import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_mean_pool
from torch_geometric.transforms import Pad

import gapless
from benchmarks.recipes.clock import clock


torch.manual_seed(1)
pad = Pad(max_num_nodes=32, max_num_edges=80, add_pad_mask=True)
graphs = []
for _ in range(256):
    num = int(torch.randint(10, 30, ()))
    edges = torch.randint(num, (2, 2 * num))
    graphs.append(pad(Data(x=torch.randn(num, 16), edge_index=edges, y=torch.randn(1))))


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [16, 64, 64, 64]
        self.layers = torch.nn.ModuleList(
            GINConv(
                torch.nn.Sequential(
                    torch.nn.Linear(num, out), torch.nn.ReLU(), torch.nn.Linear(out, out)
                )
            )
            for num, out in pairwise(sizes)
        )
        self.out = torch.nn.Linear(64, 1)

    def forward(self, x, edge_index, batch, num):
        for layer in self.layers:
            x = layer(x, edge_index).relu()
        return self.out(global_mean_pool(x, batch, num)).squeeze(1)


model = Network().to(clock.device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(graphs, batch_size=32, shuffle=True)
gapless.capture(model, optimizer, device=clock.device)  # gapless
clock.length = 16 if clock.tiny else 40
clock.start()
while True:
    for data in loader:
        data = data.to(clock.device)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(
            model(data.x, data.edge_index, data.batch, data.num_graphs), data.y
        )
        loss.backward()
        optimizer.step()
        clock.count()
