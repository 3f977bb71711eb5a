// BullMQ as a load: called with the port, the folder of libraries, a queue's name, and the number of jobs. Adds the jobs,
// a hundred at a time, while a worker carries out fifty at a time, and ends when all are done.
const path = require("path");
const { Queue, Worker } = require(path.join(process.argv[3], "bullmq"));

const [port, , name, jobs] = [Number(process.argv[2]), process.argv[3], process.argv[4], Number(process.argv[5])];
const connection = { port, host: "127.0.0.1", maxRetriesPerRequest: null };
const CHUNK = 100;

async function all() {
  const queue = new Queue(name, { connection });
  const worker = new Worker(name, async (job) => job.data.n, { connection, concurrency: 50, autorun: false });
  let done = 0;
  const over = new Promise((resolve, reject) => {
    worker.on("completed", () => ++done === jobs && resolve());
    worker.on("failed", (job, error) => reject(error));
    worker.on("error", reject);
  });
  worker.run();
  for (let first = 0; first < jobs; first += CHUNK) {
    const count = Math.min(CHUNK, jobs - first);
    const opts = { removeOnComplete: 1000 };
    await queue.addBulk(Array.from({ length: count }, (_, n) => ({ name: "job", data: { n: first + n }, opts })));
  }
  await over;
  await worker.close();
  await queue.obliterate({ force: true });
  await queue.close();
}

all().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
