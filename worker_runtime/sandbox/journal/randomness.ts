/**
 * Draws the randomness of a journaled run: ChaCha20 (RFC 8439) keyed with the run's seed, so that a replay draws the
 * same.
 *
 * @module
 */

import * as p from "../primordials.ts";

const Words = Uint32Array;
const BLOCK_BYTES = 64;
const DOUBLE_ROUNDS = 10;
const { imul } = Math;
const parseHex = Number.parseInt;

/** Gives the next byte of the key stream. */
export type NextByte = () => number;

/** Makes the key stream of a seed of 64 hex digits, byte by byte, from its beginning. */
export function keyStream(seed: string): NextByte {
  const state = new Words(16);
  const constants = [0x61707865, 0x3320646e, 0x79622d32, 0x6b206574];
  for (let index = 0; index < 4; index++) state[index] = constants[index];
  for (let word = 0; word < 8; word++) {
    let value = 0;
    for (let byte = 3; byte >= 0; byte--) {
      const at = 8 * word + 2 * byte;
      value = imul(value, 256) | parseHex(p.slice(seed, at, at + 2), 16);
    }
    state[4 + word] = value;
  }
  const block = new Words(16);
  let at = BLOCK_BYTES;
  return () => {
    if (at === BLOCK_BYTES) {
      mix(state, block);
      at = 0;
    }
    const byte = (block[at >> 2] >>> (8 * (at & 3))) & 255;
    at++;
    return byte;
  };
}

/** Makes the next block of the key stream. The counter has 64 bits: no run comes to its end. */
function mix(state: Uint32Array, block: Uint32Array): void {
  for (let index = 0; index < 16; index++) block[index] = state[index];
  for (let round = 0; round < DOUBLE_ROUNDS; round++) {
    quarter(block, 0, 4, 8, 12);
    quarter(block, 1, 5, 9, 13);
    quarter(block, 2, 6, 10, 14);
    quarter(block, 3, 7, 11, 15);
    quarter(block, 0, 5, 10, 15);
    quarter(block, 1, 6, 11, 12);
    quarter(block, 2, 7, 8, 13);
    quarter(block, 3, 4, 9, 14);
  }
  for (let index = 0; index < 16; index++) block[index] += state[index];
  state[12]++;
  if (state[12] === 0) state[13]++;
}

function quarter(x: Uint32Array, a: number, b: number, c: number, d: number): void {
  x[a] += x[b];
  x[d] = turned(x[d] ^ x[a], 16);
  x[c] += x[d];
  x[b] = turned(x[b] ^ x[c], 12);
  x[a] += x[b];
  x[d] = turned(x[d] ^ x[a], 8);
  x[c] += x[d];
  x[b] = turned(x[b] ^ x[c], 7);
}

function turned(word: number, bits: number): number {
  return (word << bits) | (word >>> (32 - bits));
}
