"""redis-py: sync, asyncio and cluster mode. Called with the port; prints how many operations were seen to work."""
import asyncio
import sys

import redis
import redis.asyncio
from redis.cluster import RedisCluster

PORT = int(sys.argv[1])
COUNT = 0


def check(found, expected):
    global COUNT
    assert found == expected, f"{found!r} instead of {expected!r}"
    COUNT += 1


def refused(call, words):
    try:
        call()
    except redis.ResponseError as error:
        check(words in str(error), True)
    else:
        raise AssertionError(f"not refused: {words}")


def sync(protocol):
    client = redis.Redis(port=PORT, protocol=protocol, decode_responses=True)
    key = f"py{protocol}:"
    check(client.ping(), True)
    check(client.set(key + "s", "value", ex=100), True)
    check(client.get(key + "s"), "value")
    check(0 < client.ttl(key + "s") <= 100, True)
    check(client.set(key + "s", "other", nx=True), None)
    check(client.incrby(key + "n", 5), 5)
    check(client.incrbyfloat(key + "f", 1.5), 1.5)
    check(client.mset({key + "a": 1, key + "b": 2}), True)
    check(client.mget(key + "a", key + "none", key + "b"), ["1", None, "2"])
    check(client.hset(key + "h", mapping={"f": "1", "g": "2"}), 2)
    check(client.hgetall(key + "h"), {"f": "1", "g": "2"})
    check(client.hincrby(key + "h", "f", 4), 5)
    check(client.sadd(key + "set", "x", "y"), 2)
    check(client.smembers(key + "set"), {"x", "y"})
    check(client.zadd(key + "z", {"one": 1, "two": 2.5}), 2)
    check([tuple(pair) for pair in client.zrange(key + "z", 0, -1, withscores=True)], [("one", 1.0), ("two", 2.5)])
    check(client.setbit(key + "bits", 7, 1), 0)
    check(client.bitcount(key + "bits"), 1)
    check(client.bitfield(key + "bits").set("u8", 8, 255).get("u8", 8).execute(), [0, 255])
    check(client.pfadd(key + "hll", "a", "b", "c"), 1)
    check(client.pfcount(key + "hll"), 3)
    check(client.copy(key + "s", key + "copy"), True)
    check(client.restore(key + "restored", 0, redis.Redis(port=PORT).dump(key + "s")) in ("OK", True, b"OK"), True)
    check(sorted(client.scan_iter(match=key + "?", count=10)), sorted(key + name for name in "sabnfhz"))
    check(client.object("encoding", key + "n"), "int")
    check(client.memory_usage(key + "s") > 0, True)
    check(client.info("server")["redis_mode"], "standalone")
    check("maxmemory" in client.config_get("maxmemory*"), True)
    refused(lambda: client.incr(key + "s"), "not an integer")
    refused(lambda: client.get(key + "h"), "WRONGTYPE")
    refused(lambda: client.execute_command("NOSUCHCOMMAND", "x"), "unknown command")
    pipe = client.pipeline(transaction=False)
    for number in range(1000):
        pipe.set(f"{key}pipe:{number}", number)
    pipe.incr(key + "s")
    pipe.get(f"{key}pipe:999")
    replies = pipe.execute(raise_on_error=False)
    check(len(replies), 1002)
    check(isinstance(replies[1000], redis.ResponseError), True)
    check(replies[1001], "999")
    with client.pipeline() as transaction:
        transaction.watch(key + "n")
        transaction.multi()
        check(transaction.incr(key + "n").get(key + "n").execute(), [6, "6"])
        transaction.watch(key + "n")
        client.incr(key + "n")
        transaction.multi()
        transaction.incr(key + "n")
        try:
            transaction.execute()
        except redis.WatchError:
            check(client.get(key + "n"), "7")
    listener = client.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(key + "channel")
    listener.get_message(timeout=5)
    check(client.publish(key + "channel", "news"), 1)
    check(listener.get_message(timeout=5)["data"], "news")
    listener.close()
    # The server ends the connection; the client comes back.
    killer = redis.Redis(port=PORT)
    client.client_setname("victim")
    victim = [one for one in killer.client_list() if one["name"] == "victim"][0]
    check(killer.client_kill_filter(_id=victim["id"]), 1)
    while any(one["id"] == victim["id"] for one in killer.client_list()):
        pass
    check(client.get(key + "s"), "value")
    check(client.delete(key + "s", key + "none"), 1)


async def asynchronous():
    client = redis.asyncio.Redis(port=PORT, decode_responses=True)
    check(await client.ping(), True)
    await asyncio.gather(*(client.set(f"aio:{number}", number) for number in range(100)))
    check(await client.mget(*(f"aio:{number}" for number in range(100))), [str(number) for number in range(100)])
    check(sum(await asyncio.gather(*(client.incr("aio:sum") for _ in range(50)))), 1275)
    for number in range(20):
        check(await client.get(f"aio:{number}"), str(number))
    async with client.pipeline(transaction=False) as pipe:
        check(await pipe.set("aio:p", 1).incr("aio:p").get("aio:p").execute(), [True, 2, "2"])
    check(await client.hset("aio:h", mapping={"f": 1}), 1)
    try:
        await client.incr("aio:h")
    except redis.ResponseError as error:
        check("WRONGTYPE" in str(error), True)
    killer = redis.asyncio.Redis(port=PORT)
    await client.client_setname("aio-victim")
    victims = [one["id"] for one in await killer.client_list() if one["name"] == "aio-victim"]
    check(await killer.client_kill_filter(_id=victims[0]), 1)
    # Whether the client notices the end before or while it asks is its own matter; the next one works.
    try:
        check(await client.get("aio:p"), "2")
    except redis.ConnectionError:
        pass
    check(await client.get("aio:p"), "2")
    await client.aclose()
    await killer.aclose()


def cluster():
    client = RedisCluster(host="127.0.0.1", port=PORT, decode_responses=True)
    for number in range(20):
        check(client.set(f"cluster:{number}", number), True)
        check(client.get(f"cluster:{number}"), str(number))
    check(client.mset_nonatomic({"c:a": 1, "c:b": 2}), [True, True])
    check(client.cluster_info()["cluster_state"], "ok")
    check(client.keyslot("foo"), 12182)
    pipe = client.pipeline()
    for number in range(20):
        pipe.incr(f"cluster:{number}")
    check(pipe.execute(), [number + 1 for number in range(20)])
    refused(lambda: client.hget("cluster:1", "f"), "WRONGTYPE")
    client.close()


{"2": lambda: sync(2), "3": lambda: sync(3), "asyncio": lambda: asyncio.run(asynchronous()), "cluster": cluster}[sys.argv[2]]()
print(f"operations: {COUNT}")
