// Only own, enumerable properties with string keys are written.
const value = Object.create({ inherited: 1 }, {
  hidden: { value: 2 },
  shown: { value: 3, enumerable: true },
});
value[Symbol("s")] = 4;
same(JSON.stringify(value), '{"shown":3}', "text");
