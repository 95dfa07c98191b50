// Reflect may be patched: the patch holds in this run, and is gone in the next.
Reflect.apply = () => "patched";
same(Reflect.apply(), "patched", "own patch");
delete Reflect.get;
same(Reflect.get, undefined, "deleted");
same([1, 2].map((value) => value + 1).join(), "2,3", "the language goes on");
