"""IPython, in a terminal: a loop is left by break and by Ctrl-C, and the next ones have whole epochs."""

import os
import sys

import pexpect

from frameworks.numbered import NAME, SAMPLES, Seen, main

PROMPT = r"In \[\d+\]: $"
CELLS = (
    "import time",
    "from frameworks.numbered import Seen",
    "from stager_client.torch import StagedDataset, StagedLoader",
    f"Seen.run, seen = {{run!r}}, Seen(); loader = StagedLoader(StagedDataset({NAME!r}), 10, shuffle=True)",
    "def whole(epoch): [seen.add(epoch, *batch) for batch in loader]\n",
    "for batch in loader: break\n",
    "whole(0)",
    "for batch in loader: print('at', 'work'); time.sleep(60)\n",
)


def loader() -> None:
    shell = pexpect.spawn(
        sys.executable, ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"],
        env=os.environ | {"IPYTHONDIR": "."}, encoding="utf-8", timeout=60, echo=False,
    )  # fmt: skip
    shell.logfile_read = sys.stdout
    shell.expect(PROMPT)
    for cell in CELLS:
        shell.sendline(cell.format(run=Seen.run))
        shell.expect("at work\r\n" if "sleep" in cell else PROMPT)
    shell.sendintr()
    shell.expect("KeyboardInterrupt")
    shell.expect(PROMPT)
    shell.sendline("whole(1); seen.save(); print('seen', *map(len, seen.epochs.values()))")
    shell.expect(f"seen {SAMPLES} {SAMPLES}")
    shell.sendline("exit")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 0


if __name__ == "__main__":
    main(loader)
