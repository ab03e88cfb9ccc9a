"""Forks of a process that reads a URL, as torch's workers are."""

import subprocess
import sys
from pathlib import Path

from tests.remote.test_remote import S3

# Prints the threads of ours that live at the first fork, and what threads have imported until the last one.
JOB = """
import os, sys, threading
late, threads = set(), []
def look(event, args):
    if event == "import" and threading.current_thread() is not threading.main_thread():
        late.add(args[0])
sys.addaudithook(look)
from loaders import DataLoader, ShardDataset
storage = {"skip_signature": True, "endpoint": sys.argv[1]}
dataset = ShardDataset(sys.argv[2], cache=sys.argv[3], storage=storage)
os.register_at_fork(before=lambda: threads.append([each.name for each in threading.enumerate()[1:]]))
options = dict(batch_size=16, num_workers=2, backend="process", shuffle=True, timeout=60)
options["multiprocessing_context"] = "fork"  # Python 3.14 takes another
numbers = []
for epoch in range(3):
    for batch in DataLoader(dataset, seed=epoch, **options):
        numbers += batch.label.tolist()
print(len(numbers), threads[0], sorted(late))
"""


def test_worker_processes_start_before_the_threads_that_tell_the_fetcher(
    packed: Path, server: str, cache: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", JOB, server, S3, str(cache)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=110,
        check=True,
    )

    assert done.stdout.split("\n")[0] == "1800 [] []"


# Two processes ask at the same time, of which one is a fork of the other, which has a connection.
FORKED = """
import os, sys
from loaders.remote.origin import origin_of
from loaders.remote.url import url_of
origin = origin_of(url_of(sys.argv[2]), sys.argv[3], {"skip_signature": True, "endpoint": sys.argv[1]})
data = (origin.manifest() / "manifest.json").read_bytes()
child = os.fork()
spans = [(at, at + 10) for at in range(0 if child else 100, 300)]
is_right = all(origin.ranges([("manifest.json", *s)]) == [data[slice(*s)]] for s in spans)
if not child:
    os._exit(not is_right)
print(is_right, os.waitpid(child, 0)[1])
"""


def test_a_forked_process_gets_no_answers_of_its_parent(server: str, cache: Path) -> None:
    command = [sys.executable, "-c", FORKED, server, S3, str(cache)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=110, check=True)

    assert done.stdout == "True 0\n"
