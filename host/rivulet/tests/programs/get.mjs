// `node get.mjs http|fetch URL FILE`: a download by either of Node's HTTP clients.
import { createWriteStream } from "node:fs";
import { get } from "node:http";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";

const [how, from, to] = process.argv.slice(2);
const body =
  how === "fetch"
    ? Readable.fromWeb((await fetch(from)).body)
    : await new Promise((resolve, reject) => get(from, resolve).on("error", reject));
await pipeline(body, createWriteStream(to));
