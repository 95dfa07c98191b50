// A static and a dynamic import give one namespace object.
import * as fixed from "@codemode/errors";
same(await import("@codemode/errors"), fixed, "namespace");
