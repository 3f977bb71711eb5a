// BullMQ.
const { assert, check, events, library, port, run, worked } = require("./common");
const { Queue, Worker, QueueEvents, FlowProducer } = library("bullmq");
const Redis = library("ioredis");

const connection = { port, host: "127.0.0.1", maxRetriesPerRequest: null };

const sorted = (numbers) => [...numbers].sort((a, b) => a - b);

// A queue with its listener, which reads a stream from its start and waits for more of it. Without a start it would hear
// only of what is said after its first command, which nobody can wait for.
async function open(name) {
  const queue = new Queue(name, { connection });
  const heard = new QueueEvents(name, { connection, lastEventId: "0" });
  await heard.waitUntilReady();
  return { queue, heard, close: () => Promise.all([queue.close(), heard.close()]) };
}

async function adds() {
  const { queue, heard, close } = await open("adds");
  const completed = events(heard, "completed", 23);
  const progress = events(heard, "progress", 23);
  await queue.addBulk(Array.from({ length: 20 }, (_, n) => ({ name: "many", data: { n } })));
  await queue.add("named", { n: 20 }, { priority: 1 });
  await queue.add("named", { n: 21 }, { lifo: true });
  await queue.add("named", { n: 22 }, { jobId: "mine", removeOnComplete: true });
  await queue.add("named", { n: 99 }, { jobId: "mine" });
  check(await queue.getJobCounts("waiting", "prioritized"), { waiting: 22, prioritized: 1 });
  const work = async (job) => {
    await job.updateProgress(50);
    return job.data.n * 2;
  };
  const workers = [new Worker("adds", work, { connection, concurrency: 3 }), new Worker("adds", work, { connection })];
  check(sorted((await completed).map(([{ returnvalue }]) => Number(returnvalue))), Array.from({ length: 23 }, (_, n) => n * 2));
  check((await progress).every(([{ data }]) => data === 50), true);
  check((await queue.getCompleted()).length, 22);
  check(await queue.getJob("mine"), undefined);
  check((await queue.getJob("1")).returnvalue, 0);
  check((await queue.getJob("1")).progress, 50);
  const late = await queue.add("waited", { n: 50 });
  check(await late.waitUntilFinished(heard), 100);
  await Promise.all(workers.map((worker) => worker.close()));
  await close();
}

async function delays() {
  const { queue, heard, close } = await open("delays");
  const completed = events(heard, "completed", 3);
  const added = Date.now();
  await queue.add("late", { order: 3 }, { delay: 200 });
  await queue.add("late", { order: 2 }, { delay: 100 });
  await queue.add("late", { order: 1 });
  check((await queue.getJobCounts("delayed")).delayed, 2);
  const worker = new Worker("delays", async (job) => `${job.data.order} ${Date.now()}`, { connection });
  const results = (await completed).map(([{ returnvalue }]) => returnvalue.split(" ").map(Number));
  check(sorted(results.map(([order]) => order)), [1, 2, 3]);
  check(results.every(([order, at]) => at - added >= (order - 1) * 100), true);
  const last = await queue.add("late", { order: 4 }, { delay: 1e9 });
  await last.promote();
  check((await last.waitUntilFinished(heard)).split(" ")[0], "4");
  await worker.close();
  await close();
}

async function retries() {
  const { queue, heard, close } = await open("retries");
  let tries = 0;
  const work = async (job) => {
    tries += 1;
    if (job.data.never || tries < 3) throw new Error("not yet");
    return tries;
  };
  const worker = new Worker("retries", work, { connection });
  const job = await queue.add("again", {}, { attempts: 5, backoff: { type: "exponential", delay: 20 } });
  check(await job.waitUntilFinished(heard), 3);
  const failed = events(heard, "failed", 1);
  const never = await queue.add("never", { never: true }, { attempts: 2, backoff: 10 });
  check((await failed)[0][0].failedReason, "not yet");
  check((await queue.getFailed()).length, 1);
  check(await never.getState(), "failed");
  check((await queue.getJob(never.id)).attemptsMade, 2);
  await queue.pause();
  await never.retry();
  const counts = await queue.getJobCounts("failed", "waiting", "paused");
  check([counts.failed, counts.waiting + counts.paused], [0, 1]);
  await never.remove();
  await worker.close();
  await close();
}

async function limits() {
  const { queue, heard, close } = await open("limits");
  const completed = events(heard, "completed", 5);
  const started = Date.now();
  await queue.addBulk(Array.from({ length: 5 }, (_, n) => ({ name: "limited", data: { n } })));
  const limiter = { max: 2, duration: 150 };
  const worker = new Worker("limits", async () => Date.now(), { connection, limiter, concurrency: 5 });
  const last = Math.max(...(await completed).map(([{ returnvalue }]) => Number(returnvalue)));
  check(last - started >= 290, true);
  await worker.close();
  await close();
}

async function flows() {
  const { queue, heard, close } = await open("parents");
  const children = await open("children");
  const flow = new FlowProducer({ connection });
  const tree = await flow.add({
    name: "sum",
    queueName: "parents",
    children: [1, 2, 3].map((n) => ({ name: "part", queueName: "children", data: { n }, opts: { delay: n === 2 ? 50 : 0 } })),
  });
  check(await tree.job.getState(), "waiting-children");
  check((await tree.job.getDependencies()).unprocessed.length, 3);
  const sum = async (job) => Object.values(await job.getChildrenValues()).reduce((a, b) => a + b, 0);
  const part = async (job) => (job.data.n ? job.data.n * 10 : assert.fail("a part"));
  const workers = [
    new Worker("parents", sum, { connection }),
    new Worker("children", part, { connection, concurrency: 2 }),
  ];
  check(await tree.job.waitUntilFinished(heard), 60);
  const found = await flow.getFlow({ id: tree.job.id, queueName: "parents" });
  check(sorted(found.children.map((child) => child.job.returnvalue)), [10, 20, 30]);
  const failing = await flow.add({
    name: "sum",
    queueName: "parents",
    children: [{ name: "part", queueName: "children", data: {}, opts: { failParentOnFailure: true, attempts: 1 } }],
  });
  await assert.rejects(failing.job.waitUntilFinished(heard), /child/);
  worked();
  await Promise.all(workers.map((worker) => worker.close()));
  await Promise.all([close(), children.close(), flow.close()]);
}

async function streams() {
  const { queue, heard, close } = await open("streams");
  const client = new Redis(connection);
  const length = () => client.xlen("bull:streams:events");
  const added = events(heard, "added", 300);
  await queue.addBulk(Array.from({ length: 300 }, (_, n) => ({ name: "told", data: { n } })));
  check((await added).map(([{ jobId }]) => Number(jobId)), Array.from({ length: 300 }, (_, n) => n + 1));
  check((await length()) >= 300, true);
  await queue.trimEvents(100);
  const left = await length();
  check(left >= 100 && left <= 200, true);
  const cleaned = events(heard, "cleaned", 1);
  check((await queue.clean(0, 10, "wait")).length, 10);
  check((await cleaned)[0][0].count, "10");
  client.disconnect();
  await close();
}

async function ends() {
  const { queue, close } = await open("ends");
  const delayed = (n) => ({ delay: n % 2 ? 1e6 : 0, priority: n % 3 });
  await queue.addBulk(Array.from({ length: 50 }, (_, n) => ({ name: "end", data: { n }, opts: delayed(n) })));
  check(await queue.count(), 50);
  check((await queue.clean(0, 100, "delayed")).length, 25);
  await queue.drain();
  check(await queue.count(), 0);
  await queue.upsertJobScheduler("every", { every: 1e6 }, { name: "repeated" });
  check((await queue.getJobSchedulers()).length, 1);
  check(await queue.removeJobScheduler("every"), true);
  await queue.addBulk(Array.from({ length: 50 }, (_, n) => ({ name: "end", data: { n } })));
  await close();
  const last = new Queue("ends", { connection });
  await last.obliterate();
  const client = new Redis(connection);
  check(await client.keys("bull:ends:*"), []);
  client.disconnect();
  await last.close();
}

run([adds, delays, retries, limits, flows, streams, ends]);
