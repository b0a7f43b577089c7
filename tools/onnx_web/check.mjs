// Logits of an exported file by onnxruntime-web (WebAssembly), against those that Python wrote.
//
//   node check.mjs FOLDER
//
// FOLDER is what frames.py made: model.onnx, and frames, delays and logits as raw float32, with their shapes in
// expected.json. Prints one line of JSON: the version, the largest difference, the largest logit, milliseconds a frame.

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import path from "node:path";
import { performance } from "node:perf_hooks";
import * as ort from "onnxruntime-web";

const folder = process.argv[2];
if (!folder) {
  console.error("give the folder that frames.py wrote: node check.mjs FOLDER");
  process.exit(2);
}
const read = async (name) => {
  const bytes = await readFile(path.join(folder, `${name}.f32`));
  return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
};
const shapes = JSON.parse(await readFile(path.join(folder, "expected.json"), "utf8"));
ort.env.wasm.numThreads = 1;
const session = await ort.InferenceSession.create(await readFile(path.join(folder, "model.onnx")), {
  executionProviders: ["wasm"],
});
const given = {};
for (const name of session.inputNames) given[name] = new ort.Tensor("float32", await read(name), shapes[name]);
const { logits } = await session.run(given);
const begun = performance.now();
await session.run(given);
const taken = performance.now() - begun;

const expected = await read("logits");
if (JSON.stringify(logits.dims) !== JSON.stringify(shapes.logits)) {
  throw new Error(`logits of shape ${logits.dims}; expected ${shapes.logits}`);
}
let largest = 0;
let difference = 0;
expected.forEach((value, i) => {
  largest = Math.max(largest, Math.abs(value));
  // What is no number is as far away as can be.
  const off = Math.abs(value - logits.data[i]);
  difference = Math.max(difference, Number.isFinite(off) ? off : Infinity);
});
const packages = createRequire(import.meta.url).resolve("onnxruntime-web");
const found = packages.slice(0, packages.lastIndexOf("onnxruntime-web") + "onnxruntime-web".length);
const { version } = JSON.parse(await readFile(path.join(found, "package.json"), "utf8"));
const line = { version, node: process.version, shape: shapes.logits, difference, largest };
console.log(JSON.stringify({ ...line, "ms a frame": taken / shapes.logits[0] }));
