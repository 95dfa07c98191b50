"""Lists what no script means so: by what the compiler complains of, and by how a piece of the script is written."""

import re
from typing import Final

OF_ARRAYS: Final = r"^(?!.*\(method\) (?!\w*Array<))"
"""Fits what the compiler says of a method that may be one of arrays."""

IS_OBJECT: Final = r"'value': [\"'](?:\(property\)|const|let|var) [\w$.]+: \{(?!.*toString).*\}[\"']\}"
"""Fits what the compiler says of a name or member that holds an object."""

COMPLAINED: Final = (
    (
        r"Type 'string' is not assignable to type 'number'\.$",
        r".*\+=?\s*+(?P<added>[^\s\"'`+=][^\"'`+]*)",
        "`{added}` is text: added to a number, its characters are appended.",
        "Add `Number({added})`.",
        "",
    ),
    (
        r"types '[^']*\[\]' and '(?:string|number)'",
        r"(?P<list>[\w$.]+)\s*[!=]==.*",
        "`{list}` is an array, which equals no text or number.",
        "Use `{list}.includes(…)`.",
        "",
    ),
    (
        r"types '(?:string|number)' and '[^']*\[\]'",
        r".*[!=]==\s*(?P<list>[\w$.]+)",
        "`{list}` is an array, which equals no text or number.",
        "Use `{list}.includes(…)`.",
        "",
    ),
    (
        r"types '(?:\{ [^']*\}|[A-Z]\w*)' and '(?:string|number)' have no overlap",
        r"(?P<object>[\w$.]+(?:\[[^\[\]]*\])?)\s*[!=]==?.*",
        "`{object}` is an object, which equals no text or number.",
        "Compare a member of it.",
        "",
    ),
    (
        r"types 'boolean' and '[^']+' have no overlap",
        r"!(?P<negated>[\w$.]+)\s*===\s*(?P<value>[^\s=].*)",
        "`!` comes first: true or false is compared with `{value}`.",
        "Write `{negated} !== {value}`.",
        "",
    ),
    (
        r"types '(?P<one>string|number|boolean)' and '(?P<other>string|number|boolean)' have no overlap",
        r"(?!.*(?:''|\"\"|!=)).*===.*",
        "A {one} never equals a {other}.",
        "Convert one: `Number(…)`, `String(…)`.",
        "",
    ),
    (
        r"",
        r"(?P<list>[\w$.]+)\s*=\s*(?P=list)\.(?P<method>push|unshift)\(.*",
        "`{list}.{method}` gives the new length.",
        "Leave out `{list} =`.",
        "",
    ),
    (
        r"Argument of type 'string' is",
        r"(?P<function>Math\.(?:max|min))",
        "`{function}` takes numbers, and these are texts.",
        "Convert them: with `Number(…)`, or `Date.parse(…)` where they are dates.",
        "",
    ),
    (
        r"Argument of type",
        r"(?P<function>Math\.(?:max|min))",
        "`{function}` takes numbers.",
        "Spread a list of them: `{function}(...{text})`.",
        "",
    ),
    (
        r"Type 'boolean' is not assignable to type 'number'",
        r".*\.(?:sort|toSorted)",
        "What orders a list gives a number, not true or false.",
        "Write `(a, b) => (a.x < b.x ? -1 : 1)`.",
        "",
    ),
    (
        r"type '(?:string|number)' is not assignable to parameter of type '\{",
        r".*\.(?:has|includes|indexOf|lastIndexOf)",
        "The list is of objects, none of which equals a text or a number.",
        "Ask for a field: `.some((one) => one.… === …)`.",
        "",
    ),
    (
        r"type '(?P<one>string|number)' is not assignable to parameter of type '(?P<other>string|number)'",
        r".*\.(?:get|has)",
        "A {one} is never found: the keys are of type {other}.",
        "Convert it, with `Number(…)` or `String(…)`.",
        "",
    ),
    (
        r"type '(?P<one>string|number)' is not assignable to parameter of type '(?P<other>string|number)'",
        r".*\.(?:includes|indexOf|lastIndexOf)",
        "A {one} is never found: the elements are of type {other}.",
        "Convert it, with `Number(…)` or `String(…)`.",
        OF_ARRAYS,
    ),
    (
        r"Operator '[<>]=?' cannot be applied to types 'boolean' and 'number'",
        r"!.*",
        "`!` comes first: true or false is compared with a number.",
        "Write `!(… > …)`, or the opposite comparison.",
        "",
    ),
    (
        r"Operator '[<>]=?' cannot be applied to types '(?:string' and 'Date|Date' and 'string)'",
        r".*",
        "A text is compared with a Date, which is never true.",
        "Make it a Date, too: `new Date(…)`.",
        "",
    ),
    (
        r"Operator '[<>]=?' cannot be applied to types '(?:string' and 'number|number' and 'string)'",
        r"(?:[^<>]*\.(?P<left>[\w$]++) [<>]=? [^'\"`]+|[^'\"`]+ [<>]=? [^<>]*\.(?P<right>[\w$]++))",
        "A text that is no number is compared with a number, which is never true.",
        "Make a number of it: `Date.parse(…)` of a date, `parseFloat(…)` of a number with a unit.",
        "",
    ),
    (
        r"Argument of type '(?:\{ [^']*|[A-Z]\w*)' is not assignable to parameter of type '(?:string'|JsonText<)",
        r"JSON\.parse",
        "`JSON.parse` is given a value, not text, and fails.",
        "Use the value as it is.",
        "",
    ),
    (
        r"Operator '[-+*/<>]=?' cannot be applied to types '\{ (?P<member>[\w$]+)",
        r".*",
        "An object stands where a number is wanted.",
        "Take a member of it, such as `.{member}`.",
        "",
    ),
    (
        r"Operator '[<>]=?' cannot be applied to types '(?!Date')[A-Z]\w*' and '(?:string|number)'",
        r"(?P<object>[\w$.]+)\s*[<>].*",
        "`{object}` is an object: compared with a text or number, it is never ordered as its members are.",
        "Take a member of it.",
        "",
    ),
    (
        r"-hand side of an arithmetic operation must be",
        r"(?!.*-).* [*/] .*",
        "`{short}` is an object, and no number.",
        "Take a member of it.",
        IS_OBJECT,
    ),
    (
        r"-hand side of an arithmetic operation must be",
        r".*",
        "Text is subtracted, which gives no number.",
        "Take their times: `Date.parse({short})`.",
        r'@format — "date|: stringDate\b|: string.{0,40}YYYY',
    ),
    (
        r"type 'Map<.{0,300}Did you mean to call '(?P<map>[\w$.]+)\.get'",
        r".*",
        "A Map is not read by brackets.",
        "Use `{map}.get(…)`.",
        "",
    ),
    (
        r"can't be used to index type '\{ [^']*+'\.\s+Property '(?P<member>[\w$]+)' does not exist",
        r"(?=.* [-+*/] )(?:.* [-+*/] )?(?P<object>[\w$.]+)\[[\w$.?]+\](?: [-+*/] .*)?",
        "`{object}` has no `{member}`, which the key may be: that gives undefined.",
        "Add it, or take a default: `({object}[…] ?? 0)`.",
        "",
    ),
    (
        r"Type 'AsyncGenerator<",
        r".*",
        "It is an async generator.",
        "Write `for await (const … of …)`.",
        "",
    ),
    (
        r"Type '\{ (?P<member>[\w$]++)[^']*+' must have a '\[Symbol",
        r".*",
        "It is an object, not a list.",
        "Take a member that is a list, such as `.{member}`.",
        "",
    ),
)
"""Lists what the compiler complains of. Of each: a pattern that is found in what it says; one that fits the function
that is called with what it is about, what is around this, or this itself; what is wrong, and what to write, with
places for what the patterns have found; and a pattern that is found in how the compiler describes the place."""

RETYPED: Final = r"^Type '.*' is (?:not assignable|missing)|^Property '.*' is missing in type"
"""Is found in what the compiler says of a variable that is given a value of another type, where it is assigned to."""

_IS_ARRAY: Final = r"\[\](?![;,)|&>\[\]]| [|&=?])"
_IS: Final = r"'value': [\"'](?:\(\w+\)|const|let|var) [\w$.]+\??: %s(?!\[| [|&])"

_OF_COMPUTED_KEYS: Final = (
    r": \{(?:\\n| )*\[\w+: string\]: (?!unknown|any\b)(?>(?:[^{}]++|\{[^{}]*+\})*)\}"
    r"(?: & \{\\n +constructor\?(?>(?:[^{}]++|\{[^{}]*+\})*)\})?[\"']\}, 'range'"
)

WRITTEN: Final = {
    "ordered": (
        "Without a function, numbers are ordered as texts: 10 before 9.",
        "Write `.{0}((a, b) => a - b)`.",
        r"Array<number>",
    ),
    "made": (
        "`.{0}(…)` gives a new value, which nothing takes: what it is called on stays as it is.",
        "Take it: `… = ….{0}(…)`.",
        r"\bString\.|\bArray<",
    ),
    "asked": (
        "The callback of `{0}` does not give what it has found out.",
        "Return a value; compare with `===`.",
        OF_ARRAYS,
    ),
    "mapped": (
        "The callback of `{0}` gives nothing.",
        "Return a value, or leave out the braces.",
        OF_ARRAYS,
    ),
    "blocked": (
        "The braces in the callback of `{0}` are a block, which gives nothing.",
        "Put the object into parentheses: `(…) => ({{ … }})`.",
        "",
    ),
    "always": (
        "`{0}` is an array, which counts as true when it is empty, too.",
        "Ask for its length: `.{0}.length > 0`.",
        r"'value': [\"']\(\w+\) [\w$.]+: [^=|?]*\[\][\"']\}, 'range'",
    ),
    "assigned": (
        "`=` assigns `{0}`, and compares nothing.",
        "Compare with `===`.",
        "",
    ),
    "alone": (
        "`|| {0}` compares nothing: the condition is always true.",
        "Write the whole comparison again: `… === {0}`.",
        "",
    ),
    "bound": (
        "`{0}` is computed first: what stands before `??` is compared with nothing.",
        "Put it into parentheses: `(… ?? …) > …`.",
        "",
    ),
    "sized": (
        "`{0}` is an object with computed keys, which has no length.",
        "Count its keys: `Object.keys(…).length`.",
        _OF_COMPUTED_KEYS,
    ),
    "unlisted": (
        "`{0}` is an object with computed keys, and no list.",
        "Take its values, `Object.values({0})`, or `Object.entries({0})`.",
        _OF_COMPUTED_KEYS,
    ),
    "keyed_by": (
        "`{0}` is an object of an answer: each is a key of its own, though others have the same members.",
        "Take a member of it for the key.",
        IS_OBJECT,
    ),
    "added": (
        "`{0}` is text: added to a number, its characters are appended.",
        "Add `Number(…)` of it.",
        _IS % "string",
    ),
    "fallen": (
        "`{0}` is no array here, and so the other list is taken.",
        "Take the member that has the list, of JSON text the one of `JSON.parse({0})`.",
        rf"{IS_OBJECT}|{_IS % '(?:string|JsonText<)'}",
    ),
    "keyed": (
        "`for … in` gives the numbers of the elements.",
        "Take the elements themselves: `for (const … of …)`.",
        rf"'value': [\"']\(property\).*{_IS_ARRAY}|(?:const|let|var) [\w$]+: string{_IS_ARRAY}|\bString\.split\(",
    ),
    "listed": (
        "`{0}` is text: its single characters are read.",
        "If it holds JSON, use `JSON.parse` first.",
        _IS % "string",
    ),
    "promised": (
        "`{0}` does not wait for an async callback: its promise counts as true.",
        "Find the answers first: `await Promise.all(list.map(async …))`.",
        OF_ARRAYS,
    ),
    "summed": (
        "An async callback of `reduce` is given a promise of what it gave before.",
        "Await that, or use a `for … of`.",
        OF_ARRAYS,
    ),
    "ignored": (
        "`forEach` takes no notice of what its callback returns.",
        "Use `.find(…)`, or a `for … of`.",
        OF_ARRAYS,
    ),
    "reassigned": (
        "`{0}` is another name for the element: to assign to it changes no list.",
        "Make another list: `list.map(…)`.",
        "",
    ),
    "indexed": (
        "`{0}` is an array: its keys are the numbers of the elements.",
        "Take the elements: `{0}.map(…)`; for the names of their fields, `Object.keys({0}[0] ?? {{}})`.",
        _IS_ARRAY,
    ),
    "unbound": (
        "`{0}` is handed on without its object, and cannot do without.",
        "Wrap it: `(value) => ….{0}(value)`.",
        r"\(method\) (?:Array|Map|RegExp|Set)\b",
    ),
    "voided": (
        "`{0}` is always undefined: the callback returns nothing.",
        "Return the value: a callback with braces needs `return`.",
        r"'value': [\"'](?:const|let|var) [\w$]+: void\b",
    ),
    "texted": (
        "`{0}` is text, never a number.",
        "Convert it: `Number(….{0})`.",
        _IS % "string",
    ),
    "figured": (
        "`{0}` is a number, never text.",
        "Use it as it is.",
        _IS % "number",
    ),
    "never": (
        "`{0}` is declared to be always there, and never null.",
        "Ask for what it may be, such as an empty text.",
        r"\(property\) [\w$.]+: ",
    ),
    "numeric": (
        '`{0}` is a number in a text: texts are compared letter by letter, "10" before "9".',
        "Compare `Number(….{0})`.",
        _IS % "string",
    ),
    "appended": (
        "`{0}` is text: the number is appended to it.",
        "Add to `Number(….{0})`.",
        _IS % "string",
    ),
    "extended": (
        "`{0}` is text: the number is appended to it.",
        "Add to `Number({0})`.",
        _IS % "string",
    ),
    "dated": (
        "`{0}` is text: a number is appended to it, which makes no date.",
        "Add to its time: `new Date(Date.parse(….{0}) + …)`.",
        _IS % "string",
    ),
    "wordy": (
        "`{0}` is text and no number: to reckon with it gives NaN.",
        "Take its digits, time (`Date.parse(….{0})`), or order texts with `a.{0}.localeCompare(b.{0})`.",
        rf"{_IS % 'string'}|\(property\) [\w$.]+: \\?[\"'](?=[^\n]*\|)",
    ),
    "unseeded": (
        "`reduce` without a first value begins with an element, which is an object.",
        "Give it one: `.reduce((…) => …, 0)`.",
        r"\(method\) Array<(?!string|number|boolean|any)",
    ),
    "glued": (
        "`{0}` is an object, which becomes `[object Object]` in a text.",
        "Take a field of it, or `JSON.stringify(….{0})`.",
        IS_OBJECT,
    ),
    "radix": (
        "`map` hands the number of each element to `parseInt`, too, which takes it for the base.",
        "Write `.map(Number)`, or `.map((one) => parseInt(one, 10))`.",
        "",
    ),
    "held": (
        "`JSON.stringify` makes `{{}}` of a Map or Set.",
        "Give it `Object.fromEntries({0})` of a Map, `[...{0}]` of a Set.",
        _IS % "(?:Map|Set)<",
    ),
    "unsummed": (
        "`reduce` begins with a list or object here, to which texts are appended.",
        "Begin with 0 for a sum, `''` for a text.",
        "",
    ),
    "identical": (
        "`{0}` is an object of an answer, which equals itself alone, and not another one with the same members.",
        "Compare a member of both.",
        IS_OBJECT,
    ),
    "grouped": (
        "`{0}` has more behind its first digits: `Number` of it is NaN, and `parseFloat` stops there.",
        "Take commas out, `Number(….{0}.replaceAll(',', ''))`; read each part, and its unit.",
        _IS % "string",
    ),
    "misread": (
        "`{0}` is a number in a text, or a date with the day first or without `-`: a Date reads it wrongly, or not.",
        "Take it apart, and make a date as in 2025-03-01; of a number, `new Date(Number(….{0}))`.",
        _IS % "string",
    ),
    "started": (
        "`{0}[…]` is undefined at first, and gives NaN.",
        "Begin with 0: `{0}[…] = ({0}[…] ?? 0) + …`.",
        r": \{\}[\"']\}",
    ),
    "unnumbered": (
        "`{0}` begins with no digit: to parse it as a number gives NaN.",
        "Take away what is before the digits: `Number(….{0}.replace(/[^-.\\d]/g, ''))`.",
        _IS % "string",
    ),
    "overlong": (
        "`{0}` counts milliseconds already, as a Date does.",
        "Leave the factor out: `new Date(….{0})`.",
        _IS % "number",
    ),
    "counted": (
        "`{0}` is JSON text, and its characters are counted.",
        "Count what it holds: `JSON.parse(….{0}).length`.",
        _IS % "string",
    ),
    "spliced": (
        "`splice` while a loop goes over the same list makes it skip elements.",
        "Make another list: `.filter(…)`.",
        "",
    ),
    "equalled": (
        "A new object equals no other.",
        "Compare `.getTime()` of Dates, `.length` of lists.",
        "",
    ),
    "both": (
        "It cannot equal both texts: the condition is never true.",
        "Join them with `||`.",
        "",
    ),
    "neither": (
        "It always differs from one of both texts: the condition is always true.",
        "Join them with `&&`.",
        "",
    ),
    "placed": (
        "`{0}` gives a place, 0 for the first, and -1, which counts as true, where there is none.",
        "Use `.includes(…)`, or `.some(…)`.",
        "",
    ),
    "among": (
        "`in` asks for the number of an element: `{0}` is an array.",
        "Use `.{0}.includes(…)`.",
        _IS_ARRAY,
    ),
    "beyond": (
        "`{0}` has nothing at its length: the elements begin with 0.",
        "Read the last one with `{0}.at(-1)`.",
        "",
    ),
    "misdated": (
        "`{0}` is a date that, as a text, is not ordered by its time.",
        "Compare times, such as `Date.parse(….{0})`.",
        _IS % "string",
    ),
    "seconds": (
        "`{0}` counts seconds, and a Date milliseconds: it would be in 1970.",
        "Multiply it: `….{0} * 1000`.",
        _IS % "number",
    ),
    "zoned": (
        "`{0}` has times of other zones: as texts, they are not ordered by their time.",
        "Compare times: `Date.parse(….{0})`.",
        _IS % "string",
    ),
}
"""Maps what `QUERY` captures to what is wrong, what to write, and a pattern that is found in how the compiler
describes the place; `{0}` stands for the text."""

OF_TEXTS: Final = {
    "appended": "numbers",
    "extended": "a number alone",
    "numeric": "numbers",
    "wordy": "words",
    "misdated": "dates",
    "seconds": "seconds",
    "zoned": "zones",
    "unnumbered": "no digit first",
    "overlong": "milliseconds",
    "counted": "lists as JSON",
    "grouped": "grouped",
    "misread": "unread dates",
    "identical": "objects",
    "keyed_by": "objects",
}
"""Names those that count only where a field had such values in the run."""

QUERY: Final = r"""
((ternary_expression condition: (call_expression function: (member_expression) @function
   arguments: (arguments . (identifier) @fallen .)) alternative: (array) @none)
 (#eq? @function "Array.isArray") (#eq? @none "[]"))

((call_expression function: (member_expression property: (property_identifier) @ordered)
  arguments: (arguments) @none)
 (#match? @ordered "^(sort|toSorted)$") (#match? @none "^\\(\\s*\\)$"))

((expression_statement (call_expression function: (member_expression property: (property_identifier) @made)))
 (#match? @made "^(concat|pad(End|Start)|replace(All)?|to(Lower|Upper)Case|to(Reversed|Sorted)|trim(End|Start)?)$"))

((call_expression function: (member_expression property: (property_identifier) @each)
  arguments: (arguments . (arrow_function
   body: (call_expression function: (member_expression property: (property_identifier) @made)))))
 (#eq? @each "forEach")
 (#match? @made "^(concat|pad(End|Start)|replace(All)?|to(Lower|Upper)Case|to(Reversed|Sorted)|trim(End|Start)?)$"))

((call_expression function: (member_expression property: (property_identifier) @asked)
  arguments: (arguments . [(arrow_function body: (statement_block)) (function_expression)] @callback))
 (#match? @asked "^(every|filter|find(Index|Last)?|reduce|some|sort|toSorted)$")
 (#not-match? @callback "^async|\\b(return|throw)\\b"))

((call_expression function: (member_expression property: (property_identifier) @asked)
  arguments: (arguments . (arrow_function body: (assignment_expression))))
 (#match? @asked "^(every|filter|find|some)$"))

((call_expression function: (member_expression property: (property_identifier) @asked)
  arguments: (arguments . (arrow_function body: (parenthesized_expression (assignment_expression)))))
 (#match? @asked "^(every|filter|find|some)$"))

((call_expression function: (member_expression property: (property_identifier) @asking)
  arguments: (arguments . (arrow_function body: (member_expression property: (property_identifier) @always))))
 (#match? @asking "^(every|filter|find|some)$"))

(if_statement condition: (parenthesized_expression (assignment_expression
 right: [(string) (number) (true) (false) (null)] @assigned)))

(while_statement condition: (parenthesized_expression (assignment_expression
 right: [(string) (number) (true) (false) (null)] @assigned)))

((call_expression function: (member_expression property: (property_identifier) @blocked)
  arguments: (arguments . (arrow_function body: (object (pair)))))
 (#match? @blocked "^(flatMap|map|then)$"))

(binary_expression left: (binary_expression operator: ["===" "==" "!==" "!="]) operator: "||"
 right: [(string) (number)] @alone)

(binary_expression operator: "??" right: (binary_expression
 left: [(number) (string)] operator: ["<" "<=" ">" ">=" "===" "=="]) @bound)

((member_expression object: (member_expression property: (property_identifier) @counted)
  property: (property_identifier) @length)
 (#eq? @length "length"))

((member_expression
  object: [(identifier) @sized (member_expression property: (property_identifier) @sized)]
  property: (property_identifier) @length)
 (#eq? @length "length"))

((call_expression function: (member_expression
  object: [(identifier) @unlisted (member_expression property: (property_identifier) @unlisted)]
  property: (property_identifier) @each))
 (#match? @each "^(every|filter|find|flatMap|forEach|map|reduce|slice|some|sort)$"))

((call_expression function: (member_expression property: (property_identifier) @method)
  arguments: (arguments . (member_expression property: (property_identifier) @keyed_by)))
 (#match? @method "^(get|has|set)$"))

((variable_declarator value: (call_expression function: (member_expression property: (property_identifier) @mapped)
  arguments: (arguments . [(arrow_function body: (statement_block)) (function_expression)] @callback)))
 (#eq? @mapped "map") (#not-match? @callback "^async|\\b(return|throw)\\b"))

((assignment_expression right: (call_expression function: (member_expression property: (property_identifier) @mapped)
  arguments: (arguments . [(arrow_function body: (statement_block)) (function_expression)] @callback)))
 (#eq? @mapped "map") (#not-match? @callback "^async|\\b(return|throw)\\b"))

((export_statement value: (call_expression function: (member_expression property: (property_identifier) @mapped)
  arguments: (arguments . [(arrow_function body: (statement_block)) (function_expression)] @callback)))
 (#eq? @mapped "map") (#not-match? @callback "^async|\\b(return|throw)\\b"))

((return_statement (call_expression function: (member_expression property: (property_identifier) @mapped)
  arguments: (arguments . [(arrow_function body: (statement_block)) (function_expression)] @callback)))
 (#eq? @mapped "map") (#not-match? @callback "^async|\\b(return|throw)\\b"))

((pair value: (call_expression function: (member_expression property: (property_identifier) @mapped)
  arguments: (arguments . [(arrow_function body: (statement_block)) (function_expression)] @callback)))
 (#eq? @mapped "map") (#not-match? @callback "^async|\\b(return|throw)\\b"))

((call_expression function: (member_expression property: (property_identifier) @each)
  arguments: (arguments . (identifier) @radix .))
 (#eq? @each "map") (#eq? @radix "parseInt"))

((call_expression function: (member_expression) @function arguments: (arguments . (identifier) @held .))
 (#eq? @function "JSON.stringify"))

((call_expression function: (member_expression object: (regex) property: (property_identifier) @function)
  arguments: (arguments . [(identifier) @glued (member_expression property: (property_identifier) @glued)] .))
 (#match? @function "^(exec|test)$"))

((call_expression function: (member_expression property: (property_identifier) @each)
  arguments: (arguments . (arrow_function parameters: (formal_parameters . (identifier) @sum)
   body: (binary_expression left: (identifier) @first operator: "+")) . [(array) (object)] @unsummed .))
 (#eq? @each "reduce") (#eq? @sum @first) (#match? @unsummed "^(\\[\\]|\\{\\})$"))

((binary_expression left: (member_expression property: (property_identifier) @identical)
  operator: ["===" "==" "!==" "!="] right: [(identifier) (member_expression)] @other)
 (#not-match? @other "^(undefined|NaN)$"))

((call_expression function: (identifier) @function
  arguments: (arguments . (member_expression property: (property_identifier) @grouped)))
 (#match? @function "^(Number|parseFloat|parseInt)$"))

(unary_expression operator: "+" argument: (member_expression property: (property_identifier) @grouped))

((call_expression function: (identifier) @function
  arguments: (arguments . (member_expression property: (property_identifier) @unnumbered)))
 (#match? @function "^parse(Float|Int)$"))

((new_expression constructor: (identifier) @date arguments: (arguments . (binary_expression
  left: (member_expression property: (property_identifier) @overlong) operator: "*" right: (number)) .))
 (#eq? @date "Date"))

((new_expression constructor: (identifier) @date arguments: (arguments .
  (member_expression property: (property_identifier) @misread) .))
 (#eq? @date "Date"))

((call_expression function: (member_expression) @function
  arguments: (arguments . (member_expression property: (property_identifier) @misread) .))
 (#eq? @function "Date.parse"))

(binary_expression
 left: (parenthesized_expression (binary_expression operator: ["||" "??"] right: (number)))
 operator: "+"
 right: [(identifier) @added (member_expression property: (property_identifier) @added)])

(binary_expression left: (number) operator: "+" right: (member_expression property: (property_identifier) @added))

((for_in_statement operator: "in"
  right: [(identifier) @keyed (member_expression property: (property_identifier) @keyed)]
  body: (_) @body)
 (#not-match? @body "\\["))

((for_in_statement operator: "in"
  right: (call_expression function: (member_expression property: (property_identifier) @keyed))
  body: (_) @body)
 (#eq? @keyed "split") (#not-match? @body "\\["))

((call_expression function: (member_expression) @function
  arguments: (arguments . [(identifier) @listed (member_expression property: (property_identifier) @listed)]))
 (#match? @function "^Object\\.(entries|keys|values)$"))

((call_expression function: (member_expression property: (property_identifier) @promised)
  arguments: (arguments . (arrow_function) @callback))
 (#match? @promised "^(every|filter|find(Index|Last)?|some)$") (#match? @callback "^async"))

((call_expression function: (member_expression property: (property_identifier) @summed)
  arguments: (arguments . (arrow_function) @callback))
 (#eq? @summed "reduce") (#match? @callback "^async")
 (#not-match? @callback "^async *\\([{[]? *(\\w{1,60})\\b(.|\n)*(await \\(*\\1\\b|\\b\\1\\.then)"))

((call_expression function: (member_expression property: (property_identifier) @ignored)
  arguments: (arguments . (arrow_function body: (statement_block (if_statement consequence: [
   (return_statement [(identifier) (member_expression)])
   (statement_block (return_statement [(identifier) (member_expression)]))])))))
 (#eq? @ignored "forEach"))

((for_in_statement left: (identifier) @element operator: "of" body: (statement_block [
  (expression_statement (assignment_expression left: (identifier) @reassigned))
  (if_statement consequence: [
   (expression_statement (assignment_expression left: (identifier) @reassigned))
   (statement_block (expression_statement (assignment_expression left: (identifier) @reassigned)) .)])] .))
 (#eq? @element @reassigned))

((call_expression function: (member_expression object: (call_expression function: (member_expression) @function
   arguments: (arguments . [(identifier) @indexed (member_expression property: (property_identifier) @indexed)] .))
   property: (property_identifier) @method)
  arguments: (arguments) @given)
 (#eq? @function "Object.keys") (#match? @method "^(filter|forEach|includes|join|map|sort)$")
 (#not-match? @given "^\\(\\s*(Number|parseInt)|\\[|\\.at\\(")
 (#not-match? @given "^\\(\\s*\\(?(_|[ijn]|at|idx|index|num|number|pos|position)\\b"))

((variable_declarator name: (identifier) @name value: (call_expression function: (member_expression) @function
  arguments: (arguments . [(identifier) @indexed (member_expression property: (property_identifier) @indexed)] .)))
 (#eq? @function "Object.keys") (#match? @name "(?i)attr|col|field|header|label|name|prop"))

((call_expression function: (member_expression object: (call_expression function: (member_expression) @function
   arguments: (arguments . [(identifier) @indexed (member_expression property: (property_identifier) @indexed)] .)))
  arguments: (arguments . (arrow_function parameters: (formal_parameters) @given body: (_) @body)))
 (#eq? @function "Object.entries") (#match? @given "^\\(\\[\\w")
 (#not-match? @given "(?i)^\\(\\[(_\\w*|[ijn]|at|\\w*id?x|\\w*index|num\\w*|no|pos\\w*|rank|row\\w*|line\\w*)\\b")
 (#not-match? @body "\\b(Number|parseInt)\\b|\\["))

((call_expression function: (member_expression property: (property_identifier) @each)
  arguments: (arguments . (member_expression property: (property_identifier) @unbound) .))
 (#match? @each "^(every|filter|find|flatMap|forEach|map|some)$")
 (#match? @unbound "^(add|at|delete|get|has|includes|indexOf|push|set|test|unshift)$"))

((variable_declarator name: [(identifier) @voided (array_pattern (identifier) @voided)] value: (_) @value)
 (#match? @value "\\.(forEach|then)\\b"))

((call_expression function: (member_expression property: (property_identifier) @each)
  arguments: (arguments . (arrow_function body: (binary_expression
   left: (unary_expression operator: "typeof" argument: (member_expression property: (property_identifier) @texted))
   operator: ["==" "==="] right: (string) @type))))
 (#match? @each "^(every|filter|find(Index|Last)?|some)$") (#match? @type "^.number.$"))

((call_expression function: (member_expression property: (property_identifier) @each)
  arguments: (arguments . (arrow_function body: (binary_expression
   left: (unary_expression operator: "typeof" argument: (member_expression property: (property_identifier) @figured))
   operator: ["==" "==="] right: (string) @type))))
 (#match? @each "^(every|filter|find(Index|Last)?|some)$") (#match? @type "^.string.$"))

((if_statement !alternative condition: (parenthesized_expression (binary_expression
   left: (unary_expression operator: "typeof" argument: (member_expression property: (property_identifier) @texted))
   operator: ["==" "==="] right: (string) @type)) consequence: (_) @then)
 (#match? @type "^.number.$") (#not-match? @then "\\b(break|continue|return|throw)\\b"))

((ternary_expression condition: (binary_expression
   left: (unary_expression operator: "typeof" argument: (member_expression property: (property_identifier) @texted))
   operator: ["==" "==="] right: (string) @type) alternative: [(null) (number) (string)])
 (#match? @type "^.number.$"))

((ternary_expression condition: (binary_expression
   left: (unary_expression operator: "typeof" argument: (member_expression property: (property_identifier) @figured))
   operator: ["==" "==="] right: (string) @type) alternative: [(null) (number) (string)])
 (#match? @type "^.string.$"))

((call_expression function: (member_expression property: (property_identifier) @each)
  arguments: (arguments . (arrow_function body: (binary_expression
   left: (member_expression object: (identifier) property: (property_identifier) @never)
   operator: ["==" "==="] right: [(null) (undefined)]))))
 (#match? @each "^(every|filter|find(Index|Last)?|some)$"))

((binary_expression left: (member_expression property: (property_identifier) @numeric)
  operator: ["<" "<=" ">" ">="] right: (member_expression property: (property_identifier) @other))
 (#eq? @numeric @other))

((binary_expression left: (member_expression property: (property_identifier) @numeric)
  operator: ["<" "<=" ">" ">="] right: (string) @text)
 (#match? @text "^.[0-9.]+.$"))

((call_expression function: (member_expression object: (call_expression
   function: (member_expression property: (property_identifier) @map)
   arguments: (arguments . (arrow_function body: (member_expression property: (property_identifier) @numeric))))
   property: (property_identifier) @sort) arguments: (arguments) @none)
 (#eq? @map "map") (#match? @sort "^(sort|toSorted)$") (#match? @none "^\\(\\s*\\)$"))

((call_expression function: (member_expression object: (member_expression property: (property_identifier) @numeric)
   property: (property_identifier) @compare)
  arguments: (arguments . (member_expression property: (property_identifier) @other) .))
 (#eq? @compare "localeCompare") (#eq? @numeric @other))

((binary_expression left: (member_expression property: (property_identifier) @appended) operator: "+" right: (number)))

(binary_expression left: (identifier) @extended operator: "+" right: (number))

(new_expression arguments: (arguments . (binary_expression
 left: (member_expression property: (property_identifier) @dated) operator: "+"
 right: [(number) (binary_expression left: (number)) (binary_expression right: (number))])))

((binary_expression left: (member_expression property: (property_identifier) @misdated)
  operator: ["<" "<=" ">" ">="])
 (#not-match? @misdated "^(length|size)$"))

((binary_expression operator: ["<" "<=" ">" ">="]
  right: (member_expression property: (property_identifier) @misdated))
 (#not-match? @misdated "^(length|size)$"))

((binary_expression left: (member_expression property: (property_identifier) @zoned)
  operator: ["<" "<=" ">" ">="] right: (member_expression property: (property_identifier) @other))
 (#eq? @zoned @other))

((binary_expression left: (member_expression property: (property_identifier) @zoned)
  operator: ["<" "<=" ">" ">="] right: (string) @time)
 (#match? @time "T[0-9]{2}:"))

((call_expression function: (member_expression
   object: (member_expression property: (property_identifier) @misdated @zoned)
   property: (property_identifier) @compare)
  arguments: (arguments . (member_expression property: (property_identifier) @other) .))
 (#eq? @compare "localeCompare") (#eq? @misdated @other))

((call_expression function: (member_expression object: (call_expression
   function: (member_expression property: (property_identifier) @map)
   arguments: (arguments . (arrow_function body: (member_expression property: (property_identifier) @misdated @zoned))))
   property: (property_identifier) @sort) arguments: (arguments) @none)
 (#eq? @map "map") (#match? @sort "^(sort|toSorted)$") (#match? @none "^\\(\\s*\\)$"))

((new_expression constructor: (identifier) @date arguments: (arguments . [
  (member_expression property: (property_identifier) @seconds)
  (subscript_expression index: (string) @seconds)] .))
 (#eq? @date "Date"))

((binary_expression left: (member_expression property: (property_identifier) @seconds)
  operator: ["<" "<=" ">" ">="] right: (_) @now)
 (#match? @now "^(Date\\.now|Date\\.parse|new Date)\\b") (#not-match? @now "/ *\\(?1(000|e3|_000)\\b"))

((binary_expression left: (_) @now operator: "-" right: (member_expression property: (property_identifier) @seconds))
 (#match? @now "^(Date\\.now|Date\\.parse|new Date)\\b") (#not-match? @now "/ *\\(?1(000|e3|_000)\\b"))

((binary_expression left: (binary_expression left: (_) @first operator: "===" right: (string) @one) operator: "&&"
   right: (binary_expression left: (_) @second operator: "===" right: (string) @other)) @both
 (#eq? @first @second) (#match? @first "^[\\w$.?]+$") (#not-eq? @one @other))

((binary_expression left: (binary_expression left: (_) @first operator: "!==" right: (string) @one) operator: "||"
   right: (binary_expression left: (_) @second operator: "!==" right: (string) @other)) @neither
 (#eq? @first @second) (#match? @first "^[\\w$.?]+$") (#not-eq? @one @other))

((call_expression function: (member_expression property: (property_identifier) @each)
  arguments: (arguments . (arrow_function body: (call_expression
   function: (member_expression property: (property_identifier) @placed)))))
 (#match? @each "^(every|filter|find(Index|Last)?|some)$") (#match? @placed "^(findIndex|indexOf|search)$"))

((call_expression function: (member_expression property: (property_identifier) @each)
  arguments: (arguments . (arrow_function body: (binary_expression left: (string) operator: "in"
   right: (member_expression property: (property_identifier) @among)))))
 (#match? @each "^(every|filter|find(Index|Last)?|some)$"))

((variable_declarator value: (subscript_expression object: (_) @beyond
  index: (member_expression object: (_) @same property: (property_identifier) @length)))
 (#eq? @length "length") (#eq? @beyond @same))

((pair value: (subscript_expression object: (_) @beyond
  index: (member_expression object: (_) @same property: (property_identifier) @length)))
 (#eq? @length "length") (#eq? @beyond @same))

((export_statement value: (subscript_expression object: (_) @beyond
  index: (member_expression object: (_) @same property: (property_identifier) @length)))
 (#eq? @length "length") (#eq? @beyond @same))

((return_statement (subscript_expression object: (_) @beyond
  index: (member_expression object: (_) @same property: (property_identifier) @length)))
 (#eq? @length "length") (#eq? @beyond @same))

((member_expression object: (subscript_expression object: (_) @beyond
  index: (member_expression object: (_) @same property: (property_identifier) @length)))
 (#eq? @length "length") (#eq? @beyond @same))

((for_in_statement left: (identifier) operator: "of" right: (identifier) @list) @spliced
 (#match? @spliced "^for *\\((const|let|var) \\w{1,60} of (\\w{1,60})\\)(.|\n)*\\b\\2\\.splice\\([^,\n]{1,60}, 1\\)")
 (#not-match? @spliced "\\b(break|return)\\b"))

((for_statement body: (_)) @spliced
 (#match? @spliced "^for *\\(let (\\w{1,60}) = 0; \\1 < (\\w{1,60})\\.length;(.|\n)*\\b\\2\\.splice\\(\\1, 1\\)")
 (#not-match? @spliced "\\b(break|return)\\b|\\w ?--|--\\w|- ?1\\b|-= ?1"))

(binary_expression left: (member_expression property: (property_identifier) @wordy) operator: ["-" "*" "/"])

(binary_expression operator: ["-" "*" "/"] right: (member_expression property: (property_identifier) @wordy))

((call_expression function: (identifier) @function
  arguments: (arguments . (member_expression property: (property_identifier) @wordy)))
 (#eq? @function "Number"))

((call_expression function: (member_expression property: (property_identifier) @unseeded)
  arguments: (arguments . (arrow_function body: (binary_expression operator: "+")) .))
 (#eq? @unseeded "reduce"))

((call_expression function: (member_expression property: (property_identifier) @unseeded)
  arguments: (arguments . (arrow_function body: (statement_block)) @callback .))
 (#eq? @unseeded "reduce")
 (#match? @callback "^\\(?(\\w{1,60}),[^)]{1,60}\\) *=> *\\{\\s*\\1\\[[A-Za-z_][^\\]]*\\] *([-+]|\\?\\?)?=[^=]"))

(binary_expression left: (string) operator: "+"
 right: [(identifier) @glued (member_expression property: (property_identifier) @glued)])

(template_substitution [(identifier) @glued (member_expression property: (property_identifier) @glued)])

((call_expression function: (member_expression object: (identifier) @list property: (property_identifier) @each)
  arguments: (arguments . (arrow_function body: (statement_block (if_statement consequence: [
   (expression_statement (call_expression function: (member_expression
    object: (identifier) @same property: (property_identifier) @spliced)))
   (statement_block (expression_statement (call_expression function: (member_expression
    object: (identifier) @same property: (property_identifier) @spliced))))])))))
 (#eq? @each "forEach") (#eq? @spliced "splice") (#eq? @list @same))

(augmented_assignment_expression left: (subscript_expression object: (identifier) @started) operator: "+=")

((ternary_expression condition: (binary_expression
   left: (binary_expression
    left: (unary_expression operator: "typeof" argument: (member_expression property: (property_identifier) @texted))
    operator: ["==" "==="] right: (string) @type)
   operator: "&&") alternative: [(null) (number) (string)])
 (#match? @type "^.number.$"))

(binary_expression operator: ["===" "==" "!==" "!="] right: [(array) (new_expression) (object)]) @equalled

(binary_expression left: (new_expression) operator: ["===" "==" "!==" "!="]
 right: [(identifier) (member_expression)]) @equalled
"""
"""Has patterns with an empty line between them: all made in one step would hold the loop for 0.15 s."""

PATTERNS: Final = tuple(
    (
        pattern,
        pattern.split(maxsplit=1)[0].lstrip("("),
        re.findall(r'(?:#eq\? @\w+|operator:) "([\w.]+)"', pattern),
    )
    for pattern in QUERY.split("\n\n")
)
"""Holds each pattern of `QUERY` with the type of what it begins with, and words without which nothing fits it."""

STARTS: Final = tuple({start for _, start, _ in PATTERNS})
"""Names what the patterns of `QUERY` begin with."""
