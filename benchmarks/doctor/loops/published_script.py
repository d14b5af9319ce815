"""Train one of the published scripts for an epoch, from its own file."""

import argparse
import importlib.util

import torch

from benchmarks.launch_bound.args import Args, FixedTurns
from benchmarks.launch_bound.variants import FOLDER


parser = argparse.ArgumentParser()
parser.add_argument("name")
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--small", action="store_true")
chosen = parser.parse_args()
spec = importlib.util.spec_from_file_location(chosen.name, FOLDER / f"{chosen.name}.py")
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1)
script.train(Args(device=device, steps=chosen.steps, is_small=chosen.small, turns=FixedTurns(1)))
