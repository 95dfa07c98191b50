// import.meta is an object without prototype, the same at every place.
same(Object.getPrototypeOf(import.meta), null, "prototype");
same(import.meta, import.meta, "identity");
same((() => import.meta)(), import.meta, "in a function");
import.meta.mine = 1;
same(import.meta.mine, 1, "open");
