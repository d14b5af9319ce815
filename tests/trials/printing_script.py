"""A script that prints and logs numbers of its device in many ways; run by test_late_printing.

`printing_script.py written|late END LOG [cuda]` trains on a device whose work runs late, or on a GPU, and
logs to a file as well. It ends with END: "stop" takes the variant out and says what was seen,
"raise" and "exit" leave it in.
"""

import io
import json
import logging
import subprocess
import sys
from contextlib import nullcontext

import torch

from gapless.device.find import find_device
from gapless.trials.late_reads import LateReads
from late_device import LateDevice


is_late, end, is_on_gpu = sys.argv[1] == "late", sys.argv[2], "cuda" in sys.argv
device = find_device("cuda") if is_on_gpu else LateDevice(seed=5, eagerness=0.03)
place = device.torch_device if is_late or is_on_gpu else torch.device("cpu")

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger("train")
to_file = logging.getLogger("file")
to_file.addHandler(logging.FileHandler(sys.argv[3]))


class Meter:
    def __init__(self):
        self.total = 0.0
        self.count = 0

    def update(self, value, count):
        self.total += value * count
        self.count += count

    def __str__(self):
        return f"mean {self.total / self.count:.4f}"


def shown(value):
    return f"<{value:.2f}>"


def padded(value):
    return value.rjust(12)


def main():
    meter, losses, total, running, width = Meter(), [], 0, 0.0, 12
    beside = io.StringIO()
    for step in range(24):
        loss = torch.tensor(1.0 / (step + 1)).to(place, non_blocking=True)
        right = torch.tensor(step).to(place, non_blocking=True)
        value = loss.item()
        losses.append(value)
        running += value
        total += right.item()
        meter.update(value, 4)
        print(f"step {step:3d} loss {value:.4f} right {total:>6} mean {running / (step + 1):8.3f}")
        if step % 4 == 0:
            print("as it is", value, total, [value, {"a": value}], sep=" | ")
            print(meter, shown(value), "rounded", round(value * 100, 2))
            log.info("loss %.3f of %s", value, "many")
            log.warning(f"loss {value:.2e}, {meter}")  # noqa: G004
            sys.stdout.write("written {:.3f} {}\n".format(value, total))  # noqa: UP032
            sys.stderr.write(
                "error " + f"{value!r}" + (f" {loss:.3f}" if step else " none") + "\n"
            )
            print(f"by float {float(loss):.3f}", flush=True)
        if step % 4 == 1:
            print(f"{value!s:>30}|")
        if step % 4 == 2:
            print(f"{value:{width}.3f}|")
        if step % 4 == 3:
            print(f"beside {value:.3f}", file=beside)
        if step % 5 == 4:
            to_file.info(f"file {value:.3f}")
            to_file.warning("file %.3f", value)
            print(padded(f"{value:.2f}"), "%.3f" % value, f"{value!s:>30}", "-".join([str(value)]))  # noqa: UP031
            print(f"{loss.cpu().item():.3f}", loss.cpu() + 1, right.cpu().numpy(), loss.tolist())
        if step == 13:
            subprocess.run([sys.executable, "-S", "-c", "print('child')"], check=True)
            sys.stdout.buffer.write(b"bytes\n")
        if value < 0.05:  # compares
            print("small")
    print(json.dumps(losses[:3]), torch.tensor(losses).sum(), max(losses), total)
    print(f"plain {value:.3f}")
    print(beside.getvalue(), len(beside.getvalue()))
    return losses


with nullcontext() if is_on_gpu else device:
    variant = LateReads(device)
    if is_late:
        variant.start(lambda optimizer: None)
    kept = main()
    if end == "raise":
        raise ValueError(f"ended with {kept[-1]:.3f}")
    if end == "exit":
        print(f"last {kept[-1]:.3f}")
        sys.exit(3)
    variant.stop()
    variant.close()
    print({type(each).__name__ for each in kept})
    if is_late:
        print(*variant.details, sep="\n")
