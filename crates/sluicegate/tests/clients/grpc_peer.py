"""gRPC over bytes, without generated code. `server [CERT KEY]` prints its port and serves until it is killed;
`client TARGET [CA]` calls it through a proxy and prints how many checks passed."""
import sys
import threading
import time
from concurrent import futures

import grpc

BIG = bytes(range(256)) * 16384  # 4 MiB
LIMITS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
WAIT = 120
# Released for each call of `slow` that begins and that ends.
EVENTS = {b"begun": threading.Semaphore(0), b"ended": threading.Semaphore(0)}


def unary(request, context):
    meta = dict(context.invocation_metadata())
    context.send_initial_metadata((("x-initial", meta.get("x-text", "")),))
    context.set_trailing_metadata((("x-last", "one"), ("x-last-bin", b"\x00\xff\x01")))
    return request


def refuse(request, context):
    context.set_trailing_metadata((("x-why", "asked"),))
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "refused: ü %")


def slow(request, context):
    if request == b"counted":
        context.add_callback(EVENTS[b"ended"].release)
        EVENTS[b"begun"].release()
    while context.is_active():
        time.sleep(0.01)
    return b""


def count(request, context):
    """Waits until so many calls of `slow` have begun or ended."""
    event, number = request.split()
    return request if all(EVENTS[event].acquire(timeout=WAIT) for _ in range(int(number))) else b"too few"


def parts(request, context):
    count, size = map(int, request.split())
    for number in range(count):
        yield (b"%d:" % number).ljust(size, b".")


def parts_then_refuse(request, context):
    yield b"one"
    context.abort(grpc.StatusCode.DATA_LOSS, "in the middle")


def total(requests, context):
    return b"%d" % sum(len(request) for request in requests)


def first_only(requests, context):
    """Answers before the client has sent everything."""
    return next(requests)


def echo(requests, context):
    for request in requests:
        yield request


METHODS = {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Refuse": grpc.unary_unary_rpc_method_handler(refuse),
    "Slow": grpc.unary_unary_rpc_method_handler(slow),
    "Count": grpc.unary_unary_rpc_method_handler(count),
    "Parts": grpc.unary_stream_rpc_method_handler(parts),
    "PartsThenRefuse": grpc.unary_stream_rpc_method_handler(parts_then_refuse),
    "Total": grpc.stream_unary_rpc_method_handler(total),
    "FirstOnly": grpc.stream_unary_rpc_method_handler(first_only),
    "Echo": grpc.stream_stream_rpc_method_handler(echo),
}


def serve(files):
    server = grpc.server(futures.ThreadPoolExecutor(128), options=LIMITS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", METHODS),))
    if files:
        cert, key = (open(file, "rb").read() for file in files)
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, cert)]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"port: {port}", flush=True)
    server.wait_for_termination()


COUNT = 0


def check(found, expected):
    global COUNT
    assert found == expected, f"{found!r:.300} instead of {expected!r:.300}"
    COUNT += 1


def failure(call):
    try:
        call()
    except grpc.RpcError as error:
        return error
    raise AssertionError("did not fail")


def run(channel):
    def method(kind, name):
        return getattr(channel, kind)(f"/test.Test/{name}")

    one = method("unary_unary", "Unary")
    answer, call = one.with_call(b"text", metadata=(("x-text", "there"),), timeout=WAIT)
    check(answer, b"text")
    check(dict(call.initial_metadata()).get("x-initial"), "there")
    check({key: value for key, value in call.trailing_metadata() if key.startswith("x-last")},
          {"x-last": "one", "x-last-bin": b"\x00\xff\x01"})
    check(one(b"", timeout=WAIT), b"")
    check(one(BIG, timeout=WAIT) == BIG, True)

    error = failure(lambda: method("unary_unary", "Refuse")(b"", timeout=WAIT))
    check((error.code(), error.details()), (grpc.StatusCode.FAILED_PRECONDITION, "refused: ü %"))
    check(dict(error.trailing_metadata()).get("x-why"), "asked")
    error = failure(lambda: method("unary_unary", "Missing")(b"", timeout=WAIT))
    check(error.code(), grpc.StatusCode.UNIMPLEMENTED)

    pieces = list(method("unary_stream", "Parts")(b"1000 3000", timeout=WAIT))
    check([(piece.split(b":")[0], len(piece)) for piece in pieces], [(b"%d" % n, 3000) for n in range(1000)])
    pieces = method("unary_stream", "PartsThenRefuse")(b"", timeout=WAIT)
    check(next(pieces), b"one")
    error = failure(lambda: next(pieces))
    check((error.code(), error.details()), (grpc.StatusCode.DATA_LOSS, "in the middle"))

    check(method("stream_unary", "Total")((b"x" * 10_000 for _ in range(500)), timeout=WAIT), b"5000000")

    # The answer comes while the request goes on.
    done = threading.Event()

    def endless():
        yield b"first"
        while not done.is_set():
            time.sleep(0.005)
            yield b"more" * 1000

    check(method("stream_unary", "FirstOnly")(endless(), timeout=WAIT), b"first")
    done.set()

    # Each message waits for the answer to the one before.
    turn = threading.Semaphore(1)

    def questions():
        for number in range(100):
            turn.acquire()
            yield b"%d" % number

    answers = []
    for answer in method("stream_stream", "Echo")(questions(), timeout=WAIT):
        answers.append(answer)
        turn.release()
    check(answers, [b"%d" % number for number in range(100)])

    slow_one, count_up = method("unary_unary", "Slow"), method("unary_unary", "Count")
    check(failure(lambda: slow_one(b"", timeout=0.3)).code(), grpc.StatusCode.DEADLINE_EXCEEDED)
    pending = [slow_one.future(b"counted", timeout=WAIT) for _ in range(10)]
    check(count_up(b"begun 10", timeout=WAIT), b"begun 10")
    for call in pending:
        call.cancel()
    check({call.code() for call in pending}, {grpc.StatusCode.CANCELLED})
    # The server learns of it.
    check(count_up(b"ended 10", timeout=WAIT), b"ended 10")

    calls = [one.future(b"%d" % number * 1000, timeout=WAIT) for number in range(100)]
    check([call.result() for call in calls], [b"%d" % number * 1000 for number in range(100)])
    streams = [method("stream_stream", "Echo")(iter([b"a" * 40_000, b"b"]), timeout=WAIT) for _ in range(100)]
    check([[len(answer) for answer in stream] for stream in streams], [[40_000, 1]] * 100)


def main():
    if sys.argv[1] == "server":
        return serve(sys.argv[2:])
    if len(sys.argv) > 3:
        credentials = grpc.ssl_channel_credentials(open(sys.argv[3], "rb").read())
        channel = grpc.secure_channel(sys.argv[2], credentials, options=LIMITS)
    else:
        channel = grpc.insecure_channel(sys.argv[2], options=LIMITS)
    with channel:
        run(channel)
    print(f"operations: {COUNT}")


main()
