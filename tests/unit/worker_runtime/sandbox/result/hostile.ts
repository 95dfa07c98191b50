/** What hostile agent code does to a realm, for a while: each entry patches built-ins, `undo` puts them back. */

type Patch = [holder: object, key: PropertyKey, descriptor: PropertyDescriptor];

const define = Object.defineProperty;
const describe = Object.getOwnPropertyDescriptor;
const remove = Reflect.deleteProperty;

function trap(): never {
  throw new Error("agent code was called");
}

const methods = (holder: object, keys: PropertyKey[]): Patch[] =>
  keys.map((key) => [holder, key, { value: trap, writable: true, configurable: true }]);
const setters = (holder: object, keys: PropertyKey[]): Patch[] =>
  keys.map((key) => [holder, key, { get: trap, set: trap, configurable: true }]);

const allMethods = (holder: object): Patch[] =>
  methods(
    holder,
    Reflect.ownKeys(holder).filter((key) =>
      key !== "constructor" && typeof describe(holder, key)!.value === "function" &&
      describe(holder, key)!.configurable!
    ),
  );

/** Each way to poison a realm. */
export const POISONS: Record<string, Patch[]> = {
  "Array.prototype methods and iterator": allMethods(Array.prototype),
  "Array.prototype index setters": setters(Array.prototype, ["0", "1", "2"]),
  "Array.prototype.toJSON": methods(Array.prototype, ["toJSON"]),
  "Object.prototype.toJSON": methods(Object.prototype, ["toJSON"]),
  "Object.prototype.toJSON getter": setters(Object.prototype, ["toJSON"]),
  "Object.prototype methods": allMethods(Object.prototype),
  "Object.prototype.__proto__": setters(Object.prototype, ["__proto__"]),
  "Object.prototype setters on our own field names": setters(Object.prototype, [
    ...["bytes", "depth", "open", "path", "issues", "fatal", "limits", "json", "kind", "message", "unlisted"],
    ...[
      "text",
      "left",
      "full",
      "writer",
      "keys",
      "next",
      "first",
      "parent",
      "source",
      "close",
      "is",
      "form",
      "tag",
    ],
  ]),
  "Object.prototype descriptor fields": [
    [Object.prototype, "get", { value: trap, writable: true, configurable: true }],
    [Object.prototype, "writable", { value: false, writable: true, configurable: true }],
    [Object.prototype, "enumerable", { value: false, writable: true, configurable: true }],
  ],
  "Object statics": allMethods(Object),
  "Reflect": allMethods(Reflect),
  "JSON": allMethods(JSON),
  "Array statics": allMethods(Array),
  "Function.prototype": allMethods(Function.prototype).filter(([, key]) => key !== Symbol.hasInstance),
  "String.prototype": allMethods(String.prototype),
  "Number.prototype and statics": [...allMethods(Number.prototype), ...allMethods(Number)],
  "Map.prototype": [...allMethods(Map.prototype), ...setters(Map.prototype, ["size"])],
  "Set.prototype": [...allMethods(Set.prototype), ...setters(Set.prototype, ["size"])],
  "Date.prototype": allMethods(Date.prototype),
  "RegExp.prototype": [
    ...allMethods(RegExp.prototype),
    ...setters(RegExp.prototype, ["flags", "source", "global", "unicode", "sticky"]),
  ],
  "Symbol.prototype and BigInt.prototype": [
    ...allMethods(Symbol.prototype),
    ...allMethods(BigInt.prototype),
    ...methods(BigInt.prototype, ["toJSON"]),
    ...methods(String.prototype, ["toJSON"]),
    ...methods(Number.prototype, ["toJSON"]),
    ...methods(Boolean.prototype, ["toJSON"]),
  ],
  "Promise.prototype": allMethods(Promise.prototype),
  "Error.prototype and Error.isError": [
    ...methods(Error.prototype, ["toString"]),
    ...methods(Error, ["isError", "captureStackTrace"]),
  ],
  "Uint8Array": [
    ...methods(Uint8Array.prototype, ["toBase64"]),
    ...allMethods(Object.getPrototypeOf(Uint8Array.prototype)),
    ...setters(Object.getPrototypeOf(Uint8Array.prototype), ["length", "buffer", "byteLength", "byteOffset"]),
  ],
  "Symbol.species": [
    [Array, Symbol.species, { get: trap, configurable: true }],
    [Promise, Symbol.species, { get: trap, configurable: true }],
  ],
  "global constructors": ["String", "Object", "Array", "Map", "Set", "JSON", "Reflect", "Error", "Number"]
    .map((
      name,
    ) => [globalThis, name, { value: trap, writable: true, configurable: true }]),
};

/** Runs `act` in the poisoned realm and always puts the realm back. */
export function poisoned<T>(patches: Patch[], act: () => T): T {
  // Null prototype and plain loops: nothing here may use what is being poisoned.
  const saved = patches.map(([holder, key]) => describe(holder, key));
  const count = patches.length;
  const slots: { holder: object; key: PropertyKey; make: PropertyDescriptor; was?: PropertyDescriptor }[] =
    [];
  for (let i = 0; i < count; i++) {
    const make = Object.assign(Object.create(null), patches[i][2]);
    const was = saved[i] && Object.assign(Object.create(null), saved[i]);
    slots.push({ holder: patches[i][0], key: patches[i][1], make, was });
  }
  try {
    for (let i = 0; i < count; i++) define(slots[i].holder, slots[i].key, slots[i].make);
    return act();
  } finally {
    for (let i = 0; i < count; i++) {
      const { holder, key, was } = slots[i];
      if (was === undefined) remove(holder, key);
      else define(holder, key, was);
    }
  }
}
