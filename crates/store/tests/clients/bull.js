// Bull, and commands that ioredis defines.
const { assert, check, events, library, port, run, worked } = require("./common");
const Queue = library("bull");
const Redis = library("ioredis");

const redis = { port, host: "127.0.0.1" };

async function adds() {
  const queue = new Queue("adds", { redis });
  const completed = events(queue, "completed", 23);
  await queue.addBulk(Array.from({ length: 20 }, (_, n) => ({ data: { n } })));
  await queue.add("named", { n: 20 }, { priority: 1 });
  await queue.add("named", { n: 21 }, { lifo: true });
  await queue.add("named", { n: 22 }, { jobId: "mine", removeOnComplete: true });
  await queue.add("named", { n: 99 }, { jobId: "mine" });
  check((await queue.getJobCounts()).waiting, 23);
  queue.process("named", 2, async (job) => job.data.n * 2);
  queue.process("__default__", 3, async (job) => {
    await job.progress(50);
    return job.data.n * 2;
  });
  const results = (await completed).map(([, result]) => result).sort((a, b) => a - b);
  check(results, Array.from({ length: 23 }, (_, n) => n * 2));
  check((await queue.getCompleted()).length, 22);
  check(await queue.getJob("mine"), null);
  check((await queue.getJob("1")).returnvalue, 0);
  check((await queue.getJob("1"))._progress, 50);
  await queue.close();
}

async function delays() {
  const queue = new Queue("delays", { redis });
  const completed = events(queue, "completed", 3);
  const added = Date.now();
  await queue.add({ order: 3 }, { delay: 200 });
  await queue.add({ order: 2 }, { delay: 100 });
  await queue.add({ order: 1 });
  check((await queue.getJobCounts()).delayed, 2);
  queue.process(async (job) => [job.data.order, Date.now()]);
  const results = (await completed).map(([, result]) => result);
  check(results.map(([order]) => order).sort(), [1, 2, 3]);
  check(results.every(([order, at]) => at - added >= (order - 1) * 100), true);
  const late = await queue.add({ order: 4 }, { delay: 1e9 });
  const promoted = events(queue, "completed", 1);
  await late.promote();
  check((await promoted)[0][1][0], 4);
  await queue.close();
}

async function retries() {
  const queue = new Queue("retries", { redis });
  let tries = 0;
  queue.process(async (job) => {
    tries += 1;
    if (job.data.never || tries < 3) throw new Error("not yet");
    return tries;
  });
  const completed = events(queue, "completed", 1);
  await queue.add({}, { attempts: 5, backoff: 10 });
  check((await completed)[0][1], 3);
  const failed = new Promise((resolve) => queue.on("failed", (job, error) => job.attemptsMade === 2 && resolve([job, error])));
  await queue.add({ never: true }, { attempts: 2 });
  const [job, error] = await failed;
  check(error.message, "not yet");
  check((await queue.getFailed()).length, 1);
  check(await job.getState(), "failed");
  await queue.pause();
  await job.retry();
  check((await queue.getJobCounts()).failed, 0);
  check((await queue.getJobCounts()).paused, 1);
  await job.remove();
  check((await queue.getJobCounts()).paused, 0);
  await queue.close();
}

async function limits() {
  const queue = new Queue("limits", { redis, limiter: { max: 2, duration: 150 } });
  const completed = events(queue, "completed", 5);
  const started = Date.now();
  await queue.addBulk(Array.from({ length: 5 }, (_, n) => ({ data: { n } })));
  queue.process(5, async () => Date.now());
  const last = Math.max(...(await completed).map(([, result]) => result));
  check(last - started >= 290, true);
  await queue.close();
}

async function ends() {
  const queue = new Queue("ends", { redis });
  await queue.addBulk(Array.from({ length: 50 }, (_, n) => ({ data: { n }, opts: { delay: n % 2 ? 1e6 : 0, priority: n % 3 } })));
  check(await queue.count(), 50);
  check((await queue.clean(0, "delayed")).length, 25);
  await queue.empty();
  check(await queue.count(), 0);
  await queue.addBulk(Array.from({ length: 50 }, (_, n) => ({ data: { n } })));
  await queue.obliterate();
  const client = new Redis(redis);
  check(await client.keys("bull:ends:*"), []);
  client.disconnect();
  await queue.close();
}

async function defined() {
  const client = new Redis(redis);
  client.defineCommand("raise", { numberOfKeys: 1, lua: "return redis.call('INCRBY', KEYS[1], ARGV[1])" });
  client.defineCommand("both", { lua: "return {KEYS[1], KEYS[2], ARGV[1], #ARGV}" });
  client.defineCommand("wrong", { numberOfKeys: 1, lua: "return redis.call('INCR', KEYS[1])" });
  check(await client.raise("defined:n", 5), 5);
  check(await client.raise("defined:n", 5), 10);
  check(await client.both(2, "a", "b", "c", "d"), ["a", "b", "c", 2]);
  check(await client.bothBuffer(2, "a", "b", "c"), [Buffer.from("a"), Buffer.from("b"), Buffer.from("c"), 1]);
  check(await client.pipeline().raise("defined:n", 1).raise("defined:n", 1).exec(), [[null, 11], [null, 12]]);
  check(await client.multi().raise("defined:n", 1).get("defined:n").exec(), [[null, 13], [null, "13"]]);
  await client.script("FLUSH");
  check(await client.raise("defined:n", 1), 14);
  await client.set("defined:s", "text");
  await assert.rejects(client.wrong("defined:s"), /not an integer/);
  worked();
  client.disconnect();
}

run([adds, delays, retries, limits, ends, defined]);
