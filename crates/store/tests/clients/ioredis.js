// ioredis.
const { assert, check, library, port, tell, worked } = require("./common");
const Redis = library("ioredis");

async function refused(promise, words) {
  await assert.rejects(promise, (error) => error.message.includes(words));
  worked();
}

async function plain() {
  const client = new Redis(port, "127.0.0.1");
  check(await client.ping(), "PONG");
  check(await client.set("io:s", "value", "EX", 100), "OK");
  check(await client.get("io:s"), "value");
  check(await client.getBuffer("io:s"), Buffer.from("value"));
  check(await client.set("io:s", "x", "NX"), null);
  check(await client.incr("io:n"), 1);
  check(await client.decrby("io:n", 5), -4);
  check(await client.mset(new Map([["io:a", "1"], ["io:b", "2"]])), "OK");
  check(await client.mget("io:a", "io:none", "io:b"), ["1", null, "2"]);
  check(await client.hset("io:h", { f: "1", g: "2" }), 2);
  check(await client.hgetall("io:h"), { f: "1", g: "2" });
  check(await client.sadd("io:set", "x", "y"), 2);
  check((await client.smembers("io:set")).sort(), ["x", "y"]);
  check(await client.zadd("io:z", 1, "one", 2, "two"), 2);
  check(await client.zrange("io:z", 0, -1, "WITHSCORES"), ["one", "1", "two", "2"]);
  check(await client.setbit("io:bits", 7, 1), 0);
  check(await client.bitcount("io:bits"), 1);
  check(await client.pfadd("io:hll", "a", "b"), 1);
  check(await client.pfcount("io:hll"), 2);
  check(await client.expire("io:a", 100), 1);
  check(await client.type("io:h"), "hash");
  check(await client.del("io:b", "io:none"), 1);
  await refused(client.incr("io:s"), "not an integer");
  await refused(client.get("io:h"), "WRONGTYPE");
  await refused(client.call("NOSUCHCOMMAND"), "unknown command");
  const keys = [];
  for await (const found of client.scanStream({ match: "io:?", count: 100 })) keys.push(...found);
  check(keys.sort(), ["io:a", "io:h", "io:n", "io:s", "io:z"]);

  const pipeline = client.pipeline();
  for (let number = 0; number < 1000; number += 1) pipeline.set(`io:pipe:${number}`, number);
  pipeline.incr("io:s").get("io:pipe:999");
  const replies = await pipeline.exec();
  check(replies.length, 1002);
  check(replies[1000][0].message.includes("not an integer"), true);
  check(replies[1001], [null, "999"]);

  check(await client.multi().incr("io:n").get("io:n").exec(), [[null, -3], [null, "-3"]]);

  // The server ends the connection; the client comes back and sends what waits.
  const killer = new Redis(port, "127.0.0.1");
  const id = await client.client("ID");
  const back = new Promise((resolve) => client.once("ready", resolve));
  check(await killer.client("KILL", "ID", id), 1);
  check(await client.get("io:s"), "value");
  await back;
  check((await client.client("ID")) > id, true);
  await Promise.all([client.quit(), killer.quit()]);
}

async function cluster() {
  const client = new Redis.Cluster([{ host: "127.0.0.1", port }]);
  for (let number = 0; number < 20; number += 1) {
    check(await client.set(`ioc:${number}`, number), "OK");
    check(await client.get(`ioc:${number}`), String(number));
  }
  await client.quit();
}

plain()
  .then(cluster)
  .then(tell)
  .catch((error) => {
    console.error(error);
    process.exit(1);
  });
