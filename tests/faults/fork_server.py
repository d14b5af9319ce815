"""A process that has imported all of gapless and becomes `gapless ...` again and again.

Importing torch takes two seconds. This server imports once; each request makes a copy of it, which
runs the command line as `python -m gapless` would: in a session of its own, with its own files,
folder, environment and signals. Start it as

    python -m faults.fork_server SOCKET_NUMBER

A request is one line of JSON with three open files. The answers are lines of JSON: which process
was started, and which has ended how.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading


PRELOADED = [
    "gapless.cli.main",
    "gapless.cli.checkpoint_command",
    "gapless.cli.store_command",
    "gapless.nmt.run.new_run",
    "gapless.nmt.run.translator",
    "gapless.nmt.data.text_files",
    "sacrebleu.tokenizers.tokenizer_none",
    "gapless.cli.train_command",
    "gapless.cli.translate_command",
    "gapless.cli.evaluate_command",
    "gapless.cli.doctor_command",
    "gapless.cli.doctor_reports",
    "gapless.doctor.static.look",
    "gapless.doctor.session.run",
    "gapless.doctor.lines.backward_lines",
    "gapless.doctor.lines.sites",
    "gapless.doctor.trace.profiler",
    "gapless.nmt.run.trainer",
    "torch._inductor",  # which deterministic algorithms load
    "torch.utils.data",
    "torch.utils.tensorboard",
    "safetensors.torch",
    "sentencepiece",
    "yaml",
]


def preload():
    """Import what takes long; a name that is not there yet is no reason to fail."""
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"fork server: {error}", file=sys.stderr)
    gc.freeze()


def serve(link):
    """Start processes until the client is gone; return the request in each of them."""
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([link, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            for pid, status in ended():
                tell(link, ended=pid, code=os.waitstatus_to_exitcode(status))
        if link in ready:
            raw, files, _, _ = socket.recv_fds(link, 1 << 20, 3)
            if not raw:
                sys.exit(0)
            request = json.loads(raw)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for number in (woken, waker):
                    os.close(number)
                link.close()
                return request, files
            for number in files:
                os.close(number)
            tell(link, started=pid)


def ended():
    """Yield the processes that ended since the last look."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def tell(link, **answer):
    link.sendall(json.dumps(answer).encode() + b"\n")


def become(request, files):
    """Give this process the files, folder, environment and signals of a new one."""
    os.setsid()
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                continue  # kept by the C library for itself
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python does
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for name in request["ignored"]:
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    for target, number in enumerate(files):
        os.dup2(number, target)
    for number in files:
        if number > 2:
            os.close(number)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["gapless", *request["arguments"]]


def end(run):
    """Run something and exit with its code, as Python does, but take no library down.

    What Python does after this walks through all modules: 0.4 s of each process.
    """
    code = 0
    try:
        run()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120  # as Python's own
    os._exit(code)


def run_request():
    """Run the code that comes first, and the command."""
    exec(request["before"], {})
    if request["module"] == "gapless":
        from gapless.cli.main import main

        main()
    else:
        importlib.import_module(request["module"]).main(*request["arguments"])


link = socket.socket(fileno=int(sys.argv[1]))
preload()
tell(link, ready=os.getpid())
request, files = serve(link)
become(request, files)
end(run_request)
