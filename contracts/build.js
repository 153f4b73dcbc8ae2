// Compiles every .sol file beside this script into one artifact each: {contract, abi, bytecode, runtime, compiler, settings}.
//
//   node build.js                 rewrite the committed artifacts (package data of tollkeeper.chains)
//   node build.js --check         compile, compare with the committed artifacts, exit 1 where they differ
//   node build.js --out DIR       write to DIR instead
//   node build.js --solc DIR      take the compiler from DIR/node_modules (default: beside this script)
//
// The output depends on the sources, the compiler's version and the settings below, and on nothing else: the metadata hash,
// which would bring in file paths and comments, is left out of the bytecode.
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const here = dirname(fileURLToPath(import.meta.url));
const { values: options } = parseArgs({
  options: {
    check: { type: "boolean", default: false },
    out: { type: "string", default: join(here, "..", "src", "tollkeeper", "chains", "artifacts") },
    solc: { type: "string", default: here },
  },
});
const solc = createRequire(join(resolve(options.solc), "package.json"))("solc");

const settings = {
  evmVersion: "paris",
  optimizer: { enabled: true, runs: 1000 },
  metadata: { appendCBOR: false, bytecodeHash: "none" },
};

function compile(file) {
  const input = {
    language: "Solidity",
    sources: { [file]: { content: readFileSync(join(here, file), "utf8") } },
    settings: { ...settings, outputSelection: { "*": { "*": ["abi", "evm.bytecode.object", "evm.deployedBytecode.object"] } } },
  };
  const beside = (name) => ({ contents: readFileSync(join(here, name), "utf8") });
  const output = JSON.parse(solc.compile(JSON.stringify(input), { import: beside }));
  const problems = output.errors ?? [];
  if (problems.length > 0) {
    throw new Error(problems.map((problem) => problem.formattedMessage).join("\n"));
  }
  const contract = file.replace(/\.sol$/, "");
  const compiled = output.contracts[file][contract];
  return {
    contract,
    compiler: solc.version(),
    settings,
    abi: compiled.abi,
    bytecode: `0x${compiled.evm.bytecode.object}`,
    runtime: `0x${compiled.evm.deployedBytecode.object}`,
  };
}

function committed(path) {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return null;
  }
}

let stale = 0;
const sources = readdirSync(here).filter((file) => file.endsWith(".sol")).sort();
if (!options.check) mkdirSync(options.out, { recursive: true });
for (const file of sources) {
  const artifact = compile(file);
  const path = join(options.out, `${artifact.contract}.json`);
  const text = `${JSON.stringify(artifact, null, 1)}\n`;
  if (!options.check) {
    writeFileSync(path, text);
  } else if (committed(path) !== text) {
    stale += 1;
    console.error(`${artifact.contract}: the artifact is not what ${file} compiles to; run \`node build.js\``);
  }
  const size = (artifact.runtime.length - 2) / 2;
  console.log(`${artifact.contract}: ${size} bytes`);
}
process.exitCode = stale > 0 ? 1 : 0;
