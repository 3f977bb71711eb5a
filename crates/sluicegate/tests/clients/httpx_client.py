"""httpx, whose HTTP/2 is hyper-h2, against the server of `nethttp` behind a proxy. Called with a URL and, for TLS, an
authority's file; prints how many checks passed."""
import asyncio
import ssl
import sys

import httpx

URL = sys.argv[1]
VERIFY = ssl.create_default_context(cafile=sys.argv[2]) if len(sys.argv) > 2 else False
COUNT = 0


def check(found, expected):
    global COUNT
    assert found == expected, f"{found!r:.300} instead of {expected!r:.300}"
    COUNT += 1


def client(kind):
    return kind(base_url=URL, http2=True, http1=False, verify=VERIFY, timeout=120)


def sync():
    with client(httpx.Client) as one:
        answer = one.get("/facts")
        check((answer.http_version, answer.status_code, answer.text.split()[0]), ("HTTP/2", 200, "GET"))
        check(one.head("/bytes/1234").headers["content-length"], "1234")
        check(len(one.get("/bytes/3000000").content), 3_000_000)
        check(one.post("/echo", content=b"x" * 500_000).content, b"x" * 500_000)
        check(one.post("/echo", content=(b"%d," % n for n in range(1000))).content.count(b","), 1000)
        check(one.post("/hash", content=b"").text, "read")
        check(one.get("/hints").text, "hinted")
        check(one.get("/missing").status_code, 404)
        check(one.get("/bytes/7").text, "0123456")
        try:
            one.get("/abort")
        except httpx.RemoteProtocolError:
            check(True, True)


async def many():
    async with client(httpx.AsyncClient) as one:
        answers = await asyncio.gather(*(one.get(f"/bytes/{50_000 + n}") for n in range(60)))
        check([len(answer.content) for answer in answers], [50_000 + n for n in range(60)])


sync()
asyncio.run(many())
print(f"operations: {COUNT}")
