// What only looks like an import is left as it is.
const text = 'import("@codemode/errors")';
same(text.length, 26, "string");
same(/import\("x"\)/.test('import("x")'), true, "regular expression");
const object = { import: (value) => value };
same(object.import("x"), "x", "method");
class Loader {
  static import(value) {
    return value;
  }
  #import(value) {
    return value;
  }
  call(value) {
    return this.#import(value);
  }
}
same(Loader.import("y"), "y", "static method");
same(new Loader().call("z"), "z", "private method");
// import("in a comment")
same(`import("${1}")`, 'import("1")', "template");
