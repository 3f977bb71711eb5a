// What the programs with clients for JavaScript share. They are called with the port and the folder of libraries, and
// print how many operations were seen to work.
const path = require("path");
const assert = require("assert");

const port = Number(process.argv[2]);
const library = (name) => require(path.join(process.argv[3], "node_modules", name));
let count = 0;

// Counts an operation that was seen to work.
function worked() {
  count += 1;
}

function check(found, expected) {
  assert.deepStrictEqual(found, expected);
  worked();
}

// Resolves when something has said an event so many times, with what came.
function events(source, name, wanted) {
  return new Promise((resolve) => {
    const all = [];
    source.on(name, (...what) => {
      all.push(what);
      if (all.length === wanted) resolve(all);
    });
  });
}

function tell() {
  console.log(`operations: ${count}`);
}

// Runs the parts of a program, one after the other, and ends it whatever the library still has open.
async function run(parts) {
  try {
    for (const part of parts) await part();
    tell();
    process.exit(0);
  } catch (error) {
    console.error(error);
    process.exit(1);
  }
}

module.exports = { assert, check, events, library, port, run, tell, worked };
