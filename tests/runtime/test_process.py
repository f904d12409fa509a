from __future__ import annotations

import os
import time

import pytest

from emmy.errors import EmmyError
from emmy.runtime.process import Worker


def healthy():
    if os.environ.get("EMMY_TEST_BROKEN"):
        raise RuntimeError("broken")


def fail(message):
    raise EmmyError(message, "nothing to be done")


def break_and_fail():
    os.environ["EMMY_TEST_BROKEN"] = "1"
    return 1 // 0


@pytest.fixture(scope="module")
def worker():
    made = Worker(healthy)
    yield made
    made.close()


def test_calls_share_a_process_until_it_breaks(worker):
    pid = worker.call(os.getpid, timeout=60)
    assert pid != os.getpid()
    with pytest.raises(EmmyError, match="wrong numbers\n  remedy: nothing to be done"):
        worker.call(fail, "wrong numbers", timeout=60)
    assert worker.call(os.getpid, timeout=60) == pid, "a failure alone does not end it"
    with pytest.raises(EmmyError, match="ZeroDivisionError"):
        worker.call(break_and_fail, timeout=60)
    assert worker.call(os.getpid, timeout=60) != pid, "a broken process is replaced"


def test_a_process_that_dies_or_hangs_is_replaced(worker):
    with pytest.raises(EmmyError, match=r"died \(exit code 3\)"):
        worker.call(os._exit, 3, timeout=60)
    assert worker.call(max, 1, 2, timeout=60) == 2
    with pytest.raises(EmmyError, match="no answer within 0.2 s"):
        worker.call(time.sleep, 60, timeout=0.2)
    assert worker.call(max, 1, 2, timeout=60) == 2
