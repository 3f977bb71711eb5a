"""Celery with broker and results in the store, and redis-py's Lock. Called with the port; prints how many operations were
seen to work. Called as a module by Celery's own worker, which this starts."""
import os
import subprocess
import sys
import threading

import redis
from celery import Celery, chain, chord, group

PORT = int(os.environ.get("STORE_PORT") or sys.argv[1])
URL = f"redis://127.0.0.1:{PORT}/"
COUNT = 0
# Seconds for a result: enough on a machine that is busy with other tests.
PATIENCE = 180

app = Celery("celery_tasks", broker=URL + "1", backend=URL + "2")
app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def twice_wrong(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.05)
    return self.request.retries


@app.task
def fails():
    raise ValueError("as it should")


def check(found, expected):
    global COUNT
    assert found == expected, f"{found!r} instead of {expected!r}"
    COUNT += 1


def tasks():
    """Tasks that a worker in a process of its own carries out."""
    for n in range(10):
        check(add.delay(n, n).get(timeout=PATIENCE), 2 * n)
    check(add.apply_async((1, 2), countdown=0.2).get(timeout=PATIENCE), 3)
    check(twice_wrong.delay().get(timeout=PATIENCE), 2)
    failed = fails.delay()
    check(str(failed.get(timeout=PATIENCE, propagate=False)), "as it should")
    check(failed.state, "FAILURE")
    check(group(add.s(n, 1) for n in range(5)).apply_async().get(timeout=PATIENCE), [1, 2, 3, 4, 5])
    check(chain(add.s(1, 2), add.s(3), add.s(4))().get(timeout=PATIENCE), 10)
    check(chord((add.s(n, n) for n in range(5)), total.s())().get(timeout=PATIENCE), 20)
    add.delay(1, 1).forget()


def locks():
    client = redis.Redis(port=PORT)
    lock = client.lock("lock:a", timeout=10)
    check(lock.acquire(), True)
    check(client.lock("lock:a", timeout=10).acquire(blocking=False), False)
    check(lock.extend(20), True)
    check(10 < client.ttl("lock:a") <= 30, True)
    check(lock.reacquire(), True)
    check(lock.release(), None)
    check(client.exists("lock:a"), 0)
    try:
        lock.release()
    except redis.exceptions.LockError:
        check(True, True)
    stolen = client.lock("lock:a", timeout=10)
    stolen.acquire()
    client.set("lock:a", "another")
    for change in (lambda: stolen.extend(5), stolen.release):
        try:
            change()
        except redis.exceptions.LockNotOwnedError:
            check(True, True)
    client.delete("lock:a")
    # Many who add to a number that only the lock guards.
    client.set("lock:n", 0)

    def several():
        mine = redis.Redis(port=PORT)
        for _ in range(20):
            with mine.lock("lock:n:lock", timeout=30, sleep=0.001):
                mine.set("lock:n", int(mine.get("lock:n")) + 1)

    threads = [threading.Thread(target=several) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(client.get("lock:n"), b"100")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-P", "threads", "-c", "2", "-l", "ERROR"],
        cwd=here,
        env={**os.environ, "STORE_PORT": str(PORT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
    )
    try:
        tasks()
        locks()
    finally:
        worker.terminate()
        worker.wait()
    print(f"operations: {COUNT}")


if __name__ == "__main__":
    # Tasks are known by the module's name, in the worker as here.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import celery_tasks

    celery_tasks.main()
